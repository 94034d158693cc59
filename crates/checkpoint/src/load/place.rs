//! The memory of a tensor that is filled.

use dtensor::{DTensor, DType};

use crate::Result;

/// What a rank holds of a tensor, to be filled in any order. Positions are bytes.
pub(super) enum Place<'t> {
    Bytes(&'t mut [u8]),
    /// Only 0 and 1 are bools.
    Bools(&'t mut [bool]),
}

impl Place<'_> {
    pub(super) fn put(&mut self, at: usize, bytes: &[u8]) {
        match self {
            Place::Bytes(place) => {
                crate::read::runs::copy_bytes(bytes, &mut place[at..][..bytes.len()])
            }
            Place::Bools(place) => {
                let place = place[at..].iter_mut().zip(bytes);
                place.for_each(|(place, byte)| *place = *byte != 0);
            }
        }
    }
}

/// Calls `fill` with the memory of what this rank holds. If another tensor shares that memory, this one first gets its own.
pub(super) fn with_place(
    tensor: &mut DTensor,
    fill: impl FnOnce(Place<'_>) -> Result<()>,
) -> Result<()> {
    let mut filled = Ok(());
    tensor.modify_local(|local| {
        let place = match local.dtype() {
            DType::Bool => Place::Bools(local.as_mut_slice::<bool>()?),
            _ => Place::Bytes(local.as_bytes_mut()?),
        };
        filled = fill(place);
        Ok(())
    })?;
    filled
}
