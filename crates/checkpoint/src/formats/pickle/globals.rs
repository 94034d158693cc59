//! The names that a pickle may ask for.

use crate::StoredType;

/// What a pickle may name: classes that hold plain data, and functions whose calls describe plain data.
///
/// Old names of things that have moved are names of the same thing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Global {
    // Python.
    OrderedDict,
    DefaultDict,
    Set,
    /// `bytes` or `bytearray`.
    Bytes,
    Complex,
    /// A type that `defaultdict` makes its defaults with.
    DefaultFactory,
    /// `_codecs.encode`: how bytes are written in protocol 2.
    Encode,
    /// `getattr`, of nothing but an enum of the list, which is how Python 3.11.0 to 3.11.3 write its members, and of the one class
    /// within another.
    GetAttr,
    /// A path of the file system that wrote it.
    Path,
    /// An object that is nothing but its attributes.
    Namespace,

    // NumPy.
    NumpyScalar,
    NumpyDType,

    // PyTorch.
    DType(StoredType),
    /// Class of storages with elements of a type.
    Storage(StoredType),
    /// Storages of bytes.
    UntypedStorage,
    Size,
    Device,
    GetLayout,
    RebuildTensor,
    RebuildTensorV2,
    RebuildTensorV3,
    RebuildParameter,
    RebuildParameterWithState,
    RebuildFromType,
    RebuildWrapper,
    /// The class of plain tensors, or that of parameters.
    TensorClass,

    // `torch.distributed._shard`.
    ShardedTensor,
    ShardedTensorMetadata,
    Shard,
    ShardMetadata,
    /// Either of the two classes of specs.
    ShardingSpec,
    /// The place of a shard.
    RemoteDevice,
    /// A class within that of sharded tensors, which is named by `getattr`.
    ProcessGroupState,

    // `torch.distributed.checkpoint`.
    Metadata,
    MetadataIndex,
    TensorStorageMetadata,
    BytesStorageMetadata,
    ChunkStorageMetadata,
    TensorProperties,
    MemoryFormat,
    StorageMeta,
    StorageInfo,
}

impl Global {
    /// What this name stands for, if it is one of the known.
    pub fn find(module: &str, name: &str) -> Option<Global> {
        Some(match (module, name) {
            ("collections", "OrderedDict") => Global::OrderedDict,
            ("collections", "defaultdict") => Global::DefaultDict,
            ("__builtin__" | "builtins", "set" | "frozenset") => Global::Set,
            ("__builtin__" | "builtins", "bytearray" | "bytes") => Global::Bytes,
            ("__builtin__" | "builtins", "complex") => Global::Complex,
            ("__builtin__" | "builtins", "dict" | "float" | "int" | "list" | "str") => {
                Global::DefaultFactory
            }
            ("__builtin__" | "builtins", "getattr") => Global::GetAttr,
            ("_codecs", "encode") => Global::Encode,
            (
                "pathlib" | "pathlib._local",
                "Path" | "PosixPath" | "PurePath" | "PurePosixPath" | "PureWindowsPath"
                | "WindowsPath",
            ) => Global::Path,
            ("argparse", "Namespace") | ("types", "SimpleNamespace") => Global::Namespace,
            ("numpy.core.multiarray" | "numpy._core.multiarray", "scalar") => Global::NumpyScalar,
            ("numpy", "dtype") => Global::NumpyDType,
            ("torch", "Size") => Global::Size,
            ("torch", "device") => Global::Device,
            ("torch", "Tensor") | ("torch.nn.parameter", "Parameter" | "Buffer") => {
                Global::TensorClass
            }
            ("torch", name) => match name.strip_suffix("Storage") {
                Some(name) => Global::Storage(storage(name)?),
                None => Global::DType(dtype(name)?),
            },
            ("torch.storage", "UntypedStorage" | "_UntypedStorage") => Global::UntypedStorage,
            ("torch.serialization", "_get_layout") => Global::GetLayout,
            ("torch._utils", "_rebuild_tensor") => Global::RebuildTensor,
            ("torch._utils", "_rebuild_tensor_v2") => Global::RebuildTensorV2,
            ("torch._utils", "_rebuild_tensor_v3") => Global::RebuildTensorV3,
            ("torch._utils", "_rebuild_parameter") => Global::RebuildParameter,
            ("torch._utils", "_rebuild_parameter_with_state") => Global::RebuildParameterWithState,
            ("torch._utils", "_rebuild_wrapper_subclass") => Global::RebuildWrapper,
            ("torch._tensor", "_rebuild_from_type_v2") => Global::RebuildFromType,
            ("torch.distributed._shard.sharded_tensor.api", "ShardedTensor") => {
                Global::ShardedTensor
            }
            ("torch.distributed._shard.sharded_tensor.metadata", "ShardedTensorMetadata") => {
                Global::ShardedTensorMetadata
            }
            ("torch.distributed._shard.sharded_tensor.shard", "Shard") => Global::Shard,
            ("torch.distributed._shard.metadata", "ShardMetadata") => Global::ShardMetadata,
            ("torch.distributed._shard.sharding_spec.api", "EnumerableShardingSpec")
            | ("torch.distributed._shard.sharding_spec.chunk_sharding_spec", "ChunkShardingSpec") => {
                Global::ShardingSpec
            }
            ("torch.distributed.remote_device", "_remote_device") => Global::RemoteDevice,
            ("torch.distributed.checkpoint.metadata", name) => match name {
                "Metadata" => Global::Metadata,
                "MetadataIndex" => Global::MetadataIndex,
                "TensorStorageMetadata" => Global::TensorStorageMetadata,
                "BytesStorageMetadata" => Global::BytesStorageMetadata,
                "ChunkStorageMetadata" => Global::ChunkStorageMetadata,
                "TensorProperties" => Global::TensorProperties,
                "_MEM_FORMAT_ENCODING" => Global::MemoryFormat,
                "StorageMeta" => Global::StorageMeta,
                _ => return None,
            },
            // Up to PyTorch 2.2.
            ("torch.distributed._shard.sharded_tensor.metadata", "TensorProperties") => {
                Global::TensorProperties
            }
            ("torch.distributed._shard.sharded_tensor.metadata", "MEM_FORMAT_ENCODING") => {
                Global::MemoryFormat
            }
            ("torch.distributed.checkpoint.filesystem", "_StorageInfo") => Global::StorageInfo,
            _ => return None,
        })
    }
}

/// PyTorch's name of an element type.
pub(crate) fn dtype_name(stored: StoredType) -> &'static str {
    match stored {
        StoredType::Bool => "torch.bool",
        StoredType::U8 => "torch.uint8",
        StoredType::I8 => "torch.int8",
        StoredType::U16 => "torch.uint16",
        StoredType::I16 => "torch.int16",
        StoredType::U32 => "torch.uint32",
        StoredType::I32 => "torch.int32",
        StoredType::U64 => "torch.uint64",
        StoredType::I64 => "torch.int64",
        StoredType::F8E4M3 => "torch.float8_e4m3fn",
        StoredType::F8E5M2 => "torch.float8_e5m2",
        StoredType::F8E8M0 => "torch.float8_e8m0fnu",
        StoredType::F8E4M3Fnuz => "torch.float8_e4m3fnuz",
        StoredType::F8E5M2Fnuz => "torch.float8_e5m2fnuz",
        StoredType::F16 => "torch.float16",
        StoredType::Bf16 => "torch.bfloat16",
        StoredType::F32 => "torch.float32",
        StoredType::F64 => "torch.float64",
        StoredType::C64 => "torch.complex64",
        StoredType::C128 => "torch.complex128",
    }
}

/// `float32` of `torch.float32`.
fn dtype(name: &str) -> Option<StoredType> {
    let named = |stored: &StoredType| dtype_name(*stored).strip_prefix("torch.") == Some(name);
    StoredType::ALL.into_iter().find(named)
}

/// `Float` of `torch.FloatStorage`.
fn storage(name: &str) -> Option<StoredType> {
    Some(match name {
        "Bool" => StoredType::Bool,
        "Byte" => StoredType::U8,
        "Char" => StoredType::I8,
        "Short" => StoredType::I16,
        "Int" => StoredType::I32,
        "Long" => StoredType::I64,
        "Half" => StoredType::F16,
        "BFloat16" => StoredType::Bf16,
        "Float" => StoredType::F32,
        "Double" => StoredType::F64,
        "ComplexFloat" => StoredType::C64,
        "ComplexDouble" => StoredType::C128,
        _ => return None,
    })
}
