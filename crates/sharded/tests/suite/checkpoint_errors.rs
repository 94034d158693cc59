//! Checkpoints that do not fit, or not wholly.

use dtensor_checkpoint::{LoadOptions, SaveOptions, State, Value, save};
use dtensor_sharded::{DType, Error, Result, ShardedTensor, World, checkpoint, full};
use dtensor_testing::spmd;

use crate::{
    checkpoint::{Place, SIZE, load_by_state, load_one, save_one},
    support::{chunks, cut, numbered, same_error},
};

/// What tensors have before they are loaded, where they should keep it. Not zero, which new memory is.
const OLD: f64 = 5.0;

#[test]
fn what_does_not_fit_is_the_same_error_on_all_ranks_and_changes_nothing() {
    let place = Place::new();
    spmd(3, |world| {
        Ok(save_one(world, &cut(&SIZE, &chunks(0, &[0, 1, 2]), world)?, &place.path())?)
    });
    type Attempt = fn(&World, &mut ShardedTensor, &str) -> Result<()>;
    let refused = |size: &'static [usize], name: &'static str, attempt: Attempt| {
        same_error(3, |world| {
            let mut x = full(chunks(0, &[2, 1, 0]), size, OLD, DType::F64, world)?;
            let outcome = match name {
                "x" => attempt(world, &mut x, &place.path()),
                other => {
                    let tensors = &mut [(other, &mut x)];
                    let path = &place.path();
                    let options = LoadOptions::default();
                    checkpoint::load(world, &mut State::new(), tensors, path, &options).map(drop)
                }
            };
            assert_eq!(x.full_tensor()?.to_vec::<f64>()?, vec![OLD; x.numel()]);
            outcome
        })
    };
    for attempt in [load_one as Attempt, load_by_state] {
        let error = refused(&[7, 3], "x", attempt).to_string();
        assert!(error.contains("[7, 2]") && error.contains("[7, 3]"), "{error}");
    }
    let error = refused(&SIZE, "y", load_one).to_string();
    assert!(error.contains("`y`") && error.contains("`x`"), "{error}");
    let damaged = |world: &World, x: &mut ShardedTensor, _: &str| load_one(world, x, "/nowhere");
    assert!(matches!(refused(&SIZE, "x", damaged), Error::Checkpoint(_)));

    let of_state = |take: &'static str| {
        same_error(2, |world| {
            let mut x = cut(&SIZE, &chunks(1, &[1, 0]), world)?;
            let mut state = State::new();
            state.insert("step", 1)?;
            checkpoint::insert(&mut state, "x", &cut(&[2], &chunks(0, &[1, 0]), world)?)?;
            match take {
                "twice" => checkpoint::insert(&mut state, "step", &x),
                "meta" => checkpoint::insert(&mut state, "y", &x.to_device("meta".parse()?)?),
                name => checkpoint::take(&state, name, &mut x),
            }
        })
    };
    assert!(matches!(of_state("y"), Error::NoSuchName { .. }));
    assert!(matches!(of_state("step"), Error::Unsupported { .. }));
    assert!(of_state("x").to_string().contains("[2]"));
    assert!(of_state("twice").to_string().contains("`step`"));
    assert!(of_state("meta").to_string().contains("meta"));
}

#[test]
fn a_name_that_is_given_twice_is_refused_before_anything_is_loaded() {
    let place = Place::new();
    spmd(2, |world| {
        save_one(world, &cut(&SIZE, &chunks(0, &[0, 1]), world)?, &place.path())?;
        let (mut a, mut b) = (
            full(chunks(0, &[1, 0]), &SIZE, OLD, DType::F64, world)?,
            full(chunks(0, &[0, 1]), &SIZE, OLD, DType::F64, world)?,
        );
        let mut state = State::new();
        let (path, options) = (place.path(), LoadOptions::default());
        let twice = &mut [("x", &mut a), ("x", &mut b)];
        let error = checkpoint::load(world, &mut state, twice, &path, &options).unwrap_err();
        assert!(error.to_string().contains("`x`"));
        state.insert("x", 0)?;
        let error = checkpoint::load(world, &mut state, &mut [("x", &mut a)], &path, &options);
        assert!(error.is_err());
        // The state is what it was.
        assert_eq!((state.len(), state.value("x")), (1, Some(&Value::Int(0))));
        assert_eq!(a.full_tensor()?.to_vec::<f64>()?, [OLD; 14]);
        Ok(())
    });
}

#[test]
fn a_partial_load_leaves_what_it_reports() {
    let place = Place::new();
    spmd(2, |world| {
        let mut state = State::new();
        state.insert("step", 7)?;
        checkpoint::insert(&mut state, "here", &cut(&SIZE, &chunks(0, &[1, 0]), world)?)?;
        checkpoint::insert(&mut state, "small", &cut(&[2], &chunks(0, &[1, 0]), world)?)?;
        save(world, &state, &place.path(), &SaveOptions::default())?;
        let blank = |size: &[usize]| full(chunks(0, &[0, 1]), size, OLD, DType::F64, world);
        let (mut here, mut gone, mut small) = (blank(&SIZE)?, blank(&SIZE)?, blank(&[3])?);
        let mut rest = State::new();
        rest.insert("step", 0)?;
        let options = LoadOptions { partial: true, ..LoadOptions::default() };
        let tensors = &mut [("gone", &mut gone), ("here", &mut here), ("small", &mut small)];
        let report = checkpoint::load(world, &mut rest, tensors, &place.path(), &options)?;
        assert_eq!((report.missing.len(), report.misshapen.len(), report.tensors), (1, 1, 1));
        assert_eq!(rest.value("step"), Some(&Value::Int(7)));
        assert!(here.full_tensor()?.equal(&numbered(&SIZE).to_dtype(DType::F64)?)?);
        assert_eq!(gone.full_tensor()?.to_vec::<f64>()?, [OLD; 14]);
        assert_eq!(small.full_tensor()?.to_vec::<f64>()?, [OLD; 3]);
        Ok(())
    });
}
