//! Memory for operands of reductions, kept from call to call.

/// At most this much is kept while no call uses it.
const KEPT_BYTES: usize = 64 << 20;

/// And in so many pieces: calls in flight at the same time have one each.
const KEPT_PIECES: usize = 8;

/// Memory that is aligned for every dtype.
pub(super) struct Scratch(Vec<u64>);

impl Scratch {
    pub(super) fn as_mut_ptr(&mut self) -> *mut u8 {
        self.0.as_mut_ptr().cast()
    }
}

/// What is kept.
#[derive(Default)]
pub(super) struct ScratchPool {
    free: Vec<Scratch>,
}

impl ScratchPool {
    /// At least `bytes` bytes, with whatever an earlier call has left in them.
    pub(super) fn take(&mut self, bytes: usize) -> Scratch {
        let words = bytes.div_ceil(8);
        let fitting = self.free.iter().position(|scratch| scratch.0.len() >= words);
        match fitting {
            Some(i) => self.free.swap_remove(i),
            None => Scratch(vec![0; words]),
        }
    }

    /// Keeps it for the next call; the smallest ones go when that becomes too much.
    pub(super) fn give_back(&mut self, scratch: Scratch) {
        self.free.push(scratch);
        self.free.sort_unstable_by_key(|scratch| scratch.0.len());
        while self.free.len() > KEPT_PIECES || self.kept_bytes() > KEPT_BYTES {
            self.free.remove(0);
        }
    }

    fn kept_bytes(&self) -> usize {
        self.free.iter().map(|scratch| scratch.0.len() * 8).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_reused_and_the_largest_is_kept() {
        let mut pool = ScratchPool::default();
        let (small, mut large) = (pool.take(100), pool.take(1 << 20));
        let address = large.as_mut_ptr();
        pool.give_back(large);
        pool.give_back(small);
        assert_eq!(pool.take(1 << 19).as_mut_ptr(), address);
        for _ in 0..2 * KEPT_PIECES {
            pool.give_back(Scratch(vec![0; 8]));
        }
        assert_eq!(pool.free.len(), KEPT_PIECES);
        pool.give_back(Scratch(vec![0; KEPT_BYTES]));
        assert!(pool.kept_bytes() <= KEPT_BYTES);
    }
}
