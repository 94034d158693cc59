//! What is known of a sharded tensor without its values.

mod properties;
mod shard;
mod tensor;

pub use properties::{MemoryFormat, TensorLayout, TensorProperties};
pub use shard::ShardMetadata;
pub(crate) use shard::volume;
pub use tensor::ShardedTensorMetadata;

/// Element types by their names, for forms that have no type of their own for them.
pub(crate) mod dtype_name {
    use dtensor_dtype::DType;
    use serde::{Deserialize, Deserializer, Serializer, de::Error};

    pub(crate) fn serialize<S: Serializer>(dtype: &DType, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_str(dtype.name())
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<DType, D::Error> {
        String::deserialize(from)?.parse().map_err(D::Error::custom)
    }
}
