//! Bytes that are read from front to back.

/// The bytes of a pickle. Whatever is beyond their end is `None`.
pub(super) struct Cursor<'a> {
    bytes: &'a [u8],
    /// The next byte.
    at: usize,
}

impl<'a> Cursor<'a> {
    pub fn new(bytes: &'a [u8]) -> Cursor<'a> {
        Cursor { bytes, at: 0 }
    }

    /// Bytes that have been read.
    pub fn at(&self) -> usize {
        self.at
    }

    /// Bytes that have not.
    pub fn left(&self) -> usize {
        self.bytes.len() - self.at
    }

    pub fn byte(&mut self) -> Option<u8> {
        let [byte] = self.array()?;
        Some(byte)
    }

    pub fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        self.take(N)?.first_chunk().copied()
    }

    /// A number of up to eight bytes, the lowest first.
    pub fn number<const N: usize>(&mut self) -> Option<u64> {
        let mut wide = [0; 8];
        let narrow: [u8; N] = self.array()?;
        wide.get_mut(..N)?.copy_from_slice(&narrow);
        Some(u64::from_le_bytes(wide))
    }

    /// Bytes that come after their number, which has `N` bytes itself.
    pub fn counted<const N: usize>(&mut self) -> Option<&'a [u8]> {
        let length = self.number::<N>()?;
        self.take(usize::try_from(length).ok()?)
    }

    /// What comes before the next end of line; that is read as well.
    pub fn line(&mut self) -> Option<&'a [u8]> {
        let rest = self.bytes.get(self.at..)?;
        let line = self.take(rest.iter().position(|&byte| byte == b'\n')?)?;
        self.byte()?;
        Some(line)
    }

    fn take(&mut self, length: usize) -> Option<&'a [u8]> {
        let end = self.at.checked_add(length)?;
        let bytes = self.bytes.get(self.at..end)?;
        self.at = end;
        Some(bytes)
    }
}
