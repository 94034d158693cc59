//! Who there is.

use std::{collections::HashMap, net::SocketAddr};

use serde::{Deserialize, Serialize};

use crate::{Error, Result};

/// A worker: its number, which is its rank where ranks have met, and its name.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct WorkerInfo {
    /// `0..` the number of workers.
    pub id: usize,
    /// Unlike that of every other worker.
    pub name: Box<str>,
}

/// All workers, and where they listen.
#[derive(Debug)]
pub(crate) struct Workers {
    infos: Vec<WorkerInfo>,
    addresses: Vec<SocketAddr>,
    by_name: HashMap<Box<str>, usize>,
}

impl Workers {
    /// Workers in the order of their numbers.
    pub(crate) fn new(listed: Vec<(Box<str>, SocketAddr)>) -> Result<Workers> {
        let mut by_name = HashMap::with_capacity(listed.len());
        let (mut infos, mut addresses) = (Vec::new(), Vec::new());
        for (id, (name, address)) in listed.into_iter().enumerate() {
            check_name(&name)?;
            if let Some(first) = by_name.insert(name.clone(), id) {
                return Err(Error::DuplicateName { name, first, second: id });
            }
            infos.push(WorkerInfo { id, name });
            addresses.push(address);
        }
        Ok(Workers { infos, addresses, by_name })
    }

    pub(crate) fn all(&self) -> &[WorkerInfo] {
        &self.infos
    }

    pub(crate) fn by_name(&self, name: &str) -> Result<&WorkerInfo> {
        let id = self.by_name.get(name).ok_or_else(|| Error::NoSuchWorker { name: name.into() })?;
        self.by_id(*id)
    }

    pub(crate) fn by_id(&self, id: usize) -> Result<&WorkerInfo> {
        self.infos.get(id).ok_or(Error::NoSuchId { id, size: self.infos.len() })
    }

    pub(crate) fn addresses(&self) -> &[SocketAddr] {
        &self.addresses
    }
}

/// As PyTorch: letters, digits, `-`, `_` and `:`, at least one and fewer than 128.
pub(crate) fn check_name(name: &str) -> Result<()> {
    const LIMIT: usize = 128;
    let is_allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"-_:".contains(&byte);
    let why = if name.is_empty() {
        "is empty"
    } else if name.len() >= LIMIT {
        "is too long"
    } else if !name.bytes().all(is_allowed) {
        "has other characters"
    } else {
        return Ok(());
    };
    let shown: String = name.chars().take(LIMIT).collect();
    Err(Error::BadName { name: shown.into(), why: why.into() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_letters_digits_and_three_signs() {
        for good in ["a", "trainer-1_b:2", &"x".repeat(127)] {
            assert_eq!(check_name(good), Ok(()));
        }
        for bad in ["", "a b", "a/b", "ä", "a.b", &"x".repeat(128)] {
            assert!(matches!(check_name(bad), Err(Error::BadName { .. })), "{bad}");
        }
    }
}
