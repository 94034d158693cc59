//! What tells the workers of one run from everybody else.

use std::{fmt, hint::black_box};

use http::{HeaderMap, HeaderValue};

use crate::{Error, Result};

/// The header of every request that carries the secret.
const HEADER: &str = "dtensor-secret";

/// 32 bytes that only the workers of one run know. Every request carries them, and what does not is refused
/// before it is read.
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

    /// The value of the header, which is kept out of tables of compression and out of logs.
    pub(crate) fn header(&self) -> (&'static str, HeaderValue) {
        let mut digits = [0; 2 * Secret::LENGTH];
        for (pair, byte) in digits.chunks_exact_mut(2).zip(self.0) {
            pair.copy_from_slice(&[digit(byte >> 4), digit(byte & 15)]);
        }
        // Hexadecimal digits are always a header.
        let mut value = HeaderValue::from_bytes(&digits).unwrap_or(HeaderValue::from_static(""));
        value.set_sensitive(true);
        (HEADER, value)
    }

    /// Whether a request carries it.
    pub(crate) fn admits(&self, headers: &HeaderMap) -> bool {
        let (_, own) = self.header();
        headers.get(HEADER).is_some_and(|given| is_same(given.as_bytes(), own.as_bytes()))
    }
}

/// In a time that does not depend on where they differ.
impl PartialEq for Secret {
    fn eq(&self, other: &Secret) -> bool {
        is_same(&self.0, &other.0)
    }
}

impl Eq for Secret {}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(..)")
    }
}

/// Compares all bytes, wherever the first difference is, so that the time of an answer tells a guesser
/// nothing.
fn is_same(a: &[u8], b: &[u8]) -> bool {
    if a.len() != b.len() {
        return false;
    }
    let mut differences = 0;
    for (a, b) in a.iter().zip(b) {
        differences = black_box(differences | (a ^ b));
    }
    black_box(differences) == 0
}

fn digit(half: u8) -> u8 {
    b"0123456789abcdef"[usize::from(half & 15)]
}
