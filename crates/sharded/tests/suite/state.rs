//! Tensors as bytes.

use dtensor_sharded::{Error, ProcessGroup, ShardedTensor, load_with_process_group, shard_tensor};
use dtensor_testing::spmd;
use proptest::prelude::*;

use crate::support::{Grid, boxed, chunks, cut, numbered, same_error};

#[test]
fn what_a_rank_stores_it_can_read() {
    spmd(3, |world| {
        let group = ProcessGroup::of_world(world);
        for spec in [
            chunks(0, &[0, 1, 2]),
            chunks(1, &[2, 2, 0, 1]),
            Grid::over_ranks(2, [0, 1, 2, 0]).into(),
        ] {
            let mut x = cut(&[4, 6], &spec, world)?;
            x.set_requires_grad(true)?;
            let bytes = x.to_bytes()?;
            let y = load_with_process_group(&group, || ShardedTensor::from_bytes(&bytes))??;
            assert!(y.equal(&x)?);
            assert!(y.requires_grad());
            let text = serde_json::to_string(&x).unwrap();
            let z: ShardedTensor =
                load_with_process_group(&group, || serde_json::from_str(&text))?.unwrap();
            assert!(z.equal(&x)?);
        }
        let ints = shard_tensor(
            &numbered(&[5]).to_dtype(dtensor_sharded::DType::I64)?,
            chunks(0, &[2, 0]),
            0,
            world,
        )?;
        let y = ShardedTensor::from_bytes_on(&ints.to_bytes()?, &group)?;
        assert_eq!(y.full_tensor()?.to_vec::<i64>()?, [0, 1, 2, 3, 4]);
        Ok(())
    });
}

#[test]
fn a_group_is_said_once_and_forgotten_afterwards() {
    spmd(2, |world| {
        let group = ProcessGroup::of_world(world);
        let bytes = cut(&[4], &chunks(0, &[0, 1]), world)?.to_bytes()?;
        assert!(matches!(ShardedTensor::from_bytes(&bytes), Err(Error::NoGroupToLoad { .. })));
        let inner = load_with_process_group(&group, || load_with_process_group(&group, || ()))?;
        assert_eq!(inner, Err(Error::GroupAlreadySet));
        let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            load_with_process_group(&group, || std::panic::resume_unwind(Box::new(())))
        }));
        assert!(panicked.is_err());
        assert!(matches!(ShardedTensor::from_bytes(&bytes), Err(Error::NoGroupToLoad { .. })));
        Ok(())
    });
}

#[test]
fn another_rank_or_world_is_refused_by_name() {
    let stored = spmd(4, |world| {
        let pair = ProcessGroup::new(world, &[2, 3])?;
        let whole = cut(&[4], &chunks(0, &[0, 1, 2, 3]), world)?.to_bytes()?;
        Ok((whole, cut(&[4], &chunks(0, &[2, 3]), &pair)?.to_bytes()?))
    });
    let refused = |bytes: &[u8], group: &ProcessGroup, want: (&str, i64, i64)| {
        match ShardedTensor::from_bytes_on(bytes, group).unwrap_err() {
            Error::LoadedElsewhere { what, saved, now, .. } => {
                assert_eq!((&*what, saved, now), want)
            }
            other => panic!("{other}"),
        }
    };
    spmd(4, |world| {
        let rank = world.rank();
        let all = ProcessGroup::of_world(world);
        let pair = ProcessGroup::new(world, &[2, 3])?;
        let next = (rank + 1) % 4;
        refused(&stored[next].0, &all, ("rank in the group", next as i64, rank as i64));
        if rank < 2 {
            // Outside of the group there is no rank.
            refused(&stored[rank].0, &pair, ("rank in the group", rank as i64, -1));
            assert_eq!(
                ShardedTensor::from_bytes_on(&stored[rank].1, &pair)?.local_shards().len(),
                0
            );
        } else {
            let other = ProcessGroup::new(world, &[0, 1, rank])?;
            refused(&stored[rank].1, &other, ("rank in the group", rank as i64 - 2, 2));
            assert_eq!(
                ShardedTensor::from_bytes_on(&stored[rank].1, &pair)?.full_tensor()?.numel(),
                4
            );
        }
        let first = ProcessGroup::new(world, &[rank, (rank + 1) % 4, (rank + 2) % 4])?;
        if rank == 0 {
            refused(&stored[0].0, &first, ("size of the group", 4, 3));
        }
        let swapped = ProcessGroup::new(world, &[1, 0, 2, 3])?;
        if rank == 0 {
            refused(&stored[1].0, &swapped, ("rank in the world", 1, 0));
        }
        Ok(())
    });
    spmd(5, |world| {
        let four = ProcessGroup::new(world, &[0, 1, 2, 3])?;
        if world.rank() < 4 {
            refused(&stored[world.rank()].0, &four, ("size of the world", 4, 5));
        }
        Ok(())
    });
}

fn one_rank_bytes() -> Vec<u8> {
    let make =
        |world: &dtensor_sharded::World| Ok(cut(&[2, 2], &chunks(0, &[0]), world)?.to_bytes()?);
    spmd(1, make).remove(0)
}

#[test]
fn bytes_that_are_cut_short_or_too_long_are_refused() {
    let bytes = one_rank_bytes();
    spmd(1, |world| {
        let group = ProcessGroup::of_world(world);
        for end in 0..bytes.len() {
            let error = ShardedTensor::from_bytes_on(&bytes[..end], &group).unwrap_err();
            assert!(matches!(error, Error::BadState { .. }), "{end}: {error}");
        }
        let long = [&bytes[..], &[0]].concat();
        assert!(matches!(ShardedTensor::from_bytes_on(&long, &group), Err(Error::BadState { .. })));
        Ok(())
    });
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    /// Whatever the bytes are, the answer is a tensor or an error.
    #[test]
    fn bytes_that_were_changed_do_no_harm(changes in proptest::collection::vec((0..2000_usize, any::<u8>()), 1..6)) {
        let mut bytes = one_rank_bytes();
        for (at, value) in changes {
            let at = at % bytes.len();
            bytes[at] = value;
        }
        spmd(1, |world| {
            _ = ShardedTensor::from_bytes_on(&bytes, &ProcessGroup::of_world(world));
            Ok(())
        });
    }
}

/// A header in which something says something else, and the bytes of the shards that it was made with.
fn with_header(bytes: &[u8], change: impl FnOnce(&mut serde_json::Value)) -> Vec<u8> {
    let (length, rest) = bytes.split_at(8);
    let length = u64::from_le_bytes(length.try_into().unwrap()) as usize;
    let mut header = serde_json::from_slice(&rest[..length]).unwrap();
    change(&mut header);
    let header = serde_json::to_vec(&header).unwrap();
    [&(header.len() as u64).to_le_bytes(), &*header, &rest[length..]].concat()
}

#[test]
fn a_header_with_shards_of_different_numbers_of_dims_is_the_same_error_on_all() {
    let error = same_error(2, |world| {
        let bytes = cut(&[4, 3], &chunks(0, &[0, 1]), world)?.to_bytes()?;
        let bytes = with_header(&bytes, |header| {
            let list = [boxed(&[0, 0], &[2, 3], 0), boxed(&[2], &[2], 1)];
            header["metadata"]["shards_metadata"] = serde_json::to_value(list).unwrap();
        });
        ShardedTensor::from_bytes_on(&bytes, &ProcessGroup::of_world(world))
    });
    assert_eq!(error, Error::MixedDims { first: 2, other: 1 });
}

/// Boxes of up to three dims on two ranks, small so that many fit together.
fn any_boxes() -> impl Strategy<Value = Vec<dtensor_sharded::ShardMetadata>> {
    let sides = proptest::collection::vec((0..4_usize, 0..4_usize), 0..4);
    let one = (sides, 0..3_usize).prop_map(|(sides, rank)| {
        let (offsets, sizes): (Vec<usize>, Vec<usize>) = sides.into_iter().unzip();
        boxed(&offsets, &sizes, rank)
    });
    proptest::collection::vec(one, 0..5)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    /// As above, but what is changed is still a header: so the checks behind the parser are reached.
    #[test]
    fn headers_that_list_other_shards_do_no_harm(
        all in any_boxes(),
        own in any_boxes(),
        size in proptest::collection::vec(0..5_usize, 0..4),
        which in 1..8_u8,
    ) {
        let bytes = with_header(&one_rank_bytes(), |header| {
            if which & 1 != 0 {
                header["metadata"]["shards_metadata"] = serde_json::to_value(&all).unwrap();
            }
            if which & 2 != 0 {
                header["shards"] = serde_json::to_value(&own).unwrap();
            }
            if which & 4 != 0 {
                header["metadata"]["size"] = serde_json::to_value(&size).unwrap();
                header["spec"] = serde_json::json!({ "Enumerable": &all });
            }
        });
        spmd(1, |world| {
            _ = ShardedTensor::from_bytes_on(&bytes, &ProcessGroup::of_world(world));
            Ok(())
        });
    }
}

#[test]
fn what_a_sub_group_stores_is_read_within_its_scope() {
    spmd(4, |world| {
        let group = ProcessGroup::new(world, &[2, 3])?;
        let x = cut(&[4, 2], &chunks(0, &[3, 2]), &group)?;
        let bytes = x.to_bytes()?;
        let y = load_with_process_group(&group, || ShardedTensor::from_bytes(&bytes))??;
        assert!(y.process_group().is_same(&group));
        assert_eq!(y.metadata().shards_metadata, x.metadata().shards_metadata);
        assert_eq!(y.local_shards().len(), world.rank() / 2);
        if group.rank().is_some() {
            assert_eq!(y.full_tensor()?.to_vec::<f32>()?, numbered(&[4, 2]).to_vec::<f32>()?);
        }
        // In the scope of the world it is not what was stored.
        let all = ProcessGroup::of_world(world);
        let error = load_with_process_group(&all, || ShardedTensor::from_bytes(&bytes))?;
        assert!(matches!(error, Err(Error::LoadedElsewhere { .. })));
        Ok(())
    });
}
