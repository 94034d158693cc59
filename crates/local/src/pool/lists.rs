//! The lists of buffers that wait to be used again.

use std::{
    alloc::{alloc_zeroed, dealloc, handle_alloc_error},
    cell::RefCell,
    collections::BTreeMap,
    ptr::NonNull,
    sync::{
        Mutex, MutexGuard, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
};

use super::{large, system_layout};

const LARGEST_SMALL: usize = 16 << 10;
const LARGEST_MEDIUM: usize = 1 << 20;
const SMALLEST: usize = 64;
/// Buffers of one class that a thread keeps for itself.
const MAX_SMALL_KEPT: usize = 64;

/// Numbers about the pool.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PoolStats {
    /// Bytes in use by tensors, rounded up to classes; buffers of up to 16 KiB aside.
    pub used_bytes: usize,
    /// Bytes kept for reuse.
    pub kept_bytes: usize,
    /// The limit of that.
    pub limit_bytes: usize,
    /// How often memory was asked of the system since the process began.
    pub allocations: usize,
    /// How often a buffer was used again.
    pub reuses: usize,
}

/// A buffer that waits: only its address, so that the lists may move between threads.
#[derive(Clone, Copy)]
struct Free(NonNull<u8>);

// SAFETY: A free buffer belongs to whoever takes it from its list; no thread has a special right.
unsafe impl Send for Free {}

struct Shared {
    by_class: BTreeMap<usize, Vec<Free>>,
    stats: PoolStats,
}

static SHARED: Mutex<Shared> = Mutex::new(Shared {
    by_class: BTreeMap::new(),
    stats: PoolStats {
        used_bytes: 0,
        kept_bytes: 0,
        limit_bytes: 4 << 30,
        allocations: 0,
        reuses: 0,
    },
});

/// Small buffers are counted apart, without the lock.
static SMALL_ALLOCATIONS: AtomicUsize = AtomicUsize::new(0);

/// A thread's own lists, given back to the system when it ends.
#[derive(Default)]
struct SmallLists([Vec<Free>; LARGEST_SMALL.ilog2() as usize + 1]);

thread_local! {
    static SMALL: RefCell<SmallLists> = RefCell::default();
}

/// Memory for at least this many bytes, which are not zero: all of them initialised.
#[inline]
pub(super) fn take(bytes: usize) -> NonNull<u8> {
    let class = class_of(bytes);
    if class <= LARGEST_SMALL {
        // While the thread ends its lists are gone, and buffers come from the system.
        let known = SMALL.try_with(|lists| lists.borrow_mut().0[class.ilog2() as usize].pop());
        return match known {
            Ok(Some(free)) => free.0,
            _ => {
                SMALL_ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
                system_allocate(class)
            }
        };
    }
    let mut shared = shared();
    shared.stats.used_bytes += class;
    if let Some(free) = shared.by_class.get_mut(&class).and_then(Vec::pop) {
        shared.stats.kept_bytes -= class;
        shared.stats.reuses += 1;
        return free.0;
    }
    shared.stats.allocations += 1;
    drop(shared);
    allocate(class)
}

/// Takes memory back.
///
/// # Safety
/// `start` came from [`take`] for as many bytes, and nobody uses it.
#[inline]
pub(super) unsafe fn give_back(start: NonNull<u8>, bytes: usize) {
    let class = class_of(bytes);
    if class <= LARGEST_SMALL {
        let kept = SMALL.try_with(|lists| {
            let list = &mut lists.borrow_mut().0[class.ilog2() as usize];
            let room = list.len() < MAX_SMALL_KEPT;
            if room {
                list.push(Free(start));
            }
            room
        });
        if kept != Ok(true) {
            // SAFETY: The caller's promise.
            unsafe { dealloc(start.as_ptr(), system_layout(class)) };
        }
        return;
    }
    let mut shared = shared();
    shared.stats.used_bytes -= class;
    if shared.stats.kept_bytes + class <= shared.stats.limit_bytes {
        shared.stats.kept_bytes += class;
        shared.by_class.entry(class).or_default().push(Free(start));
        return;
    }
    drop(shared);
    // SAFETY: The caller's promise.
    unsafe { release(start, class) };
}

pub(super) fn stats() -> PoolStats {
    let mut stats = shared().stats;
    stats.allocations += SMALL_ALLOCATIONS.load(Ordering::Relaxed);
    stats
}

pub(super) fn set_limit(bytes: usize) {
    let mut shared = shared();
    shared.stats.limit_bytes = bytes;
    if shared.stats.kept_bytes > bytes {
        drop(shared);
        trim();
    }
}

pub(super) fn trim() {
    let mut shared = shared();
    let lists = std::mem::take(&mut shared.by_class);
    shared.stats.kept_bytes = 0;
    drop(shared);
    for (class, free) in
        lists.into_iter().flat_map(|(class, list)| list.into_iter().map(move |free| (class, free)))
    {
        // SAFETY: It was in the list of its class, and is in no list now.
        unsafe { release(free.0, class) };
    }
    let _ = SMALL.try_with(|lists| drop(lists.take()));
}

/// The bytes that a buffer of this many really has.
#[inline]
fn class_of(bytes: usize) -> usize {
    if bytes <= LARGEST_MEDIUM {
        return bytes.max(SMALLEST).next_power_of_two();
    }
    // Tensors have fewer than `isize::MAX` bytes, so rounding up does not overflow.
    bytes.next_multiple_of(large::HUGE_PAGE)
}

fn allocate(class: usize) -> NonNull<u8> {
    if class <= LARGEST_MEDIUM {
        return system_allocate(class);
    }
    large::allocate(class).unwrap_or_else(|| {
        // What is kept for reuse may be what is missing.
        trim();
        large::allocate(class).unwrap_or_else(|| handle_alloc_error(system_layout(class)))
    })
}

fn system_allocate(class: usize) -> NonNull<u8> {
    let layout = system_layout(class);
    // SAFETY: Classes are not zero.
    let start = unsafe { alloc_zeroed(layout) };
    NonNull::new(start).unwrap_or_else(|| handle_alloc_error(layout))
}

/// # Safety
/// As [`give_back`], for memory of this class.
unsafe fn release(start: NonNull<u8>, class: usize) {
    // SAFETY: The caller's promise.
    unsafe {
        if class <= LARGEST_MEDIUM {
            dealloc(start.as_ptr(), system_layout(class));
        } else {
            large::release(start, class);
        }
    }
}

fn shared() -> MutexGuard<'static, Shared> {
    // The lists are changed by single pushes and pops: a panic leaves them whole.
    SHARED.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Drop for SmallLists {
    fn drop(&mut self) {
        for (power, list) in self.0.iter_mut().enumerate() {
            for free in list.drain(..) {
                // SAFETY: It was in the list of its class, and is in no list now.
                unsafe { dealloc(free.0.as_ptr(), system_layout(1 << power)) };
            }
        }
    }
}
