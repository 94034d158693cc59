//! What the elements of a tensor are and how they lie in memory.

use std::fmt;

use dtensor_dtype::DType;
use dtensor_local::Tensor;
use serde::{
    Deserialize, Deserializer, Serialize, Serializer,
    de::{Error as _, SeqAccess, Visitor},
};

/// What is known of the elements of a tensor: the same for all of its shards.
///
/// ```
/// use dtensor_sharded::{DType, TensorProperties};
///
/// let properties = TensorProperties::new(DType::F64).requires_grad(true);
/// assert!(properties.requires_grad && !properties.pin_memory);
/// assert_eq!(TensorProperties::from(DType::F32), TensorProperties::default());
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct TensorProperties {
    /// Element type.
    pub dtype: DType,
    /// Whether all elements are stored.
    pub layout: TensorLayout,
    /// Whether gradients are wanted.
    pub requires_grad: bool,
    /// The order of elements in memory.
    pub memory_format: MemoryFormat,
    /// Whether the memory is locked for transfers to a device. This build has no such memory.
    pub pin_memory: bool,
    /// The strides of the tensor it was made from, where that is known.
    pub strides: Option<Vec<isize>>,
}

/// Whether a tensor stores all of its elements. Only [`Strided`](TensorLayout::Strided) ones can be sharded;
/// the others can be said, to be refused.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TensorLayout {
    /// All elements, at regular distances.
    #[default]
    Strided,
    /// Those that are not zero, by their coordinates.
    SparseCoo,
    /// Those that are not zero, row by row.
    SparseCsr,
}

/// The order of elements in memory. Only [`Contiguous`](MemoryFormat::Contiguous) tensors can be sharded.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum MemoryFormat {
    /// The last dim varies fastest.
    #[default]
    Contiguous,
    /// The second dim varies fastest.
    ChannelsLast,
    /// As in the tensor it is made from.
    Preserve,
}

impl TensorProperties {
    /// Ordinary elements of this type.
    pub fn new(dtype: DType) -> TensorProperties {
        TensorProperties {
            dtype,
            layout: TensorLayout::Strided,
            requires_grad: false,
            memory_format: MemoryFormat::Contiguous,
            pin_memory: false,
            strides: None,
        }
    }

    /// Those of a tensor.
    pub fn of(tensor: &Tensor) -> TensorProperties {
        let strides = Some(tensor.strides().to_vec());
        TensorProperties { strides, ..TensorProperties::new(tensor.dtype()) }
    }

    /// The same, and whether gradients are wanted.
    #[must_use]
    pub fn requires_grad(mut self, requires_grad: bool) -> TensorProperties {
        self.requires_grad = requires_grad;
        self
    }

    /// The same, and whether the memory is locked.
    #[must_use]
    pub fn pin_memory(mut self, pin_memory: bool) -> TensorProperties {
        self.pin_memory = pin_memory;
        self
    }

    /// The same with another layout.
    #[must_use]
    pub fn layout(mut self, layout: TensorLayout) -> TensorProperties {
        self.layout = layout;
        self
    }

    /// The same with another order of elements.
    #[must_use]
    pub fn memory_format(mut self, memory_format: MemoryFormat) -> TensorProperties {
        self.memory_format = memory_format;
        self
    }

    /// The same with another element type.
    #[must_use]
    pub fn dtype(mut self, dtype: DType) -> TensorProperties {
        self.dtype = dtype;
        self
    }
}

/// Those of `f32` elements.
impl Default for TensorProperties {
    fn default() -> TensorProperties {
        TensorProperties::new(DType::F32)
    }
}

impl From<DType> for TensorProperties {
    fn from(dtype: DType) -> TensorProperties {
        TensorProperties::new(dtype)
    }
}

impl From<&TensorProperties> for TensorProperties {
    fn from(properties: &TensorProperties) -> TensorProperties {
        properties.clone()
    }
}

impl MemoryFormat {
    const CODES: [MemoryFormat; 3] =
        [MemoryFormat::Contiguous, MemoryFormat::ChannelsLast, MemoryFormat::Preserve];

    fn code(self) -> u8 {
        match self {
            MemoryFormat::Contiguous => 0,
            MemoryFormat::ChannelsLast => 1,
            MemoryFormat::Preserve => 2,
        }
    }
}

/// As a list of six: dtype, layout, requires_grad, code of the memory format, pin_memory, strides.
impl Serialize for TensorProperties {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        let format = self.memory_format.code();
        let fields = (self.dtype.name(), self.layout, self.requires_grad, format);
        (fields.0, fields.1, fields.2, fields.3, self.pin_memory, &self.strides).serialize(to)
    }
}

/// From a list of six, or of five as older states have it, without the strides.
impl<'de> Deserialize<'de> for TensorProperties {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<TensorProperties, D::Error> {
        from.deserialize_seq(State)
    }
}

struct State;

impl<'de> Visitor<'de> for State {
    type Value = TensorProperties;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the five or six fields of tensor properties")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<TensorProperties, A::Error> {
        let short = |n: usize| A::Error::invalid_length(n, &State);
        let dtype: String = list.next_element()?.ok_or_else(|| short(0))?;
        let layout = list.next_element()?.ok_or_else(|| short(1))?;
        let requires_grad = list.next_element()?.ok_or_else(|| short(2))?;
        let code: usize = list.next_element()?.ok_or_else(|| short(3))?;
        let pin_memory = list.next_element()?.ok_or_else(|| short(4))?;
        let strides = list.next_element()?.unwrap_or(None);
        let memory_format = MemoryFormat::CODES.get(code).ok_or_else(|| {
            A::Error::custom(format!("{code} is no code of a memory format: they are 0, 1 and 2"))
        })?;
        Ok(TensorProperties {
            dtype: dtype.parse().map_err(A::Error::custom)?,
            layout,
            requires_grad,
            memory_format: *memory_format,
            pin_memory,
            strides,
        })
    }
}
