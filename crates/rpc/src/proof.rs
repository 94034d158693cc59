//! What requests and answers show instead of the secret itself.
//!
//! A request has three headers: the number of its caller, a nonce, and a *proof*, the keyed hash (BLAKE3, its key the
//! secret) of the text `dtensor-rpc request`, the number of the callee in 8 bytes little-endian, and of path, caller
//! and nonce as they stand in the request, each after its length in 8 bytes. The headers of the answer have the
//! same with the text `dtensor-rpc answer`. All hashes are hexadecimal digits.
//!
//! So whoever listens where a worker once did learns nothing that another worker would accept, and can answer
//! nothing that a caller would: for that it would need the secret, or the answer to a nonce that was never used.

use blake3::{Hash, Hasher};
use http::{HeaderMap, HeaderName, HeaderValue};

use crate::{Error, Result, Secret, wire};

/// The header with bytes that no other request has.
const NONCE: HeaderName = HeaderName::from_static("dtensor-nonce");
/// The header with the proof, of requests and of answers.
const PROOF: HeaderName = HeaderName::from_static("dtensor-proof");

const REQUEST: &[u8] = b"dtensor-rpc request";
const ANSWER: &[u8] = b"dtensor-rpc answer";

/// What an answer has to show.
#[derive(Clone, Copy)]
pub(crate) struct Proof(Hash);

impl Proof {
    /// Signs the head of a request, which has everything else already. Returns what the answer has to show.
    pub(crate) fn sign(
        secret: &Secret,
        callee: usize,
        path: &str,
        headers: &mut HeaderMap,
    ) -> Result<Proof> {
        headers.insert(NONCE, digits(Hash::from_bytes(*Secret::random()?.as_bytes())));
        let unsigned = || Error::BadMethod { method: path.into() };
        let [request, answer] = proofs(secret, callee, path, headers).ok_or_else(unsigned)?;
        headers.insert(PROOF, digits(request.0));
        Ok(answer)
    }

    /// What to show in the answer to a request, if that was signed for this worker by one that knows the secret.
    pub(crate) fn of_request(
        secret: &Secret,
        me: usize,
        path: &str,
        headers: &HeaderMap,
    ) -> Option<Proof> {
        let [request, answer] = proofs(secret, me, path, headers)?;
        request.is_shown_by(headers).then_some(answer)
    }

    pub(crate) fn show(self, headers: &mut HeaderMap) {
        headers.insert(PROOF, digits(self.0));
    }

    pub(crate) fn is_shown_by(self, headers: &HeaderMap) -> bool {
        let given = headers.get(PROOF).and_then(|given| Hash::from_hex(given.as_bytes()).ok());
        // Hashes are compared in a time that does not depend on where they differ: it tells a guesser nothing.
        given.is_some_and(|given| given == self.0)
    }
}

/// Of a request, and of its answer.
fn proofs(secret: &Secret, callee: usize, path: &str, headers: &HeaderMap) -> Option<[Proof; 2]> {
    let parts =
        [path.as_bytes(), headers.get(wire::CALLER)?.as_bytes(), headers.get(NONCE)?.as_bytes()];
    let proof = |says: &[u8]| {
        let mut hasher = Hasher::new_keyed(secret.as_bytes());
        hasher.update(says).update(&(callee as u64).to_le_bytes());
        for part in parts {
            hasher.update(&(part.len() as u64).to_le_bytes()).update(part);
        }
        Proof(hasher.finalize())
    };
    Some([proof(REQUEST), proof(ANSWER)])
}

/// As a header that is kept out of tables of compression and out of logs.
fn digits(hash: Hash) -> HeaderValue {
    // Hexadecimal digits are always a header.
    let digits = HeaderValue::from_str(&hash.to_hex());
    let mut value = digits.unwrap_or(HeaderValue::from_static(""));
    value.set_sensitive(true);
    value
}

#[cfg(test)]
mod tests {
    use super::*;

    fn signed(secret: &Secret, callee: usize, path: &str) -> (HeaderMap, Proof) {
        let mut headers = HeaderMap::new();
        headers.insert(wire::CALLER, HeaderValue::from_static("3"));
        let answer = Proof::sign(secret, callee, path, &mut headers).unwrap();
        (headers, answer)
    }

    #[test]
    fn a_request_is_for_one_worker_and_one_method_and_its_answer_for_it_alone() {
        let secret = Secret::random().unwrap();
        let (request, answer) = signed(&secret, 1, "/a");
        let shown = |proof: Proof| {
            let mut headers = HeaderMap::new();
            proof.show(&mut headers);
            headers
        };
        let given = Proof::of_request(&secret, 1, "/a", &request).unwrap();
        assert!(answer.is_shown_by(&shown(given)));
        // Of another worker, method, run, caller; and of another request of the same kind.
        assert!(Proof::of_request(&secret, 2, "/a", &request).is_none());
        assert!(Proof::of_request(&secret, 1, "/b", &request).is_none());
        assert!(Proof::of_request(&Secret::random().unwrap(), 1, "/a", &request).is_none());
        let mut other = request.clone();
        other.insert(wire::CALLER, HeaderValue::from_static("4"));
        assert!(Proof::of_request(&secret, 1, "/a", &other).is_none());
        assert!(!answer.is_shown_by(&request));
        assert!(!answer.is_shown_by(&shown(signed(&secret, 1, "/a").1)));
        assert!(!answer.is_shown_by(&HeaderMap::new()));
    }

    #[test]
    fn the_secret_itself_is_not_sent() {
        let secret = Secret::random().unwrap();
        let (request, _) = signed(&secret, 1, "/a");
        let secret = Hash::from_bytes(*secret.as_bytes()).to_hex();
        assert!(request.values().all(|value| value.as_bytes() != secret.as_bytes()));
    }
}
