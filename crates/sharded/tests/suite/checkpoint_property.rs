//! Any boxes, saved and loaded as any others.

use dtensor_sharded::{DType, zeros};
use dtensor_testing::spmd;
use proptest::prelude::*;

use crate::{
    checkpoint::{Place, load_one, save_one},
    support::{cut, numbered, partition},
};

type Cuts = Vec<(usize, usize, usize, usize)>;

fn cuts() -> impl Strategy<Value = Cuts> {
    proptest::collection::vec((0..99_usize, 0..4_usize, 0..9_usize, 0..5_usize), 0..10)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]

    #[test]
    fn random_boxes_on_random_ranks_load_as_others(
        from_ranks in 1..5_usize,
        to_ranks in 1..5_usize,
        size in proptest::collection::vec(1..9_usize, 1..4),
        from in cuts(),
        to in cuts(),
    ) {
        let place = Place::new();
        spmd(from_ranks, |world| {
            let x = cut(&size, &partition(&size, &from, from_ranks), world)?;
            Ok(save_one(world, &x, &place.path())?)
        });
        spmd(to_ranks, |world| {
            let mut x = zeros(partition(&size, &to, to_ranks), &size, DType::F32, world)?;
            load_one(world, &mut x, &place.path())?;
            assert!(x.full_tensor()?.equal(&numbered(&size))?);
            Ok(())
        });
    }
}
