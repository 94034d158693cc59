//! What workers ask each other unasked: who they are, that references are gone, that they know everybody, and
//! that they leave.

use std::sync::Arc;

use serde::{Deserialize, Serialize, de::DeserializeOwned};

use crate::{Failure, Reply, WorkerInfo, refs::Delete, service::Served};

/// Methods that every worker has. They take no time and wait for nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Method {
    /// Who are you?
    Hello,
    /// These forks are gone.
    Delete,
    /// I know the names of all.
    Met,
    /// I leave.
    Leave,
}

/// The answer to [`Method::Hello`].
#[derive(Serialize, Deserialize)]
pub(crate) struct Hello {
    pub(crate) worker: WorkerInfo,
}

impl Method {
    const ALL: [Method; 4] = [Method::Hello, Method::Delete, Method::Met, Method::Leave];

    pub(crate) fn of(name: &str) -> Option<Method> {
        Method::ALL.into_iter().find(|method| method.name() == name)
    }

    pub(crate) fn name(self) -> &'static str {
        match self {
            Method::Hello => "rpc.hello",
            Method::Delete => "rpc.delete",
            Method::Met => "rpc.met",
            Method::Leave => "rpc.leave",
        }
    }

    pub(crate) fn answer(
        self,
        served: &Arc<Served>,
        caller: usize,
        request: &[u8],
    ) -> Result<Reply, Failure> {
        match self {
            Method::Hello => {
                Ok(Reply::new(serde_json::to_vec(&Hello { worker: served.me.clone() })?))
            }
            Method::Delete => {
                let gone: Vec<Delete> = read(request)?;
                served.objects.delete(caller, &gone);
                Ok(Reply::default())
            }
            Method::Met | Method::Leave => {
                if let Some(gathering) = served.gathering(self) {
                    gathering.add(caller);
                }
                Ok(Reply::default())
            }
        }
    }
}

fn read<T: DeserializeOwned>(request: &[u8]) -> Result<T, Failure> {
    Ok(serde_json::from_slice(request)?)
}
