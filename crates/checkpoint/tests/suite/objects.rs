//! Objects saved and loaded together, and nested lists and dicts.

use std::collections::BTreeMap;

use dtensor::{DTensor, Placement::*, World, random};
use dtensor_checkpoint::{
    Adapter, Error, LoadOptions, Nested, RandomNumbers, SaveOptions, State, Stateful, Value, load,
    load_objects, save, save_objects,
};
use dtensor_testing::{Failure, spmd};

use crate::saved::{Checkpoint, numbered, place};

/// A model as those of other crates are: it lists its tensors by name and takes others, and knows nothing of checkpoints.
struct Model {
    weights: BTreeMap<String, DTensor>,
}

impl Model {
    fn new(world: &World, version: i64, placement: dtensor::Placement) -> Result<Model, Failure> {
        let weights = [("in.weight", [6, 4]), ("out.weight", [5, 3])];
        let weight = |(name, shape): (&str, [usize; 2])| {
            Ok((name.to_owned(), numbered(world, &shape, version, placement)?))
        };
        Ok(Model { weights: weights.into_iter().map(weight).collect::<Result<_, Failure>>()? })
    }

    fn state_dict(&self) -> BTreeMap<String, DTensor> {
        self.weights.clone()
    }

    fn load_state_dict(&mut self, values: BTreeMap<String, DTensor>) -> Result<(), String> {
        match values.len() {
            2 => self.weights = values,
            number => return Err(format!("{number} tensors are not two")),
        }
        Ok(())
    }
}

fn adapted(model: &mut Model) -> impl Stateful + '_ {
    Adapter::new(
        model,
        |model: &&mut Model| State::from_tensors(model.state_dict()),
        |model: &mut &mut Model, state: &State| model.load_state_dict(state.tensors().collect()),
    )
}

#[test]
fn objects_go_on_where_they_were_saved() {
    let (_directory, path, text) = place();
    spmd(2, |world| {
        random::manual_seed(7);
        let mut model = Model::new(world, 3, Shard(0))?;
        let mut progress = State::new();
        progress.insert("step", 100)?;
        let model = adapted(&mut model);
        let objects: [(&str, &dyn Stateful); 3] =
            [("model", &model), ("loop", &progress), ("random", &RandomNumbers)];
        save_objects(world, &objects, &text, &SaveOptions::default())?;
        Ok(())
    });
    // On another number of ranks, and cut otherwise.
    spmd(3, |world| {
        random::manual_seed(8);
        let mut model = Model::new(world, 0, Shard(1))?;
        let mut progress = State::new();
        progress.insert("step", 0)?;
        let mut adapted = adapted(&mut model);
        let objects: &mut [(&str, &mut dyn Stateful)] =
            &mut [("model", &mut adapted), ("loop", &mut progress), ("random", &mut RandomNumbers)];
        let report = load_objects(world, objects, &text, &LoadOptions::default())?;
        assert_eq!((report.tensors, report.values), (2, 3));
        drop(adapted);
        assert_eq!(random::state().seed, 7);
        assert_eq!(progress.value("step"), Some(&Value::Int(100)));
        let want = Model::new(world, 3, Shard(1))?;
        for (name, tensor) in &model.weights {
            let (got, want) = (tensor.to_local(), want.weights[name].to_local());
            assert_eq!(got.as_bytes()?, want.as_bytes()?, "{name}");
        }
        Ok(())
    });
    assert_eq!(Checkpoint::read(&path).unwrap().manifest["tensors"], 2);
}

#[test]
fn an_object_that_refuses_on_one_rank_refuses_on_all() {
    let (_directory, _path, text) = place();
    struct Moody(usize);
    impl Stateful for Moody {
        fn state(&self) -> dtensor_checkpoint::Result<State> {
            let mut state = State::new();
            state.insert("mood", 1)?;
            match self.0 {
                11 => Err(Error::Missing { name: "mood".into(), nearest: "none".into() }),
                _ => Ok(state),
            }
        }

        fn load_state(&mut self, _: &State) -> dtensor_checkpoint::Result<()> {
            match self.0 {
                1 => Err(Error::Missing { name: "mood".into(), nearest: "none".into() }),
                _ => Ok(()),
            }
        }
    }
    spmd(3, |world| {
        let save =
            |moody: Moody| save_objects(world, &[("a", &moody)], &text, &SaveOptions::default());
        save(Moody(10 + world.rank())).unwrap_err();
        save(Moody(0))?;
        let mut moody = Moody(world.rank());
        let loaded = load_objects(world, &mut [("a", &mut moody)], &text, &LoadOptions::default());
        let error = loaded.unwrap_err();
        match world.rank() {
            1 => assert!(matches!(error, Error::Missing { .. }), "{error}"),
            _ => assert!(matches!(error, Error::OnRank { rank: 1, .. }), "{error}"),
        }
        // Nobody is left behind.
        world.group().barrier()?;
        Ok(())
    });
}

#[test]
fn what_an_adapter_is_told_is_told_on() {
    let mut adapter = Adapter::new(
        0,
        |_: &i32| Err::<State, _>("no state"),
        |_: &mut i32, _: &State| Err::<(), _>("no such thing"),
    );
    assert!(adapter.state().unwrap_err().to_string().contains("no state"));
    assert!(adapter.load_state(&State::new()).unwrap_err().to_string().contains("no such thing"));
}

/// The settings of an optimizer, as nested lists and dicts.
fn settings(world: &World, version: i64) -> Result<Nested, Failure> {
    let moment = |placement| Ok::<_, Failure>(numbered(world, &[7, 2], version, placement)?.into());
    Ok(Nested::dict([
        ("lr", Nested::from(version as f64 / 8.0)),
        ("betas", Nested::list([0.9, version as f64])),
        ("moments", Nested::List(vec![moment(Shard(0))?, moment(Shard(1))?])),
        ("name", Nested::from(format!("version {version}"))),
        ("hooks", Nested::List(Vec::new())),
        ("extra", Nested::Dict(Vec::new())),
        ("groups", Nested::list([Nested::dict([("on", Nested::from(version == 1))])])),
    ]))
}

#[test]
fn nested_lists_and_dicts_come_back_under_dotted_names() {
    let (_directory, _path, text) = place();
    spmd(2, |world| {
        let mut state = State::new();
        state.insert_nested("optimizer", settings(world, 1)?)?;
        save(world, &state, &text, &SaveOptions::default())?;
        let names: Vec<&str> = state.iter().map(|(name, _)| name).collect();
        let want = [
            "lr",
            "betas.0",
            "betas.1",
            "moments.0",
            "moments.1",
            "name",
            "hooks",
            "extra",
            "groups.0.on",
        ];
        assert_eq!(names, want.map(|name| format!("optimizer.{name}")));

        let mut loaded = State::new();
        loaded.insert_nested("optimizer", settings(world, 2)?)?;
        let report = load(world, &mut loaded, &text, &LoadOptions::default())?;
        assert_eq!((report.tensors, report.values), (2, 7));
        for (name, _) in state.iter() {
            assert_eq!(loaded.value(name), state.value(name), "{name}");
        }
        for name in ["optimizer.moments.0", "optimizer.moments.1"] {
            let [got, want] = [&loaded, &state].map(|state| state.tensor(name).unwrap().to_local());
            assert_eq!(got.as_bytes()?, want.as_bytes()?, "{name}");
        }
        Ok(())
    });
}

#[test]
fn what_is_nested_is_added_whole_or_not_at_all() {
    let mut state = State::new();
    state.insert("a.1", 7).unwrap();
    let error = state.insert_nested("a", Nested::list([1, 2, 3])).unwrap_err();
    assert_eq!(error, Error::Twice { name: "a.1".into() });
    let twice = Nested::dict([("b.c", Nested::from(1)), ("b", Nested::dict([("c", 2.into())]))]);
    let error = state.insert_nested("a", twice).unwrap_err();
    assert_eq!(error, Error::Twice { name: "a.b.c".into() });
    let deep = (0..100).fold(Nested::from(1), |inner, _| Nested::list([inner]));
    let error = state.insert_nested("deep", deep).unwrap_err();
    assert!(matches!(error, Error::Unsupported { .. }), "{error}");
    assert_eq!(state.len(), 1);
}
