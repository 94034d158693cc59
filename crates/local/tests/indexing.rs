//! Joining, splitting and picking against plain loops.
#![allow(clippy::unwrap_used, clippy::expect_used)] // A test may.

use dtensor_local::{DType, Tensor};
use proptest::prelude::*;

/// A tensor of increasing numbers, seen in a way that is not consecutive.
fn strided(shape: &[usize], reverse: bool) -> Tensor {
    let turned: Vec<usize> = shape.iter().rev().copied().collect();
    let values: Vec<i32> = (0..shape.iter().product::<usize>() as i32).collect();
    let order: Vec<isize> = (0..shape.len() as isize).rev().collect();
    let tensor = Tensor::from_vec(values, &turned).unwrap().permute(&order).unwrap();
    if reverse { tensor.flip(0).unwrap() } else { tensor }
}

fn at(tensor: &Tensor, index: &[usize]) -> i32 {
    let element = index.iter().fold(tensor.clone(), |part, i| part.select(0, *i as isize).unwrap());
    element.item::<i32>().unwrap()
}

fn indices(shape: &[usize]) -> Vec<Vec<usize>> {
    shape.iter().fold(vec![vec![]], |done, size| {
        done.into_iter()
            .flat_map(|index| (0..*size).map(move |i| [index.clone(), vec![i]].concat()))
            .collect()
    })
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn what_is_split_and_joined_again_is_the_same(
        shape in prop::collection::vec(0usize..6, 1..4),
        dim in 0usize..3,
        parts in 1usize..5,
        reverse: bool,
    ) {
        let dim = (dim % shape.len()) as isize;
        let tensor = strided(&shape, reverse);
        let pieces = tensor.chunk(parts, dim).unwrap();
        prop_assert_eq!(pieces.len(), parts);
        let joined = Tensor::cat(&pieces.iter().collect::<Vec<_>>(), dim).unwrap();
        prop_assert_eq!(joined.shape(), tensor.shape());
        prop_assert_eq!(joined.to_vec::<i32>().unwrap(), tensor.to_vec::<i32>().unwrap());
        let stacked = Tensor::stack(&[&tensor, &tensor], dim).unwrap();
        for one in [0, 1] {
            prop_assert_eq!(stacked.select(dim, one).unwrap().to_vec::<i32>().unwrap(), tensor.to_vec::<i32>().unwrap());
        }
    }

    #[test]
    fn picking_picks_what_the_index_names(
        shape in prop::collection::vec(1usize..6, 1..4),
        dim in 0usize..3,
        picks in prop::collection::vec(0usize..100, 0..7),
        shift in -10isize..10,
        reverse: bool,
    ) {
        let dim = dim % shape.len();
        let tensor = strided(&shape, reverse);
        let picks: Vec<i64> = picks.iter().map(|pick| (pick % shape[dim]) as i64).collect();
        let list = Tensor::from_vec(picks.clone(), &[picks.len()]).unwrap();
        let picked = tensor.index_select(dim as isize, &list).unwrap();
        for index in indices(picked.shape()) {
            let mut source = index.clone();
            source[dim] = picks[index[dim]] as usize;
            prop_assert_eq!(at(&picked, &index), at(&tensor, &source));
        }
        let rolled = tensor.roll(shift, dim as isize).unwrap();
        for index in indices(&shape) {
            let mut target = index.clone();
            target[dim] = (index[dim] as isize + shift).rem_euclid(shape[dim] as isize) as usize;
            prop_assert_eq!(at(&rolled, &target), at(&tensor, &index));
        }
        let smaller: Vec<usize> = shape.iter().enumerate().map(|(other, size)| if other == dim { 3 } else { size.div_ceil(2) }).collect();
        let numbers: Vec<i32> = (0..smaller.iter().product::<usize>()).map(|i| (i * 7 % shape[dim]) as i32).collect();
        let which = Tensor::from_vec(numbers, &smaller).unwrap();
        let gathered = tensor.gather(dim as isize, &which).unwrap();
        for index in indices(&smaller) {
            let mut source = index.clone();
            source[dim] = at(&which, &index) as usize;
            prop_assert_eq!(at(&gathered, &index), at(&tensor, &source));
        }
    }
}

#[test]
fn one_hot_has_one_one_per_row() {
    let hot = Tensor::from_vec(vec![1_i64, 0, 2], &[3]).unwrap().one_hot(3).unwrap();
    assert_eq!(hot.to_vec::<i64>().unwrap(), [0, 1, 0, 1, 0, 0, 0, 0, 1]);
}

#[test]
fn meta_tensors_have_the_shapes_of_the_results() {
    let meta = Tensor::meta(&[4, 6], DType::F32).unwrap();
    let real = Tensor::zeros(&[4, 2], DType::F32).unwrap();
    assert_eq!(Tensor::cat(&[&meta, &real], 1).unwrap().shape(), [4, 8]);
    let list = Tensor::zeros(&[5], DType::I64).unwrap();
    let picked = meta.index_select(1, &list).unwrap();
    assert!(picked.is_meta() && picked.shape() == [4, 5]);
    assert_eq!(
        meta.gather(0, &Tensor::meta(&[1, 6], DType::I32).unwrap()).unwrap().shape(),
        [1, 6]
    );
}

#[test]
fn wrong_requests_say_what_and_how_to_mend_it() {
    let tensor = Tensor::zeros(&[2, 3], DType::F32).unwrap();
    let check = |result: dtensor_local::Result<Tensor>, want: &str| {
        assert_eq!(result.unwrap_err().to_string(), want);
    };
    check(Tensor::cat(&[], 0), "cat: the number of tensors is 0; give at least one");
    check(
        Tensor::cat(&[&tensor, &Tensor::zeros(&[2, 4], DType::F32).unwrap()], 0),
        "cat: shape [2, 4] does not fit shape [2, 3]: all sizes but that of the joined dim must be equal",
    );
    check(
        Tensor::cat(&[&tensor, &Tensor::zeros(&[2, 3], DType::I32).unwrap()], 0),
        "cat: the tensor is i32, not f32; cast it first",
    );
    let index = |values: Vec<i64>| Tensor::from_vec(values, &[1]).unwrap();
    check(
        tensor.index_select(1, &index(vec![3])),
        "index_select: index 3 is out of range for dim 1 of size 3",
    );
    check(
        tensor.index_select(0, &index(vec![-1])),
        "index_select: index -1 is out of range for dim 0 of size 2",
    );
    check(
        tensor.index_select(0, &Tensor::zeros(&[1], DType::F32).unwrap()),
        "index_select: the tensor is f32, not i64; cast it first",
    );
    check(index(vec![7]).one_hot(3), "one_hot: index 7 is out of range for dim 1 of size 3");
    assert!(tensor.split(&[1, 2], 0).is_err());
    assert!(tensor.chunk(0, 0).is_err());
    assert!(Tensor::zeros(&[0], DType::I64).unwrap().one_hot(0).unwrap().numel() == 0);
}
