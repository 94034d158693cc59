//! Metadata, shards and properties.

use dtensor_sharded::{
    DType, Device, Error, MemoryFormat, Shard, ShardMetadata, ShardPlacement,
    ShardedTensorMetadata, Tensor, TensorLayout, TensorProperties,
};

use crate::support::boxed;

#[test]
fn offsets_and_sizes_have_one_entry_per_dim() {
    let error = ShardMetadata::new(&[0], &[1, 1], None).unwrap_err();
    assert!(matches!(error, Error::OffsetsAndSizes { .. }));
    let error = ShardMetadata::new(&[usize::MAX], &[1], None).unwrap_err();
    assert!(matches!(error, Error::BoxTooLarge { .. }));
    assert!(ShardMetadata::new(&[3, 4], &[0, 5], None).unwrap().is_empty());
}

#[test]
fn metadata_are_equal_by_their_fields() {
    let shard = boxed(&[0, 5], &[2, 3], 1);
    assert_eq!(shard, boxed(&[0, 5], &[2, 3], 1));
    assert_ne!(shard, boxed(&[0, 5], &[2, 3], 2));
    assert_ne!(shard, boxed(&[0, 4], &[2, 3], 1));
}

#[test]
fn a_shard_has_the_size_and_the_device_of_its_metadata() {
    let tensor = Tensor::zeros(&[2, 3], DType::F32).unwrap();
    assert!(Shard::new(tensor.clone(), boxed(&[4, 0], &[2, 3], 0)).is_ok());
    // The rank is not the shard's business.
    assert!(Shard::new(tensor.clone(), boxed(&[4, 0], &[2, 3], 77)).is_ok());
    assert!(
        Shard::new(tensor.clone(), ShardMetadata::new(&[0, 0], &[2, 3], None).unwrap()).is_ok()
    );
    let error = Shard::new(tensor.clone(), boxed(&[0, 0], &[3, 2], 0)).unwrap_err();
    assert!(matches!(error, Error::ShardShape { .. }));
    for place in ["rank:0/cuda:1", "rank:0/cpu:0", "rank:0/meta"] {
        let metadata = ShardMetadata::new(&[0, 0], &[2, 3], Some(place.parse().unwrap())).unwrap();
        let error = Shard::new(tensor.clone(), metadata).unwrap_err();
        assert!(matches!(error, Error::ShardDevice { tensor: Device::CPU, .. }), "{place}");
    }
    let meta = Tensor::meta(&[2], DType::F32).unwrap();
    let shard = Shard::from_tensor_and_offsets(meta, &[3], 2).unwrap();
    assert_eq!(shard.metadata().placement().unwrap().to_string(), "rank:2/meta");
}

#[test]
fn properties_of_a_tensor_have_its_strides() {
    let tensor = Tensor::zeros(&[2, 3], DType::F64).unwrap();
    let properties = TensorProperties::of(&tensor);
    assert_eq!((properties.dtype, properties.strides), (DType::F64, Some(vec![3, 1])));
    assert_eq!(TensorProperties::default().dtype, DType::F32);
}

#[test]
fn properties_are_stored_as_six_fields_and_read_from_five() {
    let properties = TensorProperties::new(DType::Bf16)
        .requires_grad(true)
        .memory_format(MemoryFormat::Preserve);
    let text = serde_json::to_string(&properties).unwrap();
    assert_eq!(text, r#"["bf16","strided",true,2,false,null]"#);
    assert_eq!(serde_json::from_str::<TensorProperties>(&text).unwrap(), properties);
    let old: TensorProperties =
        serde_json::from_str(r#"["f32","sparse_coo",false,1,true]"#).unwrap();
    assert_eq!(old.layout, TensorLayout::SparseCoo);
    assert_eq!((old.memory_format, old.strides), (MemoryFormat::ChannelsLast, None));
    for bad in [
        r#"["f32","strided",true,3,false]"#,
        r#"["f31","strided",true,0,false]"#,
        r#"["f32","strided"]"#,
    ] {
        assert!(serde_json::from_str::<TensorProperties>(bad).is_err(), "{bad}");
    }
}

#[test]
fn metadata_survive_storing() {
    let metadata = ShardedTensorMetadata {
        shards_metadata: vec![
            boxed(&[0, 0], &[2, 3], 1),
            ShardMetadata::new(&[2, 0], &[2, 3], None).unwrap(),
        ],
        size: vec![4, 3],
        tensor_properties: TensorProperties::new(DType::I64),
    };
    let text = serde_json::to_string(&metadata).unwrap();
    assert_eq!(serde_json::from_str::<ShardedTensorMetadata>(&text).unwrap(), metadata);
    let wrong = r#"{"shard_offsets":[0],"shard_sizes":[1,2],"placement":null}"#;
    assert!(serde_json::from_str::<ShardMetadata>(wrong).is_err());
    let wrong = r#"{"shard_offsets":[0],"shard_sizes":[1],"placement":"a/b/c"}"#;
    assert!(serde_json::from_str::<ShardMetadata>(wrong).is_err());
    let placement: ShardPlacement = serde_json::from_str(r#""rank:3/cuda:1""#).unwrap();
    assert_eq!(placement.rank(), Some(3));
}

#[test]
fn properties_of_every_kind_survive_storing_in_every_combination() {
    let layouts = [TensorLayout::Strided, TensorLayout::SparseCoo, TensorLayout::SparseCsr];
    let formats = [MemoryFormat::Contiguous, MemoryFormat::ChannelsLast, MemoryFormat::Preserve];
    let flags = [(false, false), (false, true), (true, false), (true, true)];
    let mut texts = std::collections::BTreeSet::new();
    for dtype in DType::ALL {
        for (layout, format) in layouts.into_iter().flat_map(|one| formats.map(|two| (one, two))) {
            for (requires_grad, pin_memory) in flags {
                let mut properties =
                    TensorProperties::new(dtype).requires_grad(requires_grad).memory_format(format);
                (properties.layout, properties.pin_memory) = (layout, pin_memory);
                let metadata = ShardedTensorMetadata {
                    shards_metadata: vec![boxed(&[0, 0], &[5, 5], 0), boxed(&[5, 0], &[5, 5], 1)],
                    size: vec![10, 5],
                    tensor_properties: properties,
                };
                let text = serde_json::to_string(&metadata).unwrap();
                assert_eq!(serde_json::from_str::<ShardedTensorMetadata>(&text).unwrap(), metadata);
                texts.insert(text);
            }
        }
    }
    // No two are stored alike.
    assert_eq!(texts.len(), DType::ALL.len() * 3 * 3 * 4);
}

#[test]
fn a_shard_survives_storing_with_its_elements() {
    let tensor = Tensor::from_vec(vec![1.5_f64, -2.0], &[1, 2]).unwrap();
    let shard = Shard::new(tensor, boxed(&[3, 0], &[1, 2], 1)).unwrap();
    let text = serde_json::to_string(&shard).unwrap();
    let read: Shard = serde_json::from_str(&text).unwrap();
    assert_eq!(read.metadata(), shard.metadata());
    assert_eq!(read.tensor().to_vec::<f64>().unwrap(), [1.5, -2.0]);
    // One byte less is no shard.
    let short = text.replacen("\"elements\":[0,", "\"elements\":[", 1);
    assert_ne!(short, text);
    assert!(serde_json::from_str::<Shard>(&short).is_err());
    let meta =
        Shard::from_tensor_and_offsets(Tensor::meta(&[1 << 40], DType::F32).unwrap(), &[0], 0)
            .unwrap();
    let read: Shard = serde_json::from_str(&serde_json::to_string(&meta).unwrap()).unwrap();
    assert!(read.tensor().is_meta());
}

#[test]
fn the_order_of_shards_counts() {
    let (a, b) = (boxed(&[0], &[2], 0), boxed(&[2], &[2], 1));
    let of = |shards: Vec<ShardMetadata>| ShardedTensorMetadata {
        shards_metadata: shards,
        size: vec![4],
        tensor_properties: TensorProperties::default(),
    };
    assert_ne!(of(vec![a.clone(), b.clone()]), of(vec![b, a]));
}
