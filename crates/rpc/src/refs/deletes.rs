//! Telling owners which references are gone.

use std::{
    collections::{BTreeMap, VecDeque},
    sync::Arc,
    time::Duration,
};

use tokio::{
    runtime::Handle,
    sync::{
        mpsc::{self, UnboundedReceiver},
        watch,
    },
    time,
};

use super::Delete;
use crate::{Error, client::Peers, control::Method};

/// After so many attempts in a row an owner is thought to be gone, and nobody waits for it any more. It is told
/// all the same, if it comes back: its objects would stay for ever.
const ATTEMPTS: u32 = 5;
/// The pause after the first attempt; it doubles, up to the longest.
const FIRST_PAUSE: Duration = Duration::from_millis(50);
const LONGEST_PAUSE: Duration = Duration::from_secs(5);
/// What fits into a message of the smallest size that is of use.
const AT_ONCE: usize = 256;
/// What is kept for one owner that does not answer: 16 MiB. The oldest are forgotten first.
const KEPT: usize = 1 << 20;

/// What is still to be told. Whoever drops a reference only puts it here.
pub(crate) struct Deletes {
    queue: mpsc::UnboundedSender<(usize, Delete)>,
    outstanding: Arc<watch::Sender<usize>>,
}

impl Deletes {
    /// Starts to tell.
    pub(crate) fn start(runtime: &Handle, peers: Arc<Peers>) -> Deletes {
        let (queue, waiting) = mpsc::unbounded_channel();
        let outstanding = Arc::new(watch::Sender::new(0));
        runtime.spawn(tell_all(waiting, peers, Arc::clone(&outstanding)));
        Deletes { queue, outstanding }
    }

    pub(crate) fn push(&self, owner: usize, delete: Delete) {
        self.outstanding.send_modify(|n| *n += 1);
        // Nobody listens after a shutdown, and then nobody counts.
        if self.queue.send((owner, delete)).is_err() {
            self.outstanding.send_modify(|n| *n -= 1);
        }
    }

    pub(crate) fn n_outstanding(&self) -> usize {
        *self.outstanding.borrow()
    }

    /// Returns when all that was pushed before has been told, or its owner is thought to be gone.
    pub(crate) async fn flushed(&self) {
        let mut outstanding = self.outstanding.subscribe();
        // The sender is here, so it cannot be gone.
        let _ = outstanding.wait_for(|n| *n == 0).await;
    }
}

/// Gives every owner a task of its own: one that does not answer does not keep the others waiting.
async fn tell_all(
    mut waiting: UnboundedReceiver<(usize, Delete)>,
    peers: Arc<Peers>,
    outstanding: Arc<watch::Sender<usize>>,
) {
    let mut owners = BTreeMap::new();
    while let Some((owner, delete)) = waiting.recv().await {
        let queue = owners.entry(owner).or_insert_with(|| {
            let (queue, waiting) = mpsc::unbounded_channel();
            let (peers, outstanding) = (Arc::clone(&peers), Arc::clone(&outstanding));
            let backlog = Backlog { gone: VecDeque::new(), n_despaired: 0, outstanding };
            tokio::spawn(tell_owner(owner, waiting, backlog, peers));
            queue
        });
        // The task ends after this one.
        let _ = queue.send(delete);
    }
}

async fn tell_owner(
    owner: usize,
    mut waiting: UnboundedReceiver<Delete>,
    mut backlog: Backlog,
    peers: Arc<Peers>,
) {
    let (mut n_failed, mut pause) = (0, FIRST_PAUSE);
    loop {
        if backlog.gone.is_empty() {
            let Some(first) = waiting.recv().await else { return };
            backlog.gone.push_back(first);
        }
        // Whatever else has gathered goes with it.
        backlog.gone.extend(std::iter::from_fn(|| waiting.try_recv().ok()));
        let n_forgotten = backlog.gone.len().saturating_sub(KEPT);
        if n_forgotten > 0 {
            tracing::warn!(owner, n_forgotten, "too many references of a lost owner");
            backlog.settle(n_forgotten);
        }
        let some: Vec<&Delete> = backlog.gone.iter().take(AT_ONCE).collect();
        let n = some.len();
        let told = match serde_json::to_vec(&some) {
            Ok(message) => peers.control(owner, Method::Delete, message.into()).await,
            // It would be so the next time.
            Err(_) => Ok(bytes::Bytes::new()),
        };
        match told {
            // Also what it fails with is an answer.
            Ok(_) | Err(Error::Remote { .. }) => {
                backlog.settle(n);
                (n_failed, pause) = (0, FIRST_PAUSE);
            }
            // It has not come so far that it was read, for whatever reason.
            Err(error) => {
                n_failed += 1;
                if n_failed >= ATTEMPTS {
                    tracing::debug!(owner, n, %error, "references are not deleted yet");
                    backlog.despair();
                }
                time::sleep(pause).await;
                pause = LONGEST_PAUSE.min(2 * pause);
            }
        }
    }
}

/// What one owner has not heard yet, oldest first.
struct Backlog {
    gone: VecDeque<Delete>,
    /// Of how many of them, the first ones, nobody waits that they are told.
    n_despaired: usize,
    outstanding: Arc<watch::Sender<usize>>,
}

impl Backlog {
    /// The first `n` are told, or given up.
    fn settle(&mut self, n: usize) {
        self.gone.drain(..n);
        let n_waited = n.saturating_sub(self.n_despaired);
        self.n_despaired = self.n_despaired.saturating_sub(n);
        self.outstanding.send_modify(|outstanding| *outstanding -= n_waited);
    }

    /// Nobody waits any more for what there is.
    fn despair(&mut self) {
        let n_waited = self.gone.len() - self.n_despaired;
        self.n_despaired = self.gone.len();
        self.outstanding.send_modify(|outstanding| *outstanding -= n_waited);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_nobody_waits_for_is_counted_once() {
        let gone = (0..10).map(|serial| Delete { local_id: 1, serial }).collect();
        let outstanding = Arc::new(watch::Sender::new(10));
        let mut backlog = Backlog { gone, n_despaired: 0, outstanding: Arc::clone(&outstanding) };
        let mut left = |step: &dyn Fn(&mut Backlog)| {
            step(&mut backlog);
            (backlog.gone.len(), *outstanding.borrow())
        };
        assert_eq!(left(&|backlog| backlog.settle(2)), (8, 8));
        assert_eq!(left(&Backlog::despair), (8, 0));
        assert_eq!(left(&Backlog::despair), (8, 0));
        assert_eq!(left(&|backlog| backlog.settle(3)), (5, 0));
        outstanding.send_modify(|n| *n += 1);
        let one_more = |backlog: &mut Backlog| {
            backlog.gone.push_back(Delete { local_id: 2, serial: 0 });
        };
        assert_eq!(left(&one_more), (6, 1));
        assert_eq!(left(&|backlog| backlog.settle(5)), (1, 1));
        assert_eq!(left(&|backlog| backlog.settle(1)), (0, 0));
    }
}
