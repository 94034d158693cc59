//! The bytes of the control channel: numbers and texts, little-endian, lengths first.

/// Writes a message.
#[derive(Default)]
pub(super) struct Writer(Vec<u8>);

impl Writer {
    pub(super) fn number(&mut self, number: u64) {
        self.0.extend_from_slice(&number.to_le_bytes());
    }

    pub(super) fn text(&mut self, text: &str) {
        self.number(text.len() as u64);
        self.0.extend_from_slice(text.as_bytes());
    }

    pub(super) fn finish(self) -> Box<[u8]> {
        self.0.into_boxed_slice()
    }
}

/// Reads a message back. `None` where it ends too early or makes no sense, which only a program of
/// another version could send.
pub(super) struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    pub(super) fn new(bytes: &'a [u8]) -> Reader<'a> {
        Reader(bytes)
    }

    pub(super) fn number(&mut self) -> Option<u64> {
        let (number, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(u64::from_le_bytes(*number))
    }

    pub(super) fn size(&mut self) -> Option<usize> {
        self.number()?.try_into().ok()
    }

    /// The length of a list whose entries take at least 8 bytes each, so that a wrong length cannot
    /// ask for more memory than the message itself has.
    pub(super) fn length(&mut self) -> Option<usize> {
        self.size().filter(|&length| length <= self.0.len() / 8)
    }

    pub(super) fn text(&mut self) -> Option<&'a str> {
        let length = self.size()?;
        let (text, rest) = self.0.split_at_checked(length)?;
        self.0 = rest;
        str::from_utf8(text).ok()
    }
}
