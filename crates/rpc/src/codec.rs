//! Messages that are bytes and nothing else.

use bytes::{Buf, BufMut, Bytes};
use tonic::{
    Status,
    codec::{BufferSettings, Codec, DecodeBuf, Decoder, EncodeBuf, Encoder},
};

/// What gRPC calls a codec: the bytes of a message are the message. Nothing is generated, and nothing is
/// parsed here.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Raw;

/// Messages shorter than this are collected before they are sent.
const COLLECTED: usize = 32 * 1024;

impl Codec for Raw {
    type Encode = Bytes;
    type Decode = Bytes;
    type Encoder = Raw;
    type Decoder = Raw;

    fn encoder(&mut self) -> Raw {
        Raw
    }

    fn decoder(&mut self) -> Raw {
        Raw
    }
}

impl Encoder for Raw {
    type Item = Bytes;
    type Error = Status;

    fn encode(&mut self, message: Bytes, into: &mut EncodeBuf<'_>) -> Result<(), Status> {
        into.reserve(message.len());
        into.put(message);
        Ok(())
    }

    fn buffer_settings(&self) -> BufferSettings {
        BufferSettings::new(COLLECTED, COLLECTED)
    }
}

impl Decoder for Raw {
    type Item = Bytes;
    type Error = Status;

    fn decode(&mut self, from: &mut DecodeBuf<'_>) -> Result<Option<Bytes>, Status> {
        // Taken out of the buffer, not copied.
        Ok(Some(from.copy_to_bytes(from.remaining())))
    }
}
