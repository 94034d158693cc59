//! Where a shard lies: a rank or a worker, and a device.

use std::{
    fmt,
    hash::{Hash, Hasher},
    str::FromStr,
    sync::Arc,
};

use serde::{Deserialize, Serialize};

use crate::{Device, Error, Result};

/// The place of a shard: `rank:<rank>/<device>`, `<worker>/<device>` or `<device>`. The rank is that in the
/// *world*, also for tensors on a part of it. Without a device it is `cpu`.
///
/// ```
/// use dtensor_sharded::{Device, ShardPlacement};
///
/// let placement: ShardPlacement = "rank:3/cuda:1".parse()?;
/// assert_eq!((placement.rank(), placement.device().kind()), (Some(3), "cuda"));
/// assert_eq!("rank:007".parse::<ShardPlacement>()?, ShardPlacement::on_rank(7, Device::CPU));
/// assert_eq!("trainer-1/cpu".parse::<ShardPlacement>()?.worker(), Some("trainer-1"));
/// // Only a device: it names neither a rank nor a worker.
/// assert_eq!("cuda:1".parse::<ShardPlacement>()?.rank(), None);
/// assert!("worker:1/cpu".parse::<ShardPlacement>().is_err());
/// # Ok::<(), dtensor_sharded::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct ShardPlacement {
    owner: Owner,
    device: Device,
}

#[derive(Clone, Debug)]
enum Owner {
    Rank(usize),
    /// A name, and the rank that it stands for where that was looked up. What was looked up is no part of the
    /// value.
    Worker(Arc<str>, Option<usize>),
    /// Whoever reads it.
    Unnamed,
}

impl Owner {
    /// What makes one owner differ from another.
    fn key(&self) -> (Option<usize>, Option<&str>) {
        match self {
            Owner::Rank(rank) => (Some(*rank), None),
            Owner::Worker(name, _) => (None, Some(name)),
            Owner::Unnamed => (None, None),
        }
    }
}

impl PartialEq for Owner {
    fn eq(&self, other: &Owner) -> bool {
        self.key() == other.key()
    }
}

impl Eq for Owner {}

impl Hash for Owner {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.key().hash(state);
    }
}

impl ShardPlacement {
    /// A device of a rank of the world.
    pub fn on_rank(rank: usize, device: Device) -> ShardPlacement {
        ShardPlacement { owner: Owner::Rank(rank), device }
    }

    /// A device of a worker, by its name, which has neither `/` nor `:`.
    pub fn on_worker(name: &str, device: Device) -> Result<ShardPlacement> {
        let owner = parse_owner(name, name)?;
        Ok(ShardPlacement { owner, device })
    }

    /// A device of nobody in particular.
    pub fn on_device(device: Device) -> ShardPlacement {
        ShardPlacement { owner: Owner::Unnamed, device }
    }

    /// The rank in the world, if it names one. In the metadata of a tensor also that of a worker, which was
    /// looked up when the tensor was made.
    pub fn rank(&self) -> Option<usize> {
        match self.owner {
            Owner::Rank(rank) => Some(rank),
            Owner::Worker(_, rank) => rank,
            Owner::Unnamed => None,
        }
    }

    /// The worker, if it names one.
    pub fn worker(&self) -> Option<&str> {
        match &self.owner {
            Owner::Worker(name, _) => Some(name),
            _ => None,
        }
    }

    /// The same, knowing which rank the worker is, if it names one.
    pub(crate) fn of_worker_on(self, rank: usize) -> ShardPlacement {
        let owner = match self.owner {
            Owner::Worker(name, _) => Owner::Worker(name, Some(rank)),
            other => other,
        };
        ShardPlacement { owner, ..self }
    }

    /// The device.
    pub fn device(&self) -> Device {
        self.device
    }

    /// The same owner with another device.
    #[must_use]
    pub fn with_device(&self, device: Device) -> ShardPlacement {
        ShardPlacement { owner: self.owner.clone(), device }
    }
}

impl FromStr for ShardPlacement {
    type Err = Error;

    /// What stands before a slash is the owner. Without a slash the text is a device if it can be one, and
    /// else an owner.
    fn from_str(text: &str) -> Result<ShardPlacement> {
        let mut fields = text.split('/');
        let (owner, device) = match (fields.next(), fields.next(), fields.next()) {
            (Some(owner), Some(device), None) => (owner, device),
            (Some(only), None, None) => match only.parse() {
                Ok(device) => return Ok(ShardPlacement::on_device(device)),
                Err(_) => (only, "cpu"),
            },
            _ => return Err(bad(text, "it has more than one slash")),
        };
        if owner.is_empty() {
            return Err(bad(text, "it names nobody before the slash"));
        }
        // The device first: that is the order in which PyTorch complains.
        let device = device.parse()?;
        Ok(ShardPlacement { owner: parse_owner(owner, text)?, device })
    }
}

impl fmt::Display for ShardPlacement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.owner {
            Owner::Rank(rank) => write!(f, "rank:{rank}/{}", self.device),
            Owner::Worker(name, _) => write!(f, "{name}/{}", self.device),
            Owner::Unnamed => self.device.fmt(f),
        }
    }
}

impl TryFrom<String> for ShardPlacement {
    type Error = Error;

    fn try_from(text: String) -> Result<ShardPlacement> {
        text.parse()
    }
}

impl TryFrom<&str> for ShardPlacement {
    type Error = Error;

    fn try_from(text: &str) -> Result<ShardPlacement> {
        text.parse()
    }
}

impl From<Device> for ShardPlacement {
    fn from(device: Device) -> ShardPlacement {
        ShardPlacement::on_device(device)
    }
}

impl From<ShardPlacement> for String {
    fn from(placement: ShardPlacement) -> String {
        placement.to_string()
    }
}

/// `rank:<digits>` or the name of a worker.
fn parse_owner(owner: &str, text: &str) -> Result<Owner> {
    if owner.is_empty() || owner.contains('/') {
        return Err(bad(text, "the name of a worker is not empty and has no slash"));
    }
    let Some((before, after)) = owner.split_once(':') else {
        return Ok(Owner::Worker(owner.into(), None));
    };
    let is_number = !after.is_empty() && after.bytes().all(|byte| byte.is_ascii_digit());
    match after.parse() {
        Ok(rank) if before == "rank" && is_number => Ok(Owner::Rank(rank)),
        _ => Err(bad(text, "only `rank:<number>` has a colon before the slash")),
    }
}

fn bad(text: &str, why: &'static str) -> Error {
    Error::BadPlacement { text: text.into(), why: why.into() }
}
