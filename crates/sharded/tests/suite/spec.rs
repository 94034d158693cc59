//! Specs, what they check, and how they are found again.

use dtensor_sharded::{
    ChunkShardingSpec, DType, EnumerableShardingSpec, Error, Result, ShardMetadata,
    ShardedTensorMetadata, ShardingSpec, TensorProperties, check_covers, check_no_overlap,
    chunk_of_rank, chunked_dim_size, infer_sharding_spec, shard_tensor, split_size, zeros,
};
use dtensor_testing::spmd;
use proptest::prelude::*;

use crate::support::{Grid, boxed, chunks, cut, numbered, same_error};

fn built(spec: &dyn ShardingSpec, size: &[usize]) -> Vec<ShardMetadata> {
    spec.build_metadata(size, &TensorProperties::default()).unwrap().shards_metadata
}

fn spans(shards: &[ShardMetadata], dim: usize) -> Vec<(usize, usize)> {
    shards.iter().map(|shard| (shard.offsets()[dim], shard.sizes()[dim])).collect()
}

#[test]
fn chunks_are_those_of_torch_chunk_but_always_as_many_as_placements() {
    let cases: [(usize, [(usize, usize); 4]); 5] = [
        (10, [(0, 3), (3, 3), (6, 3), (9, 1)]),
        (9, [(0, 3), (3, 3), (6, 3), (9, 0)]),
        (5, [(0, 2), (2, 2), (4, 1), (5, 0)]),
        (2, [(0, 1), (1, 1), (2, 0), (2, 0)]),
        (0, [(0, 0), (0, 0), (0, 0), (0, 0)]),
    ];
    for (size, want) in cases {
        let shards = built(&*chunks(0, &[0, 1, 2, 3]), &[size, 3]);
        assert_eq!(spans(&shards, 0), want, "{size}");
        assert_eq!(spans(&shards, 1), [(0, 3); 4]);
        assert_eq!(spans(&built(&*chunks(-1, &[0, 1, 2, 3]), &[3, size]), 1), want, "{size}");
    }
}

#[test]
fn a_dim_that_is_not_there_is_refused() {
    for dim in [2, 3, 4, -3, -4, -5] {
        let error =
            chunks(dim, &[0, 1]).build_metadata(&[4, 4], &TensorProperties::default()).unwrap_err();
        assert_eq!(error, Error::DimOutOfRange { op: "chunk sharding".into(), dim, n_dims: 2 });
    }
}

#[test]
fn chunks_need_placements_that_parse() {
    assert_eq!(ChunkShardingSpec::new::<&str>(0, &[]), Err(Error::NoPlacements));
    assert!(matches!(ChunkShardingSpec::new(0, &["rank:x/cpu"]), Err(Error::BadPlacement { .. })));
    // A placement that no tensor can lie in is a placement.
    let spec = ChunkShardingSpec::new(0, &["worker0/cuda:1", "cuda:2", "rank:3/cpu"]).unwrap();
    assert_eq!(spec.placements().len(), 3);
}

#[test]
fn the_arithmetic_of_chunks_is_there_for_others() {
    assert_eq!(
        [split_size(10, 4), split_size(11, 3), split_size(3, 10), split_size(0, 2)],
        [3, 4, 1, 0]
    );
    let sizes = |n: usize, k: usize| {
        (0..k).map(|i| chunked_dim_size(n, split_size(n, k), i)).collect::<Vec<_>>()
    };
    assert_eq!(sizes(10, 4), [3, 3, 3, 1]);
    assert_eq!(sizes(5, 4), [2, 2, 1, 0]);
    let spec = ChunkShardingSpec::over_ranks(0, [2, 0, 1, 1]).unwrap();
    assert_eq!(chunk_of_rank(10, &spec, 2), Some((0, 3)));
    assert_eq!(chunk_of_rank(10, &spec, 0), Some((3, 3)));
    // Several chunks, or none, are not one.
    assert_eq!(chunk_of_rank(10, &spec, 1), None);
    assert_eq!(chunk_of_rank(10, &spec, 9), None);
}

#[test]
fn a_list_of_shards_is_not_empty_and_of_one_number_of_dims() {
    assert!(matches!(EnumerableShardingSpec::new(Vec::new()), Err(Error::NoShards { .. })));
    let mixed = vec![boxed(&[0], &[2], 0), boxed(&[0, 2], &[2, 2], 1)];
    assert_eq!(EnumerableShardingSpec::new(mixed), Err(Error::MixedDims { first: 1, other: 2 }));
}

#[test]
fn a_list_covers_the_tensor_or_is_refused() {
    let halves = |end: usize| vec![boxed(&[0, 0], &[5, 5], 0), boxed(&[5, 0], &[end - 5, 5], 1)];
    let spec = EnumerableShardingSpec::new(halves(10)).unwrap();
    let props = TensorProperties::default();
    assert_eq!(spec.build_metadata(&[10, 5], &props).unwrap().shards_metadata, halves(10));
    let error = |size: &[usize]| spec.build_metadata(size, &props).unwrap_err();
    assert_eq!(error(&[10, 5, 5]), Error::WrongDims { tensor: 3, shards: 2 });
    assert!(matches!(error(&[9, 5]), Error::OutOfBounds { dim: 0, size: 9, .. }));
    assert_eq!(error(&[10, 6]), Error::NotCovered { shards: 50, tensor: 60 });
}

#[test]
fn overlaps_are_found_in_any_number_of_dims() {
    type Boxes = &'static [(&'static [usize], &'static [usize])];
    let overlapping: [Boxes; 9] = [
        &[(&[0, 0], &[5, 5]), (&[4, 0], &[5, 5])],
        &[(&[0, 0], &[5, 5]), (&[0, 4], &[5, 5])],
        &[(&[5, 0, 5], &[5, 5, 5]), (&[5, 5, 5], &[5, 5, 5]), (&[0, 4, 4], &[6, 2, 2])],
        &[(&[0, 0], &[9, 1]), (&[3, 0], &[1, 1])],
        &[(&[0, 0], &[4, 4]), (&[0, 0], &[4, 4])],
        &[(&[0], &[10]), (&[1], &[2]), (&[3], &[2])],
        // Empty shards that would cut another in two, or are all the same and not at the origin.
        &[(&[0, 0], &[6, 6]), (&[3, 0], &[0, 6])],
        &[(&[1, 0], &[0, 6]), (&[1, 0], &[0, 6])],
        &[(&[0, 0, 0], &[2, 2, 2]), (&[2, 0, 0], &[2, 2, 2]), (&[1, 1, 1], &[2, 1, 1])],
    ];
    for case in overlapping {
        let shards: Vec<_> = case.iter().map(|(offsets, sizes)| boxed(offsets, sizes, 0)).collect();
        assert!(matches!(check_no_overlap(&shards), Err(Error::Overlap { .. })), "{case:?}");
    }
    let apart: [Boxes; 7] = [
        &[],
        &[(&[3], &[4])],
        &[(&[0, 0], &[5, 5]), (&[5, 0], &[5, 5]), (&[0, 5], &[5, 5]), (&[5, 5], &[5, 5])],
        &[(&[0, 0], &[0, 0]), (&[0, 0], &[0, 0])],
        &[(&[0, 0], &[6, 6]), (&[6, 0], &[0, 6]), (&[0, 0], &[0, 6])],
        &[
            (&[0, 0, 0], &[1, 4, 4]),
            (&[1, 0, 0], &[1, 2, 4]),
            (&[1, 2, 0], &[1, 2, 1]),
            (&[1, 2, 1], &[1, 2, 3]),
        ],
        &[(&[3], &[0]), (&[3], &[0]), (&[0], &[3]), (&[3], &[3])],
    ];
    for case in apart {
        let shards: Vec<_> = case.iter().map(|(offsets, sizes)| boxed(offsets, sizes, 0)).collect();
        assert_eq!(check_no_overlap(&shards), Ok(()), "{case:?}");
    }
}

/// All pairs, by the definition.
fn overlap_by_pairs(shards: &[ShardMetadata]) -> bool {
    let inside = |a: &ShardMetadata, b: &ShardMetadata| {
        (0..a.n_dims()).all(|dim| {
            a.range(dim).start < b.range(dim).end && b.range(dim).start < a.range(dim).end
        })
    };
    (0..shards.len()).any(|i| (0..i).any(|j| inside(&shards[i], &shards[j])))
}

/// The pieces of a tensor after random cuts of random boxes.
fn partition(n_dims: usize, cuts: &[(usize, usize, usize)]) -> Vec<ShardMetadata> {
    let mut parts = vec![(vec![0; n_dims], vec![12; n_dims])];
    for (which, dim, at) in cuts {
        let index = which % parts.len();
        let (offsets, sizes) = parts[index].clone();
        let dim = dim % n_dims;
        let at = at % (sizes[dim] + 1);
        let (mut left, mut right) = ((offsets.clone(), sizes.clone()), (offsets, sizes));
        left.1[dim] = at;
        right.0[dim] += at;
        right.1[dim] -= at;
        parts[index] = left;
        parts.push(right);
    }
    parts.iter().enumerate().map(|(i, (offsets, sizes))| boxed(offsets, sizes, i % 3)).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    /// Partitions have no overlap, and with one box moved the answer is that of all pairs.
    #[test]
    fn overlaps_are_those_of_all_pairs(
        n_dims in 1..5_usize,
        cuts in proptest::collection::vec((0..1000_usize, 0..4_usize, 1..12_usize), 0..90),
        moved in 0..1000_usize,
        by in 0..4_usize,
    ) {
        let whole: Vec<_> = partition(n_dims, &cuts).into_iter().filter(|shard| !shard.is_empty()).collect();
        prop_assert_eq!(check_no_overlap(&whole), Ok(()));
        prop_assert_eq!(check_covers(&whole, &vec![12; n_dims]), Ok(()));
        let mut shifted = whole.clone();
        let index = moved % shifted.len();
        let offsets: Vec<usize> = shifted[index].offsets().iter().map(|offset| offset + by).collect();
        shifted[index] = boxed(&offsets, whole[index].sizes(), 0);
        prop_assert_eq!(check_no_overlap(&shifted).is_err(), overlap_by_pairs(&shifted));
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(600))]

    /// Boxes without an order, of which many are empty in some dims and many begin together.
    #[test]
    fn overlaps_with_empty_boxes_are_those_of_all_pairs(
        n_dims in 1..5_usize,
        spread in 1..30_usize,
        places in proptest::collection::vec(proptest::array::uniform4(0..1000_usize), 2..70),
        sizes in proptest::collection::vec(proptest::array::uniform4(0..9_usize), 70),
        nonempty_dims in 0..5_usize,
    ) {
        let all: Vec<ShardMetadata> = places
            .iter()
            .zip(&sizes)
            .map(|(place, size)| {
                let offsets: Vec<usize> = place[..n_dims].iter().map(|at| at % (spread * 3)).collect();
                // Small, or nearly all lists would overlap; and in some lists empty in certain dims only.
                let small = |dim: usize| match size[dim] % 3 {
                    0 if dim < nonempty_dims => 1,
                    small => small,
                };
                boxed(&offsets, &(0..n_dims).map(small).collect::<Vec<_>>(), 0)
            })
            .collect();
        // Of boxes that are all the same there is a rule of its own.
        prop_assume!(all.iter().any(|shard| *shard != all[0]));
        prop_assert_eq!(check_no_overlap(&all).is_err(), overlap_by_pairs(&all));
        // The same without those that overlap one before, so that there is something to find only if it is there.
        let mut apart: Vec<ShardMetadata> = Vec::new();
        for shard in all {
            if !apart.iter().any(|other| overlap_by_pairs(&[other.clone(), shard.clone()])) {
                apart.push(shard);
            }
        }
        prop_assume!(apart.iter().any(|shard| *shard != apart[0]));
        prop_assert_eq!(check_no_overlap(&apart), Ok(()));
    }
}

/// Any two of the empty ones lie at the same place, and none of them overlaps anything.
#[test]
fn thousands_of_empty_shards_at_one_place_are_like_any_others() {
    for n_dims in 1..5_usize {
        let digit = |index: usize, dim: usize| index / 10_usize.pow(dim as u32) % 10;
        // Empty in one dim, at `at` there; in the others it spans all.
        let sheet = |dim: usize, at: usize| {
            let (mut offsets, mut sizes) = (vec![0; n_dims], vec![20; n_dims]);
            (offsets[dim], sizes[dim]) = (at, 0);
            boxed(&offsets, &sizes, 1)
        };
        let mut shards: Vec<ShardMetadata> = (0..10_usize.pow(n_dims as u32).min(8000))
            .map(|index| {
                let offsets: Vec<usize> = (0..n_dims).map(|dim| 2 * digit(index, dim)).collect();
                boxed(&offsets, &vec![2; n_dims], 0)
            })
            .collect();
        shards.extend((0..8000).map(|index| sheet(index % n_dims, 0)));
        assert_eq!(check_no_overlap(&shards), Ok(()), "{n_dims}");
        // One that cuts boxes in two.
        shards.push(sheet(0, 3));
        assert!(check_no_overlap(&shards).is_err(), "{n_dims}");
    }
}

#[test]
fn ten_thousand_shards_are_checked_in_every_number_of_dims() {
    // 10,000 = 100 x 100 = 10 x 10 x 10 x 10.
    let grid = |sides: &[usize]| -> Vec<ShardMetadata> {
        let n: usize = sides.iter().product();
        let place = |mut index: usize| {
            let mut offsets: Vec<usize> = sides
                .iter()
                .rev()
                .map(|side| {
                    let at = index % side;
                    index /= side;
                    3 * at
                })
                .collect();
            offsets.reverse();
            offsets
        };
        (0..n).map(|index| boxed(&place(index), &vec![3; sides.len()], index % 7)).collect()
    };
    for sides in [&[10_000][..], &[100, 100], &[20, 25, 20], &[10, 10, 10, 10]] {
        let mut shards = grid(sides);
        assert_eq!(check_no_overlap(&shards), Ok(()));
        let last = shards.len() - 1;
        let offsets: Vec<usize> = shards[last].offsets().iter().map(|offset| offset - 1).collect();
        shards[last] = boxed(&offsets, shards[last].sizes(), 0);
        assert!(check_no_overlap(&shards).is_err(), "{sides:?}");
    }
}

#[test]
fn a_spec_is_found_again_from_its_shards_in_any_order() {
    for n_dims in 1..=5 {
        for dim in 0..n_dims {
            for length in [16, 13, 9, 5, 2] {
                let mut size = vec![3; n_dims];
                size[dim] = length;
                let spec = ChunkShardingSpec::over_ranks(dim as isize, [3, 1, 0, 2]).unwrap();
                let mut shards = built(&spec, &size);
                assert_eq!(
                    infer_sharding_spec(&shards).unwrap().as_chunk(),
                    Some(&spec),
                    "{size:?} by {dim}"
                );
                shards.swap(0, 1);
                assert_eq!(
                    infer_sharding_spec(&shards).unwrap().as_chunk(),
                    Some(&spec),
                    "{size:?} by {dim}"
                );
            }
        }
    }
}

#[test]
fn empty_chunks_may_begin_at_the_end_or_beyond_it() {
    let clipped = [(0, 2), (2, 2), (4, 1), (5, 0)];
    let unclipped = [(0, 2), (2, 2), (4, 1), (6, 0)];
    for list in [clipped, unclipped] {
        let shards: Vec<_> = list
            .iter()
            .enumerate()
            .map(|(rank, (at, n))| boxed(&[*at, 0], &[*n, 3], rank))
            .collect();
        let spec = infer_sharding_spec(&shards).unwrap();
        let found = spec.as_chunk().expect("chunks");
        // What is built from it is clipped.
        assert_eq!(spans(&built(found, &[5, 3]), 0), clipped);
    }
}

#[test]
fn what_is_no_chunk_is_a_list() {
    let lists = [
        // One shard alone; all empty; a grid; chunks of a wrong length; rows of different widths.
        vec![boxed(&[0, 0], &[4, 4], 0)],
        vec![boxed(&[0, 0], &[0, 0], 0), boxed(&[0, 0], &[0, 0], 1)],
        vec![
            boxed(&[0, 0], &[2, 2], 0),
            boxed(&[0, 2], &[2, 2], 1),
            boxed(&[2, 0], &[2, 2], 2),
            boxed(&[2, 2], &[2, 2], 3),
        ],
        vec![boxed(&[0, 0], &[1, 4], 0), boxed(&[1, 0], &[3, 4], 1)],
        vec![boxed(&[0, 0], &[2, 4], 0), boxed(&[2, 0], &[2, 3], 1)],
        // Without a place there is no chunk spec.
        vec![
            ShardMetadata::new(&[0], &[2], None).unwrap(),
            ShardMetadata::new(&[2], &[2], None).unwrap(),
        ],
    ];
    for shards in lists {
        let spec = infer_sharding_spec(&shards).unwrap();
        let found = spec.downcast_ref::<EnumerableShardingSpec>().expect("a list");
        assert_eq!(found.shards(), shards);
    }
}

#[test]
fn a_spec_of_a_user_cuts_tensors_and_is_held_to_its_word() {
    spmd(4, |world| {
        let x = zeros(Grid::over_ranks(2, 0..4), &[6, 8], DType::F32, world)?;
        assert_eq!(x.local_tensor()?.shape(), [3, 4]);
        assert_eq!(
            x.metadata().shards_metadata[world.rank()].offsets(),
            [world.rank() / 2 * 3, world.rank() % 2 * 4]
        );
        // It does not divide: the squares leave a row out.
        let error = zeros(Grid::over_ranks(2, 0..4), &[7, 8], DType::F32, world).unwrap_err();
        assert_eq!(error, Error::NotCovered { shards: 48, tensor: 56 });
        assert_eq!(
            zeros(Grid::over_ranks(2, 0..4), &[7], DType::F32, world).unwrap_err(),
            Error::WrongDims { tensor: 1, shards: 2 }
        );
        Ok(())
    });
}

#[test]
fn specs_survive_storing() {
    let chunk = ChunkShardingSpec::over_ranks(-1, [1, 0]).unwrap();
    let text = serde_json::to_string(&chunk).unwrap();
    assert_eq!(text, r#"{"dim":-1,"placements":["rank:1/cpu","rank:0/cpu"]}"#);
    assert_eq!(serde_json::from_str::<ChunkShardingSpec>(&text).unwrap(), chunk);
    let list =
        EnumerableShardingSpec::new(vec![boxed(&[0], &[2], 0), boxed(&[2], &[1], 1)]).unwrap();
    let text = serde_json::to_string(&list).unwrap();
    assert_eq!(serde_json::from_str::<EnumerableShardingSpec>(&text).unwrap(), list);
    assert!(serde_json::from_str::<EnumerableShardingSpec>("[]").is_err());
    let error =
        serde_json::from_str::<ChunkShardingSpec>(r#"{"dim":0,"placements":[]}"#).unwrap_err();
    assert!(error.to_string().contains(&Error::NoPlacements.to_string()), "{error}");
    assert!(
        serde_json::from_str::<ChunkShardingSpec>(r#"{"dim":0,"placements":["rank:x/cpu"]}"#)
            .is_err()
    );
}

#[test]
fn a_list_with_an_overlap_is_refused_also_when_it_is_read() {
    let over = vec![boxed(&[0, 0], &[5, 5], 0), boxed(&[4, 0], &[5, 5], 1)];
    let (first, second) = (Box::new(over[0].clone()), Box::new(over[1].clone()));
    let error = EnumerableShardingSpec::new(over.clone()).unwrap_err();
    assert_eq!(error, Error::Overlap { first, second });
    let text = serde_json::to_string(&over).unwrap();
    assert!(serde_json::from_str::<EnumerableShardingSpec>(&text).is_err());
}

/// The first half twice: as many elements as the tensor has, and not all of them.
#[derive(Clone, Debug)]
struct FirstHalfTwice;

impl ShardingSpec for FirstHalfTwice {
    fn build_metadata(
        &self,
        size: &[usize],
        properties: &TensorProperties,
    ) -> Result<ShardedTensorMetadata> {
        Ok(ShardedTensorMetadata {
            shards_metadata: (0..2).map(|rank| boxed(&[0], &[size[0] / 2], rank)).collect(),
            size: size.to_vec(),
            tensor_properties: properties.clone(),
        })
    }
}

#[test]
fn a_spec_of_a_user_that_overlaps_is_refused_wherever_it_is_used() {
    let error = same_error(2, |world| zeros(FirstHalfTwice, &[4], DType::F32, world));
    assert!(matches!(error, Error::Overlap { .. }), "{error}");
    let error = same_error(2, |world| shard_tensor(&numbered(&[4]), FirstHalfTwice, 0, world));
    assert!(matches!(error.cause(), Error::Overlap { .. }), "{error}");
    let error = same_error(2, |world| {
        let mut x = cut(&[4], &chunks(0, &[0, 1]), world)?;
        x.reshard(FirstHalfTwice)
    });
    assert!(matches!(error.cause(), Error::Overlap { .. }), "{error}");
}
