//! One box of a tensor and where it lies.

use std::{fmt, ops::Range};

use dtensor_layout::IndexBox;
use serde::{Deserialize, Serialize};

use crate::{Error, Result, ShardPlacement};

/// A box of a tensor, by its first index and size in every dim, and the place that it lies in. A box may be
/// empty.
///
/// ```
/// use dtensor_sharded::ShardMetadata;
///
/// let shard = ShardMetadata::new(&[5, 0], &[5, 10], Some("rank:1/cpu".parse()?))?;
/// assert_eq!(shard.to_string(), "[5..10, 0..10] on rank:1/cpu");
/// # Ok::<(), dtensor_sharded::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "Fields", into = "Fields")]
pub struct ShardMetadata {
    offsets: Box<[usize]>,
    sizes: Box<[usize]>,
    placement: Option<ShardPlacement>,
}

impl ShardMetadata {
    /// The box that begins at `offsets` and has these `sizes`.
    pub fn new(
        offsets: &[usize],
        sizes: &[usize],
        placement: Option<ShardPlacement>,
    ) -> Result<ShardMetadata> {
        if offsets.len() != sizes.len() {
            return Err(Error::OffsetsAndSizes { offsets: offsets.into(), sizes: sizes.into() });
        }
        let overflows = |(offset, size): (&usize, &usize)| offset.checked_add(*size).is_none();
        if offsets.iter().zip(sizes).any(overflows) {
            return Err(Error::BoxTooLarge { offsets: offsets.into(), sizes: sizes.into() });
        }
        Ok(ShardMetadata { offsets: offsets.into(), sizes: sizes.into(), placement })
    }

    /// First index in every dim.
    pub fn offsets(&self) -> &[usize] {
        &self.offsets
    }

    /// Size of every dim.
    pub fn sizes(&self) -> &[usize] {
        &self.sizes
    }

    /// Where it lies, if that is said.
    pub fn placement(&self) -> Option<&ShardPlacement> {
        self.placement.as_ref()
    }

    /// The rank of the world that it lies on, if that is said.
    pub fn rank(&self) -> Option<usize> {
        self.placement.as_ref().and_then(ShardPlacement::rank)
    }

    /// Number of dims.
    pub fn n_dims(&self) -> usize {
        self.sizes.len()
    }

    /// Number of elements.
    pub fn numel(&self) -> usize {
        usize::try_from(self.volume()).unwrap_or(usize::MAX)
    }

    /// Whether it has no elements.
    pub fn is_empty(&self) -> bool {
        self.sizes.contains(&0)
    }

    /// Its indices in a dim.
    ///
    /// # Panics
    /// If there is no such dim.
    pub fn range(&self, dim: usize) -> Range<usize> {
        self.offsets[dim]..self.offsets[dim] + self.sizes[dim]
    }

    /// Its indices in every dim.
    pub fn index_box(&self) -> IndexBox {
        IndexBox((0..self.n_dims()).map(|dim| self.range(dim)).collect())
    }

    /// The same box in another place.
    #[must_use]
    pub fn with_placement(mut self, placement: ShardPlacement) -> ShardMetadata {
        self.placement = Some(placement);
        self
    }

    /// The same box. Where it has no indices in a dim, it begins at the end of that dim at the latest: PyTorch
    /// lets empty chunks begin beyond it.
    pub(crate) fn clipped(mut self, size: &[usize]) -> ShardMetadata {
        let dims = self.offsets.iter_mut().zip(&self.sizes).zip(size);
        for ((offset, _), size) in dims.filter(|((_, own), _)| **own == 0) {
            *offset = (*offset).min(*size);
        }
        self
    }

    /// Whether two boxes have indices in common in every dim. A box that is empty in a dim counts as a cut
    /// there: it overlaps what it cuts in two.
    pub(crate) fn overlaps(&self, other: &ShardMetadata) -> bool {
        (0..self.n_dims()).all(|dim| {
            let (a, b) = (self.range(dim), other.range(dim));
            a.start < b.end && b.start < a.end
        })
    }

    /// Volume that does not overflow.
    pub(crate) fn volume(&self) -> u128 {
        volume(&self.sizes)
    }
}

impl fmt::Display for ShardMetadata {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.index_box().fmt(f)?;
        match &self.placement {
            Some(placement) => write!(f, " on {placement}"),
            None => Ok(()),
        }
    }
}

/// Number of elements of a shape, that does not overflow for shapes of tensors; beyond that it is the largest
/// there is.
pub(crate) fn volume(sizes: &[usize]) -> u128 {
    if sizes.contains(&0) {
        return 0;
    }
    sizes.iter().fold(1, |product: u128, size| product.saturating_mul(*size as u128))
}

/// The form in which it is stored.
#[derive(Serialize, Deserialize)]
#[serde(rename = "ShardMetadata")]
struct Fields {
    shard_offsets: Vec<usize>,
    shard_sizes: Vec<usize>,
    placement: Option<ShardPlacement>,
}

impl TryFrom<Fields> for ShardMetadata {
    type Error = Error;

    fn try_from(fields: Fields) -> Result<ShardMetadata> {
        ShardMetadata::new(&fields.shard_offsets, &fields.shard_sizes, fields.placement)
    }
}

impl From<ShardMetadata> for Fields {
    fn from(shard: ShardMetadata) -> Fields {
        Fields {
            shard_offsets: shard.offsets.into(),
            shard_sizes: shard.sizes.into(),
            placement: shard.placement,
        }
    }
}
