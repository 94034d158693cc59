//! Telling owners which references are gone.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use tokio::{
    runtime::Handle,
    sync::{mpsc, watch},
    time,
};

use super::Delete;
use crate::{Error, client::Peers, control::Method};

/// How often an owner is told that does not answer. After that it is taken for dead, and has no counts that
/// matter.
const ATTEMPTS: u32 = 5;
/// The pause after the first attempt; it doubles.
const FIRST_PAUSE: Duration = Duration::from_millis(50);

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

    /// Returns when all that was pushed before has been told, or given up.
    pub(crate) async fn flushed(&self) {
        let mut outstanding = self.outstanding.subscribe();
        // The sender is here, so it cannot be gone.
        let _ = outstanding.wait_for(|n| *n == 0).await;
    }
}

async fn tell_all(
    mut waiting: mpsc::UnboundedReceiver<(usize, Delete)>,
    peers: Arc<Peers>,
    outstanding: Arc<watch::Sender<usize>>,
) {
    while let Some(first) = waiting.recv().await {
        // Whatever else has gathered goes with it, in one message per owner.
        let mut by_owner: BTreeMap<usize, Vec<Delete>> = BTreeMap::new();
        let rest = std::iter::from_fn(|| waiting.try_recv().ok());
        for (owner, delete) in std::iter::once(first).chain(rest) {
            by_owner.entry(owner).or_default().push(delete);
        }
        for (owner, gone) in by_owner {
            let (peers, outstanding) = (Arc::clone(&peers), Arc::clone(&outstanding));
            // An owner that does not answer does not keep the others waiting.
            tokio::spawn(async move {
                // What fits into a message of the smallest size that is of use.
                for some in gone.chunks(256) {
                    tell(&peers, owner, some).await;
                }
                outstanding.send_modify(|n| *n -= gone.len());
            });
        }
    }
}

async fn tell(peers: &Peers, owner: usize, gone: &[Delete]) {
    let Ok(message) = serde_json::to_vec(gone) else { return };
    let mut pause = FIRST_PAUSE;
    for attempt in 1..=ATTEMPTS {
        match peers.control(owner, Method::Delete, message.clone().into()).await {
            Ok(_) | Err(Error::Refused { .. }) => return,
            Err(error) if attempt == ATTEMPTS => {
                tracing::debug!(owner, n = gone.len(), %error, "references were not deleted");
            }
            Err(_) => {
                time::sleep(pause).await;
                pause *= 2;
            }
        }
    }
}
