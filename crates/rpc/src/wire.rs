//! The form of what workers send.
//!
//! A request is one message: the bytes that the caller gives. A reply is a stream: a first message, and then
//! the body in pieces, none if it is empty. The first message begins with a byte that says what it is:
//!
//! | byte | then |
//! |---|---|
//! | 0 | the length of the body in 8 bytes, little-endian, and the head: bytes that the handler gives |
//! | 1 | a text: what the handler failed with |
//! | 2 | the number of an object, 8 bytes, that there is not |
//!
//! The headers of both show who sends them: see `proof`.

use bytes::{Buf, BufMut, Bytes, BytesMut};

use crate::{Failure, Reply, handler::FailureKind};

/// Before the name of a method in the path of a request.
pub(crate) const PATH: &str = "/dtensor.Rpc/";
/// The header with the number of the worker that calls.
pub(crate) const CALLER: &str = "dtensor-worker";
/// The header with the time that the caller waits, in milliseconds.
pub(crate) const PATIENCE: &str = "dtensor-timeout-ms";
/// What the first message of a reply has before its head.
pub(crate) const PREFIX: usize = 9;

const REPLY: u8 = 0;
const FAILED: u8 = 1;
const NO_SUCH_OBJECT: u8 = 2;

/// The first message of a reply, read.
pub(crate) enum First {
    Reply { body: u64, head: Bytes },
    Failed(String),
    NoSuchObject(u64),
}

/// The first message of an answer.
pub(crate) fn first_message(answer: &Result<Reply, Failure>) -> Bytes {
    let mut message = BytesMut::new();
    match answer {
        Ok(reply) => {
            message.reserve(PREFIX + reply.head.len());
            message.put_u8(REPLY);
            message.put_u64_le(reply.body_length());
            message.put_slice(&reply.head);
        }
        Err(Failure(FailureKind::Failed(text))) => {
            message.put_u8(FAILED);
            message.put_slice(text.as_bytes());
        }
        Err(Failure(FailureKind::NoSuchObject(number))) => {
            message.put_u8(NO_SUCH_OBJECT);
            message.put_u64_le(*number);
        }
    }
    message.freeze()
}

/// What a first message says, if it says something.
pub(crate) fn read_first(mut message: Bytes) -> Option<First> {
    match message.try_get_u8().ok()? {
        REPLY => Some(First::Reply { body: message.try_get_u64_le().ok()?, head: message }),
        FAILED => Some(First::Failed(String::from_utf8_lossy(&message).into_owned())),
        NO_SUCH_OBJECT => Some(First::NoSuchObject(message.try_get_u64_le().ok()?)),
        _ => None,
    }
}

/// Bytes in pieces of at most `chunk`, which share their memory.
pub(crate) fn pieces(body: Vec<Bytes>, chunk: usize) -> impl Iterator<Item = Bytes> {
    body.into_iter().flat_map(move |mut segment| {
        std::iter::from_fn(move || {
            (!segment.is_empty()).then(|| segment.split_to(chunk.min(segment.len())))
        })
    })
}

/// Whether a method can stand in a path.
pub(crate) fn is_method(method: &str) -> bool {
    let is_allowed = |byte: u8| byte.is_ascii_alphanumeric() || b".-_".contains(&byte);
    !method.is_empty() && method.len() < 256 && method.bytes().all(is_allowed)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn what_is_written_is_read(head: Vec<u8>, body: Vec<Vec<u8>>, text: String, number: u64) {
            let segments = body.iter().cloned().map(Bytes::from);
            let reply = Reply::new(head.clone()).with_body(segments);
            let Some(First::Reply { body: length, head: read }) = read_first(first_message(&Ok(reply)))
            else {
                return Err(TestCaseError::fail("no reply"));
            };
            prop_assert_eq!(length, body.iter().map(|segment| segment.len() as u64).sum::<u64>());
            prop_assert_eq!(read, head);
            let failed = read_first(first_message(&Err(Failure::new(&text))));
            prop_assert!(matches!(failed, Some(First::Failed(read)) if read == text));
            let missing = Failure(FailureKind::NoSuchObject(number));
            let missing = read_first(first_message(&Err(missing)));
            prop_assert!(matches!(missing, Some(First::NoSuchObject(read)) if read == number));
        }

        /// Whatever a worker sends, and wherever it is cut.
        #[test]
        fn any_bytes_are_a_first_message_or_none(kind in 0_u8..5, rest: Vec<u8>) {
            let bytes: Vec<u8> = std::iter::once(kind).chain(rest.iter().copied()).collect();
            let number = rest.first_chunk::<8>().map(|bytes| u64::from_le_bytes(*bytes));
            match (read_first(Bytes::from(bytes)), kind, number) {
                (Some(First::Reply { body, head }), REPLY, Some(number)) => {
                    prop_assert_eq!(body, number);
                    prop_assert_eq!(&head[..], &rest[8..]);
                }
                (Some(First::Failed(text)), FAILED, _) => {
                    prop_assert_eq!(text, String::from_utf8_lossy(&rest));
                }
                (Some(First::NoSuchObject(got)), NO_SUCH_OBJECT, Some(number)) => {
                    prop_assert_eq!(got, number);
                }
                (None, REPLY | NO_SUCH_OBJECT, None) | (None, 3.., _) => {}
                (_, kind, number) => {
                    return Err(TestCaseError::fail(format!("kind {kind}, number {number:?}")));
                }
            }
            prop_assert!(read_first(Bytes::new()).is_none());
        }
    }

    #[test]
    fn a_body_is_cut_into_pieces_without_empty_ones() {
        let body = vec![Bytes::from_static(b"abcde"), Bytes::new(), Bytes::from_static(b"fg")];
        let cut: Vec<Bytes> = pieces(body, 2).collect();
        assert_eq!(cut, ["ab", "cd", "e", "fg"]);
    }

    #[test]
    fn a_first_message_that_is_cut_short_is_none() {
        let message = first_message(&Ok(Reply::new("head")));
        for end in 0..PREFIX {
            assert!(read_first(message.slice(..end)).is_none());
        }
        assert!(
            matches!(read_first(message), Some(First::Reply { body: 0, head }) if head == "head")
        );
        assert!(read_first(Bytes::from_static(&[9, 0, 0])).is_none());
    }
}
