//! The control channel: what ranks tell each other outside of any call.

use super::{
    cause,
    result::{Comm, Request, Source},
    stream::Key,
    wire::{Reader, Writer},
};
use crate::{CommError, transport::FirstCause};

/// One message of the control channel.
pub(super) enum Notice {
    /// "My messages to you in this stream have this number."
    Stream { key: Key, number: u32 },
    /// "My part of the program is over, and it has `failed` or not. On each of these streams I have
    /// begun so many calls, and will begin no more."
    Left { failed: bool, begun: Vec<(Key, u64)> },
    /// "My world has ended for this reason: I take no message any more but those that are already
    /// on their way into my buffers." Sent once by every rank, whether it found the reason or
    /// was told; so it is the acknowledgement as well.
    Ended { cause: FirstCause },
}

const STREAM: u64 = 0;
const LEFT: u64 = 1;
const ENDED: u64 = 2;

impl Notice {
    pub(super) fn to_bytes(&self) -> Box<[u8]> {
        let mut out = Writer::default();
        match self {
            Notice::Stream { key, number } => {
                out.number(STREAM);
                write_key(&mut out, *key);
                out.number(u64::from(*number));
            }
            Notice::Left { failed, begun } => {
                out.number(LEFT);
                out.number(u64::from(*failed));
                out.number(begun.len() as u64);
                for &(key, count) in begun {
                    write_key(&mut out, key);
                    out.number(count);
                }
            }
            Notice::Ended { cause } => {
                out.number(ENDED);
                cause::write(&mut out, cause);
            }
        }
        out.finish()
    }

    fn from_bytes(bytes: &[u8]) -> Option<Notice> {
        let mut from = Reader::new(bytes);
        Some(match from.number()? {
            STREAM => {
                let key = read_key(&mut from)?;
                Notice::Stream { key, number: from.number()?.try_into().ok()? }
            }
            LEFT => {
                let failed = from.number()? != 0;
                let n_streams = from.length()?;
                let mut begun = Vec::with_capacity(n_streams);
                for _ in 0..n_streams {
                    begun.push((read_key(&mut from)?, from.number()?));
                }
                Notice::Left { failed, begun }
            }
            ENDED => Notice::Ended { cause: cause::read(&mut from)? },
            _ => return None,
        })
    }
}

fn write_key(out: &mut Writer, key: Key) {
    out.number(key.0 as u64);
    out.number((key.0 >> 64) as u64);
}

fn read_key(from: &mut Reader<'_>) -> Option<Key> {
    let low = u128::from(from.number()?);
    Some(Key(low | u128::from(from.number()?) << 64))
}

/// This rank's end of the control channel. Nothing here waits.
pub(super) struct Control {
    comm: Comm,
    outgoing: Vec<(Request, Box<[u8]>)>,
    /// Long notices whose bytes are on their way, with their senders.
    incoming: Vec<(Request, Box<[u8]>, usize)>,
}

/// All notices have the same tag.
const TAG: i32 = 0;

impl Control {
    pub(super) fn new(comm: Comm) -> Control {
        Control { comm, outgoing: Vec::new(), incoming: Vec::new() }
    }

    /// Begins to send.
    pub(super) fn send(&mut self, to: usize, bytes: Box<[u8]>) -> Result<(), CommError> {
        // SAFETY: The bytes are on the heap and kept until the request is complete; if `self` is
        // dropped before they are leaked.
        let mut request = unsafe { self.comm.send(bytes.as_ptr(), bytes.len(), to, TAG, false) }?;
        if !request.test()? {
            self.outgoing.push((request, bytes));
        }
        Ok(())
    }

    /// The next notice that has come, and its sender.
    pub(super) fn poll(&mut self) -> Result<Option<(usize, Notice)>, CommError> {
        if let Some(message) = self.comm.probe(Source::Any)? {
            let from = message.from;
            let mut bytes = vec![0; message.bytes].into_boxed_slice();
            // SAFETY: The buffer is as long as the message, on the heap, and kept until the request
            // is complete.
            let request = unsafe { message.receive(bytes.as_mut_ptr()) }?;
            self.incoming.push((request, bytes, from));
        }
        if self.incoming.is_empty() {
            return Ok(None);
        }
        for i in 0..self.incoming.len() {
            if self.incoming[i].0.test()? {
                let (_, bytes, from) = self.incoming.remove(i);
                // What cannot be read is from another version of this library, whose calls would
                // not fit either; it is ignored here and found out there.
                return Ok(Notice::from_bytes(&bytes).map(|notice| (from, notice)));
            }
        }
        Ok(None)
    }

    /// Whether all that was sent has been handed over.
    pub(super) fn is_idle(&mut self) -> Result<bool, CommError> {
        while let Some((request, _)) = self.outgoing.last_mut() {
            if !request.test()? {
                return Ok(false);
            }
            self.outgoing.pop();
        }
        Ok(true)
    }

    /// Gives the communicator back; see [`Comm::free`].
    pub(super) fn free(&self) -> Result<(), CommError> {
        self.comm.free()
    }
}

impl Drop for Control {
    fn drop(&mut self) {
        // MPI may still access what is not complete.
        std::mem::forget(std::mem::take(&mut self.outgoing));
        std::mem::forget(std::mem::take(&mut self.incoming));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn notices_arrive_as_they_were_sent() {
        let key = Key::group(&[3, 1]);
        let bytes = Notice::Stream { key, number: 5 }.to_bytes();
        assert!(matches!(
            Notice::from_bytes(&bytes),
            Some(Notice::Stream { key: k, number: 5 }) if k == key
        ));
        let begun = vec![(key, 9), (Key::WORLD, 2)];
        let bytes = Notice::Left { failed: true, begun: begun.clone() }.to_bytes();
        let read_back = Notice::from_bytes(&bytes);
        assert!(matches!(read_back, Some(Notice::Left { failed: true, begun: b }) if b == begun));
        assert!(Notice::from_bytes(&bytes[..bytes.len() - 1]).is_none());
    }
}
