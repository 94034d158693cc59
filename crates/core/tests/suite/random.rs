//! Random numbers do not depend on where they are made, for every operation that draws them.

use std::collections::BTreeMap;

use dtensor::{
    CommDebug, DTensor, DType, DeviceMesh, Error, Layout,
    Placement::{self, Partial, Replicate, Shard},
    ReduceOp, Result, Tensor, World, bernoulli, cauchy, distribute_tensor_from, exponential,
    geometric, log_normal, normal, rand, randint, randn,
    random::{self, OPS},
    randperm, uniform,
};
use dtensor_testing::spmd;

use crate::support::mesh;

const FLOATS: &[DType] = &[DType::F32, DType::F64, DType::Bf16, DType::F16];
const NUMBERS: &[DType] = &[DType::F32, DType::F64, DType::Bf16, DType::I64, DType::I32, DType::U8];
const ALL: &[DType] = &[DType::F32, DType::F64, DType::F16, DType::I64, DType::U8, DType::Bool];

struct Draw {
    name: &'static str,
    dtypes: &'static [DType],
    /// Of the shape, dtype, mesh and placements of a tensor.
    draw: fn(&DTensor) -> Result<DTensor>,
}

/// Every operation that draws. What has a name in [`OPS`] and is not here fails the first test.
const DRAWS: &[Draw] = &[
    Draw {
        name: "rand",
        dtypes: FLOATS,
        draw: |x| rand(x.shape(), x.dtype(), x.mesh(), x.placements()),
    },
    Draw {
        name: "randn",
        dtypes: FLOATS,
        draw: |x| randn(x.shape(), x.dtype(), x.mesh(), x.placements()),
    },
    Draw {
        name: "randint",
        dtypes: NUMBERS,
        draw: |x| randint(3, 40, x.shape(), x.dtype(), x.mesh(), x.placements()),
    },
    Draw {
        name: "randperm",
        dtypes: NUMBERS,
        draw: |x| {
            // It has one dim.
            let flat = |at: &Placement| if *at == Shard(1) { Shard(0) } else { *at };
            let placements: Vec<Placement> = x.placements().iter().map(flat).collect();
            randperm(x.shape().iter().product(), x.dtype(), x.mesh(), &placements)
        },
    },
    Draw {
        name: "uniform",
        dtypes: FLOATS,
        draw: |x| uniform(-1.0, 2.0, x.shape(), x.dtype(), x.mesh(), x.placements()),
    },
    Draw {
        name: "normal",
        dtypes: FLOATS,
        draw: |x| normal(-1.0, 2.0, x.shape(), x.dtype(), x.mesh(), x.placements()),
    },
    Draw {
        name: "log_normal",
        dtypes: FLOATS,
        draw: |x| log_normal(-1.0, 0.5, x.shape(), x.dtype(), x.mesh(), x.placements()),
    },
    Draw {
        name: "exponential",
        dtypes: FLOATS,
        draw: |x| exponential(0.5, x.shape(), x.dtype(), x.mesh(), x.placements()),
    },
    Draw {
        name: "cauchy",
        dtypes: FLOATS,
        draw: |x| cauchy(1.0, 2.0, x.shape(), x.dtype(), x.mesh(), x.placements()),
    },
    Draw {
        name: "geometric",
        dtypes: NUMBERS,
        draw: |x| geometric(0.25, x.shape(), x.dtype(), x.mesh(), x.placements()),
    },
    Draw {
        name: "bernoulli",
        dtypes: ALL,
        draw: |x| bernoulli(0.5, x.shape(), x.dtype(), x.mesh(), x.placements()),
    },
    Draw { name: "rand_like", dtypes: FLOATS, draw: DTensor::rand_like },
    Draw { name: "randn_like", dtypes: FLOATS, draw: DTensor::randn_like },
    Draw { name: "randint_like", dtypes: NUMBERS, draw: |x| x.randint_like(3, 40) },
    Draw { name: "uniform_like", dtypes: FLOATS, draw: |x| x.uniform_like(-1.0, 2.0) },
    Draw { name: "normal_like", dtypes: FLOATS, draw: |x| x.normal_like(-1.0, 2.0) },
    Draw { name: "log_normal_like", dtypes: FLOATS, draw: |x| x.log_normal_like(-1.0, 0.5) },
    Draw { name: "exponential_like", dtypes: FLOATS, draw: |x| x.exponential_like(0.5) },
    Draw { name: "cauchy_like", dtypes: FLOATS, draw: |x| x.cauchy_like(1.0, 2.0) },
    Draw { name: "geometric_like", dtypes: NUMBERS, draw: |x| x.geometric_like(0.25) },
    Draw { name: "bernoulli_like", dtypes: ALL, draw: |x| x.bernoulli_like(0.5) },
    Draw { name: "bernoulli_each", dtypes: FLOATS, draw: DTensor::bernoulli_each },
    Draw { name: "multinomial", dtypes: FLOATS, draw: |x| x.multinomial(2, false) },
    Draw { name: "dropout_mask", dtypes: ALL, draw: |x| x.dropout_mask(0.4) },
    // Made of the others.
    Draw { name: "bernoulli (method)", dtypes: ALL, draw: |x| x.bernoulli(0.5) },
    Draw { name: "multinomial (replacing)", dtypes: FLOATS, draw: |x| x.multinomial(6, true) },
    Draw { name: "dropout", dtypes: FLOATS, draw: |x| x.dropout(0.4, true) },
];

#[test]
fn every_random_op_is_in_the_table() {
    let listed: Vec<&str> = DRAWS.iter().map(|draw| draw.name).take(OPS.len()).collect();
    assert_eq!(listed, OPS, "add what is new to DRAWS, in the order of OPS");
}

/// On 4 ranks the last has none of the 5 rows, nor of 6 columns.
const SHAPES: [[usize; 2]; 2] = [[5, 9], [7, 6]];

#[test]
fn every_random_op_has_the_same_bits_in_every_layout() {
    let mut wanted = BTreeMap::new();
    for (shape, dtype, draw) in cases() {
        let whole = spmd(1, |world| {
            let mesh = mesh(world, &[1]);
            let like = like(&Layout::replicated(&shape, dtype, mesh.mesh())?, &mesh)?;
            random::manual_seed(SEED);
            let [first, next] = [(draw.draw)(&like)?, (draw.draw)(&like)?];
            assert!(bits(&first)? != bits(&next)?, "{} gives the same again", draw.name);
            Ok(first.to_local())
        });
        wanted.insert((shape, dtype, draw.name), whole.into_iter().next().unwrap());
    }
    for sizes in [&[1][..], &[2], &[3], &[4], &[2, 2]] {
        spmd(sizes.iter().product(), |world| {
            let mesh = mesh(world, sizes);
            for (shape, dtype, draw) in cases() {
                for layout in layouts(&shape, dtype, &mesh) {
                    draw.check(&like(&layout, &mesh)?, &wanted[&(shape, dtype, draw.name)])?;
                }
            }
            Ok(())
        });
    }
}

const SEED: u64 = 11;

/// Every operation with every dtype of its own and every shape.
fn cases() -> impl Iterator<Item = ([usize; 2], DType, &'static Draw)> {
    SHAPES.into_iter().flat_map(|shape| {
        DRAWS
            .iter()
            .flat_map(move |draw| draw.dtypes.iter().map(move |dtype| (shape, *dtype, draw)))
    })
}

impl Draw {
    /// What is drawn is the part of what one rank draws; nothing is sent; and the state says all about
    /// what comes next.
    fn check(&self, like: &DTensor, want: &Tensor) -> Result<()> {
        let of = format!("{} as {}", self.name, like.layout());
        random::manual_seed(SEED);
        let before = random::state();
        let (first, comm) = CommDebug::record(|| (self.draw)(like));
        let (first, after) = (first?, random::state());
        // Choices among what others have must be sent, and what is pending where it must be known: dropout is
        // linear in a sum, but not in a maximum.
        let chooses = self.name.starts_with("multinomial");
        let settles =
            like.layout().is_partial() && ["bernoulli_each", "dropout"].contains(&self.name);
        assert!(comm.calls() == 0 || chooses || settles, "{of}: {comm:?}");
        let parts = distribute_tensor_from(want, first.mesh(), first.placements(), None)?;
        match parts.layout() == first.layout() && !first.layout().is_partial() {
            true => assert!(bits(&first)? == bits(&parts)?, "{of}"),
            // Cut in another order, or contributions that may be any.
            false => assert!(bytes(&first.full_tensor()?)? == bytes(want)?, "{of}"),
        }
        assert_eq!((after.seed, after.offset), (SEED, before.offset + 1), "{of}");
        let second = bits(&(self.draw)(like)?)?;
        random::set_state(before);
        assert!(bits(&(self.draw)(like)?)? == bits(&first)?, "{of}: restored");
        assert_eq!(random::state(), after);
        let again = random::with_state(before, || (self.draw)(like))?;
        assert!(bits(&again)? == bits(&first)?, "{of}: for a while");
        assert_eq!(random::state(), after);
        assert!(bits(&(self.draw)(like)?)? == second, "{of}: gone on");
        Ok(())
    }
}

/// Of this rank's part.
fn bits(x: &DTensor) -> Result<Vec<u8>> {
    bytes(&x.to_local())
}

fn bytes(x: &Tensor) -> Result<Vec<u8>> {
    Ok(x.contiguous().as_bytes()?.to_vec())
}

/// Cuts, copies and pending sums and maxima on every axis, and on two axes cuts in orders of their own.
fn layouts(shape: &[usize], dtype: DType, mesh: &DeviceMesh) -> Vec<Layout> {
    let pending = [Partial(ReduceOp::Sum), Partial(ReduceOp::Max)];
    let single = [Replicate, Shard(0), Shard(1)].into_iter().chain(pending);
    let layout = |at: &[Placement]| Layout::new(shape, dtype, mesh.mesh(), at).ok();
    if mesh.n_axes() == 1 {
        return single.filter_map(|at| layout(&[at])).collect();
    }
    let [cut, other] = [Shard(0), Shard(1)];
    let sum = Partial(ReduceOp::Sum);
    let two = [[cut, cut], [other, other], [cut, other], [other, Replicate], [sum, cut]];
    let orders = [[cut, cut], [other, other]].map(|at| {
        let dim = if at[0] == cut { 0 } else { 1 };
        Layout::with_order(shape, dtype, mesh.mesh(), &at, &[(dim, &[1, 0])]).unwrap()
    });
    let strided = Layout::parse(shape, dtype, mesh.mesh(), "[R, _S(0, 3)]").unwrap();
    two.iter().filter_map(|at| layout(at)).chain(orders).chain([strided]).collect()
}

/// Probabilities, for those operations that want them.
fn like(layout: &Layout, mesh: &DeviceMesh) -> Result<DTensor> {
    let numel: usize = layout.global_shape().iter().product();
    let values: Vec<f64> = match layout.dtype().is_float() {
        true => (0..numel).map(|i| (i % 3 + 1) as f64 / 4.0).collect(),
        false => vec![1.0; numel],
    };
    let whole = Tensor::from_slice(&values, layout.global_shape())?.to_dtype(layout.dtype())?;
    let plain = distribute_tensor_from(&whole, mesh, layout.placements(), None)?;
    plain.redistribute_layout(layout)
}

#[test]
fn what_cannot_be_drawn_is_refused_on_all_ranks_and_draws_nothing() {
    spmd(4, |world| {
        let mesh = mesh(world, &[4]);
        random::manual_seed(3);
        // The last ranks have nothing of it.
        let at: &[Placement] = &[Shard(0)];
        let float = rand(&[2, 3], DType::F32, &mesh, at)?;
        let coins = bernoulli(0.5, &[2, 3], DType::Bool, &mesh, at)?;
        let before = random::state();
        for result in [
            randn(&[2], DType::I64, &mesh, at),
            rand(&[2], DType::Bool, &mesh, at),
            uniform(1.0, 0.0, &[2], DType::F32, &mesh, at),
            normal(0.0, -1.0, &[2], DType::F32, &mesh, at),
            log_normal(f64::NAN, 1.0, &[2], DType::F32, &mesh, at),
            exponential(0.0, &[2], DType::F32, &mesh, at),
            cauchy(0.0, 0.0, &[2], DType::F32, &mesh, at),
            geometric(0.0, &[2], DType::I64, &mesh, at),
            bernoulli(1.5, &[2], DType::F32, &mesh, at),
            randint(0, 300, &[2], DType::U8, &mesh, at),
            randint(5, 5, &[2], DType::I64, &mesh, at),
            randperm(257, DType::U8, &mesh, at),
            randperm(2, DType::Bool, &mesh, at),
            randperm(258, DType::Bf16, &mesh, at),
            randperm(4, DType::I64, &mesh, &[Shard(1)]),
            coins.rand_like(),
            coins.bernoulli_each(),
            coins.multinomial(1, false),
            float.multinomial(4, false),
            float.dropout(1.5, true),
        ] {
            let error = result.unwrap_err();
            assert!(matches!(error, Error::Local(_) | Error::Layout { .. }), "{error:?}");
        }
        assert_eq!(random::state(), before);
        assert_eq!(randperm(256, DType::U8, &mesh, at)?.shape(), [256]);
        assert_eq!(randperm(0, DType::F32, &mesh, at)?.shape(), [0]);
        Ok(())
    });
}

#[test]
fn a_permutation_has_every_number_once() {
    spmd(3, |world| {
        let mesh = mesh(world, &[3]);
        for dtype in NUMBERS {
            let order = randperm(100, *dtype, &mesh, &[Shard(0)])?;
            assert_eq!((order.dtype(), order.placements()), (*dtype, &[Shard(0)][..]));
            let mut values = order.to_dtype(DType::I64)?.to_vec::<i64>()?;
            assert!(values.iter().zip(0..).filter(|(value, index)| **value == *index).count() < 9);
            values.sort_unstable();
            assert_eq!(values, (0..100).collect::<Vec<_>>());
        }
        Ok(())
    });
}

#[test]
fn choices_follow_their_weights() {
    spmd(2, |world| {
        let mesh = mesh(world, &[2]);
        let weights = Tensor::from_vec(vec![0.0, 1.0, 3.0, 0.0, 0.5, 0.5, 0.0, 0.0], &[2, 4])?;
        for at in [Replicate, Shard(0), Shard(1)] {
            random::manual_seed(2);
            let weights = distribute_tensor_from(&weights, &mesh, &[at], None)?;
            // Without replacement, what has a weight comes first.
            let first = weights.multinomial(2, false)?.to_vec::<i64>()?;
            let [mut above, mut below] = [first[..2].to_vec(), first[2..].to_vec()];
            above.sort_unstable();
            below.sort_unstable();
            assert_eq!((above, below), (vec![1, 2], vec![0, 1]));
            let many = weights.multinomial(4000, true)?;
            assert_eq!(many.shape(), [2, 4000]);
            let many = many.to_vec::<i64>()?;
            let share = |row: &[i64], class: i64| row.iter().filter(|one| **one == class).count();
            let counts = [0, 1, 2, 3].map(|class| share(&many[..4000], class));
            // Five standard deviations.
            assert!(counts[0] + counts[3] == 0 && counts[1].abs_diff(1000) < 137, "{counts:?}");
            let counts = [0, 1, 2, 3].map(|class| share(&many[4000..], class));
            assert!(counts[2] + counts[3] == 0 && counts[1].abs_diff(2000) < 158, "{counts:?}");
        }
        let p = distribute_tensor_from(&Tensor::full(&[4000], 0.25)?, &mesh, &[Shard(0)], None)?;
        let n_ones = p.bernoulli_each()?.sum(&[], false)?.item::<f64>()?;
        assert!((n_ones - 1000.0).abs() < 137.0, "{n_ones}");
        Ok(())
    });
}

#[test]
fn a_fake_world_and_ranks_outside_of_a_mesh_draw_as_the_others_do() -> Result<()> {
    let everything = |mesh: &DeviceMesh| -> Result<u64> {
        random::manual_seed(1);
        let x = rand(&[5, 9], DType::F32, mesh, &[Shard(0)])?;
        for draw in DRAWS.iter().filter(|draw| draw.dtypes.contains(&DType::F32)) {
            (draw.draw)(&x)?;
        }
        Ok(random::state().offset)
    };
    let world =
        World::fake(4, 3).map_err(|error| Error::Comm { op: "fake", source: error.into() })?;
    let want = everything(&DeviceMesh::of_world(&world, "x")?)?;
    let offsets = spmd(4, |world| Ok(everything(&DeviceMesh::from_mesh(world, "x=3".parse()?)?)?));
    assert_eq!(offsets, [want; 4]);
    Ok(())
}

#[test]
fn a_setting_out_of_range_is_named() {
    spmd(2, |world| {
        let mesh = mesh(world, &[2]);
        let error = randperm(300, DType::U8, &mesh, &[Shard(0)]).unwrap_err();
        assert_eq!(
            error.to_string(),
            "randperm: n is 300; give a number such that the dtype has all smaller ones"
        );
        let error = cauchy(0.0, -1.0, &[2], DType::F32, &mesh, &[Shard(0)]).unwrap_err();
        assert_eq!(
            error.to_string(),
            "cauchy: median and sigma is 0 and -1; give finite numbers, the second positive"
        );
        Ok(())
    });
}
