//! A box of a tensor with its values.

use dtensor_dtype::DType;
use dtensor_local::Tensor;
use serde::{Deserialize, Serialize};

use crate::{
    Device, Error, Result, ShardMetadata, ShardPlacement, bytes_form, metadata::dtype_name,
};

/// What a rank holds of a sharded tensor in one box.
///
/// A value: cloning is cheap and shares memory, and what changes one shard copies first if another has it.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(try_from = "Stored", into = "Stored")]
pub struct Shard {
    tensor: Tensor,
    metadata: ShardMetadata,
}

impl Shard {
    /// The values of a box. The tensor must be of its size and, where its placement is known, on that device.
    pub fn new(tensor: Tensor, metadata: ShardMetadata) -> Result<Shard> {
        if tensor.shape() != metadata.sizes() {
            return Err(Error::ShardShape {
                tensor: tensor.shape().into(),
                metadata: metadata.sizes().into(),
            });
        }
        let is_on = Device::of(&tensor);
        match metadata.placement().map(ShardPlacement::device) {
            Some(placement) if placement != is_on => {
                Err(Error::ShardDevice { tensor: is_on, placement })
            }
            _ => Ok(Shard { tensor, metadata }),
        }
    }

    /// The values of the box that begins at `offsets`, on a rank of the world.
    ///
    /// ```
    /// use dtensor_sharded::{Shard, Tensor};
    ///
    /// let shard = Shard::from_tensor_and_offsets(Tensor::full(&[2, 3], 1.0_f32)?, &[4, 0], 1)?;
    /// assert_eq!(shard.metadata().to_string(), "[4..6, 0..3] on rank:1/cpu");
    /// # Ok::<(), dtensor_sharded::Error>(())
    /// ```
    pub fn from_tensor_and_offsets(
        tensor: Tensor,
        offsets: &[usize],
        rank: usize,
    ) -> Result<Shard> {
        let placement = ShardPlacement::on_rank(rank, Device::of(&tensor));
        let metadata = ShardMetadata::new(offsets, tensor.shape(), Some(placement))?;
        Shard::new(tensor, metadata)
    }

    /// The values.
    pub fn tensor(&self) -> &Tensor {
        &self.tensor
    }

    /// Which box, and where.
    pub fn metadata(&self) -> &ShardMetadata {
        &self.metadata
    }

    /// Changes the values, in place if nobody else has them. Size, dtype and device stay: other values are an
    /// error, and zeros are left.
    pub(crate) fn modify(&mut self, change: impl FnOnce(&mut Tensor) -> Result<()>) -> Result<()> {
        let (dtype, device) = (self.tensor.dtype(), Device::of(&self.tensor));
        let changed = change(&mut self.tensor);
        let kept = self.keep(dtype, device);
        changed.and(kept)
    }

    /// The values, taken out so that nobody else has them; to be [put](Self::put) back.
    pub(crate) fn take(&mut self) -> Result<Tensor> {
        let nothing = match self.tensor.is_meta() {
            true => Tensor::meta(&[0], self.tensor.dtype())?,
            false => Tensor::empty(&[0], self.tensor.dtype())?,
        };
        Ok(std::mem::replace(&mut self.tensor, nothing))
    }

    /// Puts back what was taken, changed as in [`modify`](Self::modify).
    pub(crate) fn put(&mut self, values: Tensor) -> Result<()> {
        let (dtype, device) = (self.tensor.dtype(), Device::of(&self.tensor));
        self.tensor = values;
        self.keep(dtype, device)
    }

    /// An error if the values are none of this box. Those that it had are gone then, but a box with values of
    /// another size would spoil whatever is done with the tensor next, on other ranks too.
    fn keep(&mut self, dtype: DType, device: Device) -> Result<()> {
        let (values, sizes) = (&self.tensor, self.metadata.sizes());
        let error = if values.shape() != sizes {
            Error::ShardShape { tensor: values.shape().into(), metadata: sizes.into() }
        } else if (values.dtype(), Device::of(values)) != (dtype, device) {
            let (got, on) = (values.dtype(), Device::of(values));
            let what = format!("values of {got} on {on} in a shard of {dtype} on {device}");
            Error::refused("change of a shard", what, "keep the dtype and the device")
        } else {
            return Ok(());
        };
        self.tensor = match device == Device::META {
            true => Tensor::meta(sizes, dtype)?,
            false => Tensor::zeros(sizes, dtype)?,
        };
        Err(error)
    }

    /// The same values of the box that these metadata describe, which has the same size.
    pub(crate) fn with_metadata(&self, metadata: ShardMetadata) -> Shard {
        Shard { tensor: self.tensor.clone(), metadata }
    }
}

/// The form in which it is stored. A shard without values is stored without bytes.
#[derive(Serialize, Deserialize)]
#[serde(rename = "Shard")]
struct Stored {
    metadata: ShardMetadata,
    #[serde(with = "dtype_name")]
    dtype: DType,
    is_meta: bool,
    #[serde(with = "bytes_form")]
    elements: Vec<u8>,
}

impl From<Shard> for Stored {
    fn from(shard: Shard) -> Stored {
        let tensor = shard.tensor.contiguous();
        Stored {
            metadata: shard.metadata,
            dtype: tensor.dtype(),
            is_meta: tensor.is_meta(),
            elements: tensor.as_bytes().map(<[u8]>::to_vec).unwrap_or_default(),
        }
    }
}

impl TryFrom<Stored> for Shard {
    type Error = Error;

    fn try_from(stored: Stored) -> Result<Shard> {
        let Stored { metadata, dtype, is_meta, elements } = stored;
        let n_bytes = metadata.volume().saturating_mul(dtype.size() as u128);
        let tensor = match is_meta {
            true => Tensor::meta(metadata.sizes(), dtype)?,
            false if n_bytes == elements.len() as u128 => {
                Tensor::from_bytes_with(metadata.sizes(), dtype, |into| {
                    into.copy_from_slice(&elements);
                    Ok::<_, Error>(())
                })?
            }
            false => {
                let what = format!("{} bytes for a shard of {n_bytes}", elements.len());
                return Err(Error::BadState { op: "shard".into(), what: what.into() });
            }
        };
        Shard::new(tensor, metadata)
    }
}
