//! How a shard travels: a head that says what it is, and its elements as a body.

use std::{ops::Deref, time::Duration};

use dtensor_dtype::DType;
use dtensor_local::Tensor;
use dtensor_rpc::{Bytes, CallContext, Failure, RefId, Reply, UserRef};
use serde::{Deserialize, Serialize};

use super::cell::{Cell, Unavailable};
use crate::{Error, Result, Shard, ShardMetadata, metadata::dtype_name};

/// The method that gives a shard.
pub(super) const METHOD: &str = "dtensor.sharded.shard";

const OP: &str = "to_here";

/// A copy of a shard, as it was on its owner when it was fetched.
#[derive(Clone, Debug)]
pub struct FetchedShard {
    shard: Shard,
    requires_grad: bool,
}

impl FetchedShard {
    pub(super) fn new(shard: Shard, requires_grad: bool) -> FetchedShard {
        FetchedShard { shard, requires_grad }
    }

    /// Whether its tensor wants gradients.
    pub fn requires_grad(&self) -> bool {
        self.requires_grad
    }

    /// The shard itself.
    pub fn into_shard(self) -> Shard {
        self.shard
    }
}

impl Deref for FetchedShard {
    type Target = Shard;

    fn deref(&self) -> &Shard {
        &self.shard
    }
}

/// The head of an answer.
#[derive(Serialize, Deserialize)]
enum Head {
    Shard {
        metadata: ShardMetadata,
        #[serde(with = "dtype_name")]
        dtype: DType,
        is_meta: bool,
        requires_grad: bool,
    },
    Stale,
    Changing,
}

/// Gives a shard of this rank. Its elements are sent from where they are: what changes them meanwhile copies
/// them first.
pub(super) fn answer(context: &CallContext<'_>, request: Bytes) -> Result<Reply, Failure> {
    let id: RefId = serde_json::from_slice(&request)?;
    let cell = context.object::<Cell>(id)?;
    let (head, body) = match cell.read(context.time_left()) {
        Ok((shard, requires_grad)) => {
            let tensor = shard.tensor().contiguous();
            let (metadata, dtype) = (shard.metadata().clone(), tensor.dtype());
            let is_meta = tensor.is_meta();
            (Head::Shard { metadata, dtype, is_meta, requires_grad }, Some(Elements(tensor)))
        }
        Err(Unavailable::Stale) => (Head::Stale, None),
        Err(Unavailable::Changing) => (Head::Changing, None),
    };
    let reply = Reply::new(serde_json::to_vec(&head)?);
    Ok(reply.with_body(body.map(Bytes::from_owner)))
}

/// Fetches a shard of which the box and the dtype are known: what arrives is that, or an error.
pub(super) fn fetch(
    reference: &UserRef,
    metadata: &ShardMetadata,
    dtype: DType,
    timeout: Option<Duration>,
) -> Result<FetchedShard> {
    let bad = |what: String| Error::BadState { op: OP.into(), what: what.into() };
    let owner = reference.owner();
    let id = serde_json::to_vec(&reference.id()).map_err(|error| bad(error.to_string()))?;
    let incoming = reference.agent().open(owner.id, METHOD, id, timeout).map_err(Error::rpc(OP))?;
    let head = serde_json::from_slice(incoming.head()).map_err(|error| bad(error.to_string()))?;
    let (is_meta, requires_grad) = match head {
        Head::Stale => {
            let (shard, owner) = (Box::new(metadata.clone()), owner.name.clone());
            return Err(Error::StaleShard { shard, owner });
        }
        Head::Changing => {
            let what =
                format!("worker {} was changing the shard for longer than was waited", owner.name);
            return Err(bad(what));
        }
        Head::Shard { metadata: got, dtype: got_dtype, .. }
            if got != *metadata || got_dtype != dtype =>
        {
            return Err(bad(format!(
                "worker {} sent {got} of {got_dtype}, not {metadata} of {dtype}",
                owner.name
            )));
        }
        Head::Shard { is_meta, requires_grad, .. } => (is_meta, requires_grad),
    };
    let n_bytes = if is_meta { 0 } else { metadata.volume().saturating_mul(dtype.size() as u128) };
    // Before there is memory for it.
    if u128::from(incoming.body_length()) != n_bytes {
        let what = format!("{} bytes for a shard of {n_bytes}", incoming.body_length());
        return Err(bad(format!("worker {} announced {what}", owner.name)));
    }
    let tensor = match is_meta {
        true => Tensor::meta(metadata.sizes(), dtype)?,
        false => Tensor::from_bytes_with(metadata.sizes(), dtype, |into| {
            incoming.read_into(into).map_err(Error::rpc(OP))
        })?,
    };
    Ok(FetchedShard::new(Shard::new(tensor, metadata.clone())?, requires_grad))
}

/// The bytes of a contiguous tensor; none of one without values.
struct Elements(Tensor);

impl AsRef<[u8]> for Elements {
    fn as_ref(&self) -> &[u8] {
        self.0.as_bytes().unwrap_or_default()
    }
}
