//! What tells the workers of one run from everybody else.

use std::fmt;

use crate::{Error, Result};

/// 32 bytes that only the workers of one run know. Every request shows that its caller knows them, and every answer
/// that the callee does, and what does not is refused before it is read. They are never sent from worker to worker.
///
/// ```
/// use dtensor_rpc::Secret;
///
/// let secret = Secret::random()?;
/// assert_eq!(Secret::from_bytes(*secret.as_bytes()), secret);
/// assert_ne!(Secret::random()?, secret);
/// // It is not shown by accident.
/// assert_eq!(format!("{secret:?}"), "Secret(..)");
/// # Ok::<(), dtensor_rpc::Error>(())
/// ```
#[derive(Clone)]
pub struct Secret([u8; Secret::LENGTH]);

impl Secret {
    /// Bytes of a secret.
    pub const LENGTH: usize = 32;

    /// One that nobody can guess, from the operating system.
    pub fn random() -> Result<Secret> {
        let mut bytes = [0; Secret::LENGTH];
        getrandom::fill(&mut bytes)
            .map_err(|error| Error::NoRandomBytes { why: error.to_string().into() })?;
        Ok(Secret(bytes))
    }

    /// One that was agreed on elsewhere.
    pub fn from_bytes(bytes: [u8; Secret::LENGTH]) -> Secret {
        Secret(bytes)
    }

    /// The bytes, to be passed on to other workers of the run.
    pub fn as_bytes(&self) -> &[u8; Secret::LENGTH] {
        &self.0
    }
}

/// In a time that does not depend on where they differ.
impl PartialEq for Secret {
    fn eq(&self, other: &Secret) -> bool {
        blake3::Hash::from_bytes(self.0) == blake3::Hash::from_bytes(other.0)
    }
}

impl Eq for Secret {}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(..)")
    }
}
