//! Doing something when all workers do it.

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use bytes::Bytes;
use tokio::{sync::watch, task::JoinSet, time};

use crate::{client::Peers, control::Method, service::Served};

/// How often a worker is told that does not answer. It has listened before, so it is gone.
const ATTEMPTS: usize = 3;
const PAUSE: Duration = Duration::from_millis(50);

/// What workers do together, and who has said that it does.
#[derive(Default)]
pub(crate) struct Gathering(watch::Sender<BTreeSet<usize>>);

impl Gathering {
    pub(crate) fn add(&self, worker: usize) {
        self.0.send_modify(|workers| {
            workers.insert(worker);
        });
    }

    /// The other workers that have not said it.
    pub(crate) fn missing(&self, peers: &Peers) -> Vec<usize> {
        let here = self.0.borrow();
        others(peers).filter(|other| !here.contains(other)).collect()
    }
}

/// Tells every other worker, by `method`, and returns when each has been told and has said the same, or is
/// gone. It is for the caller to bound the wait.
pub(crate) async fn together(method: Method, served: &Arc<Served>, peers: &Arc<Peers>) {
    let mut telling = JoinSet::new();
    for other in others(peers) {
        let (served, peers) = (Arc::clone(served), Arc::clone(peers));
        telling.spawn(async move {
            let Some(gathering) = served.gathering(method) else { return };
            let mut here = gathering.0.subscribe();
            if tell(other, method, &peers, &mut here).await {
                // The sender is in `served`, so it cannot be gone.
                let _ = here.wait_for(|here| here.contains(&other)).await;
            }
        });
    }
    while telling.join_next().await.is_some() {}
}

/// Whether it is worth waiting for the other: it was told, and so it is there.
async fn tell(
    other: usize,
    method: Method,
    peers: &Peers,
    here: &mut watch::Receiver<BTreeSet<usize>>,
) -> bool {
    for _ in 0..ATTEMPTS {
        match peers.control(other, method, Bytes::new()).await {
            Ok(_) => return true,
            // It goes on only after it has heard this worker: the answer was lost, not the message.
            Err(_) if here.borrow_and_update().contains(&other) => return false,
            Err(_) => time::sleep(PAUSE).await,
        }
    }
    false
}

fn others(peers: &Peers) -> impl Iterator<Item = usize> {
    let me = peers.me();
    peers.workers().all().iter().map(|worker| worker.id).filter(move |id| *id != me)
}
