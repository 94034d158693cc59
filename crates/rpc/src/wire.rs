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
    use super::*;

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
