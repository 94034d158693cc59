//! Steps of optimizers against formulas, against PyTorch, and on any layout.

use std::f64::consts::PI;

use dtensor::{
    CommDebug, DTensor, DType, DeviceMesh, Gradients,
    Placement::{self, Partial, Replicate, Shard},
    ReduceOp, Tensor, distribute_tensor_from,
};
use dtensor_nn::{
    AdamW, Error, Optimizer, Parameter, Result, Sgd, StateDict,
    optim::{Adam, Constant, Cosine, GradScaler, Group, Linear, Lion, Muon, Schedule, WarmUp},
};
use dtensor_testing::spmd;

use crate::support::{assert_close, copies, mesh, numbers, tensor};

type Make = fn(Vec<Parameter>) -> Box<dyn Optimizer>;

/// Every optimizer, and whether it needs a matrix to do what it is for.
const ALL: [(&str, Make); 8] = [
    ("sgd", |p| Box::new(Sgd::new(p, 0.1))),
    ("momentum", |p| Box::new(Sgd::new(p, 0.1).momentum(0.9))),
    ("nesterov", |p| {
        let group = Group::new(p, 0.1).weight_decay(0.05);
        Box::new(Sgd::of_groups(vec![group]).momentum(0.9).nesterov())
    }),
    ("adam", |p| Box::new(Adam::new(p, 0.1))),
    ("adam with decay", |p| {
        let group = Group::new(p, 0.1).weight_decay(0.05);
        Box::new(Adam::of_groups(vec![group]).betas(0.8, 0.95))
    }),
    ("adamw", |p| Box::new(AdamW::new(p, 0.1))),
    ("lion", |p| Box::new(Lion::of_groups(vec![Group::new(p, 0.1).weight_decay(0.1)]))),
    ("muon", |p| Box::new(Muon::new(p, 0.02, 0.1).weight_decay(0.1))),
];

fn placed(values: &[f64], shape: &[usize], mesh: &DeviceMesh, placements: &[Placement]) -> DTensor {
    let whole = Tensor::from_slice(values, shape).unwrap();
    distribute_tensor_from(&whole, mesh, placements, None).unwrap()
}

/// Steps whose gradients depend on the step and on where the parameter is.
fn steps(
    optimizer: &mut dyn Optimizer,
    parameter: &Parameter,
    base: &DTensor,
    range: std::ops::Range<i32>,
) -> Result<()> {
    for step in range {
        let leaf = parameter.value();
        let sign = if step % 2 == 0 { 1.0 } else { -1.0 };
        let gradient = base.mul(f64::from(step + 1) * sign)?.add(&leaf.detach().mul(0.1)?)?;
        let mut gradients = Gradients::default();
        gradients.insert(&leaf, gradient);
        drop(leaf);
        optimizer.step(&gradients)?;
    }
    Ok(())
}

const START: [f64; 4] = [0.5, -1.25, 2.0, 0.75];
const BASE: [f64; 4] = [0.3, -0.7, 0.05, 1.5];

fn after_five(make: impl Fn(Vec<Parameter>) -> Box<dyn Optimizer> + Sync) -> Vec<f64> {
    spmd(1, |world| {
        let mesh = mesh(world, &[("x", 1)]);
        let parameter = Parameter::new(&placed(&START, &[4], &mesh, &[Replicate]))?;
        let mut optimizer = make(vec![parameter.clone()]);
        let base = placed(&BASE, &[4], &mesh, &[Replicate]);
        steps(&mut *optimizer, &parameter, &base, 0..5)?;
        Ok(parameter.value().to_vec::<f64>()?)
    })
    .remove(0)
}

/// ```python
/// def run(make):
///     p = torch.nn.Parameter(torch.tensor([0.5, -1.25, 2.0, 0.75], dtype=torch.float64))
///     opt = make([p])
///     for k in range(5):
///         base = torch.tensor([0.3, -0.7, 0.05, 1.5], dtype=torch.float64)
///         p.grad = base * (k + 1) * (-1) ** k + 0.1 * p.detach()
///         opt.step()
///     print(p.tolist())
/// run(lambda p: torch.optim.SGD(p, lr=0.1))
/// run(lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9))
/// run(lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True, weight_decay=0.05))
/// run(lambda p: torch.optim.Adam(p, lr=0.1))
/// run(lambda p: torch.optim.Adam(p, lr=0.1, betas=(0.8, 0.95), weight_decay=0.05))
/// run(lambda p: torch.optim.AdamW(p, lr=0.1))
/// run(lambda p: torch.optim.AdamW(p, lr=0.1, betas=(0.8, 0.95), eps=1e-3, weight_decay=0.2))
/// ```
#[test]
fn numbers_of_pytorch_come_out() {
    let want: [(&str, [f64; 4]); 6] = [
        ("sgd", [0.38548608465, -0.978_716_701_675, 1.886_978_609_75, 0.263_197_835_925]),
        ("momentum", [0.35532730065, -0.901_733_203_675, 1.729_853_099_75, 0.251_276_957_925]),
        (
            "nesterov",
            [
                0.221_273_634_849_401_77,
                -0.579_854_073_699_43,
                1.498_504_230_643_895_6,
                -0.228_159_265_820_335_16,
            ],
        ),
        (
            "adam",
            [
                0.379_446_422_593_994_7,
                -1.125_651_184_716_232_5,
                1.565_930_234_706_587_5,
                0.645_785_576_850_096_9,
            ],
        ),
        (
            "adam with decay",
            [
                0.370_941_479_188_033_7,
                -1.115_262_865_376_993,
                1.538_307_393_745_393_3,
                0.644_469_149_383_254_5,
            ],
        ),
        (
            "adamw",
            [
                0.377_356_743_662_711_05,
                -1.119_828_753_899_847,
                1.557_066_278_841_816_8,
                0.642_399_785_737_392_1,
            ],
        ),
    ];
    for (name, want) in want {
        let (_, make) = ALL.iter().find(|(other, _)| *other == name).unwrap();
        assert_close(&after_five(make), &want, 1e-14, name);
    }
    let with_eps = after_five(|p| {
        let group = Group::new(p, 0.1).weight_decay(0.2);
        Box::new(AdamW::of_groups(vec![group]).betas(0.8, 0.95).eps(1e-3))
    });
    let want = [
        0.342_131_697_923_579_4,
        -1.016_428_626_047_635_4,
        1.401_164_751_422_471,
        0.582_726_786_566_121_9,
    ];
    assert_close(&with_eps, &want, 1e-14, "adamw with eps");
}

/// The formulas, element by element, as the papers have them.
#[test]
fn formulas_come_out() {
    let gradient = |step: i32, at: usize, x: f64| {
        let sign = if step % 2 == 0 { 1.0 } else { -1.0 };
        BASE[at] * f64::from(step + 1) * sign + 0.1 * x
    };
    type Step<'a> = &'a dyn Fn(i32, f64, f64, &mut [f64; 2]) -> f64;
    let each = |step: Step<'_>| -> Vec<f64> {
        let one = |at: usize| {
            let mut kept = [0.0; 2];
            (0..5).fold(START[at], |x, k| step(k, x, gradient(k, at, x), &mut kept))
        };
        (0..4).map(one).collect()
    };
    let of = |name: &str| after_five(ALL.iter().find(|(other, _)| *other == name).unwrap().1);
    let sgd = each(&|_, x, g, _| x - 0.1 * g);
    assert_close(&of("sgd"), &sgd, 1e-14, "sgd");
    let momentum = each(&|step, x, g, kept| {
        kept[0] = if step == 0 { g } else { 0.9 * kept[0] + g };
        x - 0.1 * kept[0]
    });
    assert_close(&of("momentum"), &momentum, 1e-14, "momentum");
    let nesterov = each(&|step, x, g, kept| {
        let g = g + 0.05 * x;
        kept[0] = if step == 0 { g } else { 0.9 * kept[0] + g };
        x - 0.1 * (g + 0.9 * kept[0])
    });
    assert_close(&of("nesterov"), &nesterov, 1e-14, "nesterov");
    let adam = |decay: f64, beta1: f64, beta2: f64, apart: bool| {
        each(&|step, x, g, kept| {
            let (g, x) = if apart { (g, x * (1.0 - 0.1 * decay)) } else { (g + decay * x, x) };
            kept[0] = beta1 * kept[0] + (1.0 - beta1) * g;
            kept[1] = beta2 * kept[1] + (1.0 - beta2) * g * g;
            let mean = kept[0] / (1.0 - beta1.powi(step + 1));
            let square = kept[1] / (1.0 - beta2.powi(step + 1));
            x - 0.1 * mean / (square.sqrt() + 1e-8)
        })
    };
    assert_close(&of("adam"), &adam(0.0, 0.9, 0.999, false), 1e-13, "adam");
    assert_close(&of("adam with decay"), &adam(0.05, 0.8, 0.95, false), 1e-13, "adam with decay");
    assert_close(&of("adamw"), &adam(0.01, 0.9, 0.999, true), 1e-13, "adamw");
    let lion = each(&|_, x, g, kept| {
        let direction = (0.9 * kept[0] + 0.1 * g).signum();
        kept[0] = 0.99 * kept[0] + 0.01 * g;
        x * (1.0 - 0.1 * 0.1) - 0.1 * direction
    });
    assert_close(&of("lion"), &lion, 1e-14, "lion");
}

/// Matrices as rows, multiplied plainly.
type Rows = Vec<Vec<f64>>;

fn product(a: &Rows, b: &Rows) -> Rows {
    let cell = |row: &Vec<f64>, column: usize| row.iter().zip(b).map(|(x, y)| x * y[column]).sum();
    a.iter().map(|row| (0..b[0].len()).map(|column| cell(row, column)).collect()).collect()
}

fn transposed(a: &Rows) -> Rows {
    (0..a[0].len()).map(|column| a.iter().map(|row| row[column]).collect()).collect()
}

fn mixed(parts: &[(f64, &Rows)]) -> Rows {
    let cell = |row: usize, column: usize| parts.iter().map(|(f, m)| f * m[row][column]).sum();
    let (n, m) = (parts[0].1.len(), parts[0].1[0].len());
    (0..n).map(|row| (0..m).map(|column| cell(row, column)).collect()).collect()
}

#[test]
fn muon_follows_an_orthogonal_direction() {
    for (rows, columns) in [(5, 3), (3, 5), (4, 4)] {
        let cut = |values: Vec<f64>| values.chunks(columns).map(<[f64]>::to_vec).collect::<Rows>();
        let (mut x, base) = (cut(numbers(rows * columns, 1.0)), cut(numbers(rows * columns, 2.0)));
        let mut mean = mixed(&[(0.0, &base)]);
        for step in 0..4 {
            let sign = if step % 2 == 0 { 1.0 } else { -1.0 };
            let gradient = mixed(&[(f64::from(step + 1) * sign, &base), (0.1, &x)]);
            mean = mixed(&[(0.95, &mean), (0.05, &gradient)]);
            let ahead = mixed(&[(0.05, &gradient), (0.95, &mean)]);
            let mut u = if rows > columns { transposed(&ahead) } else { ahead };
            let norm = u.iter().flatten().map(|value| value * value).sum::<f64>().sqrt() + 1e-7;
            u = mixed(&[(1.0 / norm, &u)]);
            for _ in 0..5 {
                let a = product(&u, &transposed(&u));
                let b = mixed(&[(-4.7750, &a), (2.0315, &product(&a, &a))]);
                u = mixed(&[(3.4445, &u), (1.0, &product(&b, &u))]);
            }
            let u = if rows > columns { transposed(&u) } else { u };
            let scale = (rows as f64 / columns as f64).max(1.0).sqrt();
            x = mixed(&[(1.0 - 0.02 * 0.1, &x), (-0.02 * scale, &u)]);
        }
        let got = spmd(1, |world| {
            let mesh = mesh(world, &[("x", 1)]);
            let shape = [rows, columns];
            let start = placed(&numbers(rows * columns, 1.0), &shape, &mesh, &[Replicate]);
            let parameter = Parameter::new(&start)?;
            let base = placed(&numbers(rows * columns, 2.0), &shape, &mesh, &[Replicate]);
            let mut muon = Muon::new(vec![parameter.clone()], 0.02, 0.1).weight_decay(0.1);
            steps(&mut muon, &parameter, &base, 0..4)?;
            Ok(parameter.value().to_vec::<f64>()?)
        });
        assert_close(&got[0], &x.concat(), 1e-12, "muon");
    }
}

#[test]
fn cut_parameters_go_where_whole_ones_go_and_nothing_is_sent() {
    let shape = [5, 3];
    let run = |make: Make, ranks: usize, axes: &[(&str, usize)], placements: &[Placement]| {
        spmd(ranks, |world| {
            let mesh = mesh(world, axes);
            let parameter = Parameter::new(&tensor(&shape, 1.0, DType::F64, &mesh, placements))?;
            let mut optimizer = make(vec![parameter.clone()]);
            let base = tensor(&shape, 2.0, DType::F64, &mesh, placements);
            let layout = parameter.layout();
            let (done, comm) =
                CommDebug::record(|| steps(&mut *optimizer, &parameter, &base, 0..5));
            done?;
            assert_eq!(parameter.layout(), layout);
            assert!(parameter.is_learnt());
            Ok((parameter.value().to_vec::<f64>()?, comm.calls()))
        })
        .remove(0)
    };
    for (name, make) in ALL {
        let (want, _) = run(make, 1, &[("x", 1)], &[Replicate]);
        for ranks in [2, 3, 4] {
            for placement in [Replicate, Shard(0), Shard(1)] {
                let (got, calls) = run(make, ranks, &[("x", ranks)], &[placement]);
                assert_close(&got, &want, 1e-12, &format!("{name} {placement} on {ranks}"));
                assert!(name == "muon" || calls == 0, "{name} {placement}: {calls} calls");
            }
        }
        for placements in [[Shard(0), Shard(1)], [Shard(0), Shard(0)], [Replicate, Shard(1)]] {
            let (got, _) = run(make, 4, &[("x", 2), ("y", 2)], &placements);
            assert_close(&got, &want, 1e-12, &format!("{name} {placements:?}"));
        }
    }
}

/// Three steps on one mesh and two on another are five steps.
#[test]
fn what_is_remembered_is_taken_to_another_mesh() {
    for (name, make) in ALL {
        spmd(4, |world| {
            let (line, square) = (mesh(world, &[("x", 4)]), mesh(world, &[("x", 2), ("y", 2)]));
            let shape = [5, 3];
            let start = |mesh: &DeviceMesh, placements: &[Placement]| {
                let parameter = Parameter::new(&tensor(&shape, 1.0, DType::F64, mesh, placements))?;
                let base = tensor(&shape, 2.0, DType::F64, mesh, placements);
                Ok::<_, Error>((make(vec![parameter.clone()]), parameter, base))
            };
            let (mut optimizer, one, base) = start(&line, &[Shard(0)])?;
            steps(&mut *optimizer, &one, &base, 0..3)?;
            let state = optimizer.state_dict()?;
            let (mut other, two, other_base) = start(&square, &[Shard(1), Shard(0)])?;
            let here = one.value().detach().redistribute_to(&square, &[Shard(1), Shard(0)])?;
            two.set(&here)?;
            other.load_state_dict(&state)?;
            steps(&mut *optimizer, &one, &base, 3..5)?;
            steps(&mut *other, &two, &other_base, 3..5)?;
            let (one, two) = (one.value().to_vec::<f64>()?, two.value().to_vec::<f64>()?);
            assert_close(&two, &one, 1e-12, name);
            Ok(())
        });
    }
}

#[test]
fn a_state_that_does_not_fit_changes_nothing() {
    spmd(2, |world| {
        let mesh = mesh(world, &[("x", 2)]);
        let make = |n: usize| {
            let one = |_| Parameter::new(&tensor(&[5, 3], 1.0, DType::F64, &mesh, &[Shard(0)]));
            let parameters = (0..n).map(one).collect::<dtensor::Result<Vec<_>>>()?;
            Ok::<_, Error>((AdamW::new(parameters.clone(), 0.1), parameters))
        };
        let base = tensor(&[5, 3], 2.0, DType::F64, &mesh, &[Shard(0)]);
        let (mut adam, parameters) = make(2)?;
        steps(&mut adam, &parameters[0], &base, 0..2)?;
        steps(&mut adam, &parameters[1], &base, 0..1)?;
        let good = adam.state_dict()?;
        let names: Vec<&str> = good.keys().map(String::as_str).collect();
        assert_eq!(
            names,
            ["0.exp_avg", "0.exp_avg_sq", "0.step", "1.exp_avg", "1.exp_avg_sq", "1.step"]
        );
        let without = |name: &str| {
            let mut state = good.clone();
            state.remove(name);
            state
        };
        let with = |name: &str, value: DTensor| {
            let mut state = good.clone();
            state.insert(name.to_owned(), value);
            state
        };
        let (mut fresh, _) = make(2)?;
        let bad = [
            (without("1.exp_avg_sq"), "`1.exp_avg_sq` is missing"),
            (without("0.step"), "`0.exp_avg` is no parameter"),
            (with("2.step", good["0.step"].clone()), "`2.step` is no parameter"),
            (with("1.exp_avg", tensor(&[3, 5], 1.0, DType::F64, &mesh, &[Shard(0)])), "[3, 5]"),
        ];
        for (state, text) in bad {
            let error = fresh.load_state_dict(&state).unwrap_err().to_string();
            assert!(error.contains(text), "{error}");
            assert!(fresh.state_dict()?.is_empty(), "{text}");
        }
        // Other dtypes are cast.
        let cast = |(name, value): (&String, &DTensor)| {
            let dtype = if value.dtype() == DType::F64 { DType::F32 } else { value.dtype() };
            Ok((name.clone(), value.to_dtype(dtype)?))
        };
        let narrow = good.iter().map(cast).collect::<dtensor::Result<StateDict>>()?;
        fresh.load_state_dict(&narrow)?;
        assert_eq!(fresh.state_dict()?["0.exp_avg"].dtype(), DType::F64);
        Ok(())
    });
}

/// As in PyTorch, a parameter counts its own steps.
#[test]
fn a_parameter_without_a_gradient_waits() {
    spmd(2, |world| {
        let mesh = mesh(world, &[("x", 2)]);
        let one = |seed: f64| Parameter::new(&tensor(&[3], seed, DType::F64, &mesh, &[Shard(0)]));
        for (_, make) in ALL {
            let (early, late, alone) = (one(1.0)?, one(2.0)?, one(2.0)?);
            let base = tensor(&[3], 3.0, DType::F64, &mesh, &[Shard(0)]);
            let mut both = make(vec![early.clone(), late.clone()]);
            let before = late.value().to_vec::<f64>()?;
            steps(&mut *both, &early, &base, 0..3)?;
            assert_eq!(late.value().to_vec::<f64>()?, before);
            steps(&mut *both, &late, &base, 0..2)?;
            steps(&mut *make(vec![alone.clone()]), &alone, &base, 0..2)?;
            assert_eq!(late.value().to_vec::<f64>()?, alone.value().to_vec::<f64>()?);
        }
        Ok(())
    });
}

#[test]
fn groups_have_rates_and_decays_of_their_own() {
    spmd(1, |world| {
        let mesh = mesh(world, &[("x", 1)]);
        let one = || Parameter::new(&placed(&START, &[4], &mesh, &[Replicate]));
        let (fast, slow) = (one()?, one()?);
        let groups = vec![
            Group::new(vec![fast.clone()], 1.0),
            Group::new(vec![slow.clone()], 0.1).weight_decay(0.5),
        ];
        let mut sgd = Sgd::of_groups(groups);
        assert_eq!(sgd.learning_rates(), [1.0, 0.1]);
        sgd.scale_learning_rate(0.5);
        assert_eq!(sgd.learning_rates(), [0.5, 0.05]);
        sgd.scale_learning_rate(0.5);
        assert_eq!(sgd.learning_rates(), [0.5, 0.05], "a part of the first rate, not of the last");
        let mut gradients = Gradients::default();
        for parameter in [&fast, &slow] {
            gradients.insert(&parameter.value(), placed(&BASE, &[4], &mesh, &[Replicate]));
        }
        sgd.step(&gradients)?;
        let want = |lr: f64, decay: f64| -> Vec<f64> {
            START.iter().zip(BASE).map(|(x, g)| x - lr * (g + decay * x)).collect()
        };
        assert_close(&fast.value().to_vec::<f64>()?, &want(0.5, 0.0), 1e-14, "fast");
        assert_close(&slow.value().to_vec::<f64>()?, &want(0.05, 0.5), 1e-14, "slow");
        Ok(())
    });
}

/// A gradient may arrive in another layout, also as a pending sum.
#[test]
fn gradients_are_brought_to_their_parameters() {
    spmd(2, |world| {
        let mesh = mesh(world, &[("x", 2)]);
        let start = tensor(&[5, 3], 1.0, DType::F64, &mesh, &[Shard(0)]);
        let gradient = tensor(&[5, 3], 2.0, DType::F64, &mesh, &[Replicate]);
        let want = start.sub(&gradient.mul(0.1)?)?.to_vec::<f64>()?;
        for placement in [Replicate, Shard(1), Partial(ReduceOp::Sum)] {
            let parameter = Parameter::new(&start)?;
            let mut gradients = Gradients::default();
            gradients.insert(&parameter.value(), gradient.redistribute(&[placement])?);
            Sgd::new(vec![parameter.clone()], 0.1).step(&gradients)?;
            assert_close(&parameter.value().to_vec::<f64>()?, &want, 1e-14, "sgd");
            assert_eq!(parameter.layout(), *start.layout());
        }
        Ok(())
    });
}

#[test]
fn learning_rates_follow_their_schedules() {
    let factors = |schedule: &dyn Schedule, n: u64| -> Vec<f64> {
        (0..n).map(|step| schedule.factor(step)).collect()
    };
    assert_eq!(factors(&Constant, 2), [1.0, 1.0]);
    assert_eq!(
        factors(&Linear { from: 1.0, to: 0.0, steps: 4 }, 6),
        [1.0, 0.75, 0.5, 0.25, 0.0, 0.0]
    );
    let cosine = Cosine { to: 0.1, steps: 4 };
    let at = |part: f64| 0.1 + 0.9 * (1.0 + (PI * part).cos()) / 2.0;
    assert_close(
        &factors(&cosine, 6),
        &[1.0, at(0.25), at(0.5), at(0.75), 0.1, 0.1],
        1e-15,
        "cosine",
    );
    let warm = WarmUp { steps: 3, then: Linear { from: 1.0, to: 0.0, steps: 2 } };
    assert_eq!(factors(&warm, 6), [0.25, 0.5, 0.75, 1.0, 0.5, 0.0]);
    assert_eq!(factors(&Cosine { to: 0.5, steps: 0 }, 2), [0.5, 0.5]);
    spmd(1, |world| {
        let mesh = mesh(world, &[("x", 1)]);
        let parameter = Parameter::new(&placed(&START, &[4], &mesh, &copies(&mesh)))?;
        let mut adam = Adam::new(vec![parameter], 0.2);
        warm.apply(1, &mut adam);
        assert_eq!(adam.learning_rates(), [0.1]);
        Ok(())
    });
}

#[test]
fn a_scaled_loss_gives_the_same_step_unless_it_overflows() {
    spmd(2, |world| {
        let mesh = mesh(world, &[("x", 2)]);
        let start = tensor(&[5], 1.0, DType::F64, &mesh, &[Shard(0)]);
        let parameter = Parameter::new(&start)?;
        let mut optimizer = Sgd::new(vec![parameter.clone()], 0.1);
        let mut scaler = GradScaler::new(8.0, 2);
        let loss = |parameter: &Parameter| parameter.value().square()?.sum(&[], false);
        let mut want = start.to_vec::<f64>()?;
        for factor in [8.0, 8.0, 16.0] {
            assert_eq!(scaler.factor(), factor);
            let gradients = scaler.scale(&loss(&parameter)?)?.backward()?;
            assert!(scaler.step(std::slice::from_ref(&parameter), gradients, &mut optimizer)?);
            want.iter_mut().for_each(|x| *x -= 0.2 * *x);
            assert_close(&parameter.value().to_vec::<f64>()?, &want, 1e-14, "scaled");
        }
        // Only the last rank has the infinity.
        for (bad, factor) in [(f64::INFINITY, 8.0), (f64::NAN, 4.0)] {
            let mut values = numbers(5, 1.0);
            values[4] = bad;
            let mut gradients = Gradients::default();
            gradients.insert(&parameter.value(), placed(&values, &[5], &mesh, &[Shard(0)]));
            assert!(!scaler.step(std::slice::from_ref(&parameter), gradients, &mut optimizer)?);
            assert_eq!(scaler.factor(), factor);
            assert_close(&parameter.value().to_vec::<f64>()?, &want, 1e-14, "left out");
        }
        // The count of good steps begins anew.
        for factor in [4.0, 8.0] {
            let gradients = scaler.scale(&loss(&parameter)?)?.backward()?;
            assert!(scaler.step(std::slice::from_ref(&parameter), gradients, &mut optimizer)?);
            assert_eq!(scaler.factor(), factor);
        }
        Ok(())
    });
}

/// As PyTorch refuses it: there is no direction to look ahead along.
#[test]
fn nesterov_without_momentum_is_refused() {
    spmd(1, |world| {
        let mesh = mesh(world, &[("x", 1)]);
        let parameter = Parameter::new(&tensor(&[2], 1.0, DType::F64, &mesh, &copies(&mesh)))?;
        let before = parameter.value().to_vec::<f64>()?;
        let gradients = parameter.value().square()?.sum(&[], false)?.backward()?;
        let mut sgd = Sgd::new(vec![parameter.clone()], 0.1).nesterov();
        let error = sgd.step(&gradients).unwrap_err().to_string();
        assert!(error.starts_with("the momentum of Sgd is 0; nesterov"), "{error}");
        assert_eq!(parameter.value().to_vec::<f64>()?, before);
        Sgd::new(vec![parameter], 0.1).nesterov().momentum(0.5).step(&gradients)?;
        Ok(())
    });
}

/// As the others do: nothing is made for a step but what it remembers.
#[test]
fn lion_steps_in_place_in_every_dtype() {
    spmd(1, |world| {
        let mesh = mesh(world, &[("x", 1)]);
        for dtype in [DType::F64, DType::F32, DType::Bf16, DType::F16] {
            let parameter = Parameter::new(&tensor(&[9], 1.0, dtype, &mesh, &[Replicate]))?;
            let start = parameter.value().to_dtype(DType::F64)?.to_vec::<f64>()?;
            let place = || {
                let mut at = None;
                parameter.modify_local(|own| {
                    at = Some(match dtype {
                        DType::F64 => own.as_slice::<f64>()?.as_ptr() as usize,
                        DType::F32 => own.as_slice::<f32>()?.as_ptr() as usize,
                        DType::Bf16 => own.as_slice::<dtensor_local::bf16>()?.as_ptr() as usize,
                        _ => own.as_slice::<dtensor_local::f16>()?.as_ptr() as usize,
                    });
                    Ok(())
                })?;
                Ok::<_, dtensor::Error>(at.unwrap())
            };
            let before = place()?;
            let mut gradients = Gradients::default();
            gradients.insert(&parameter.value(), tensor(&[9], 4.0, dtype, &mesh, &[Replicate]));
            let group = Group::new(vec![parameter.clone()], 0.125).weight_decay(0.5);
            Lion::of_groups(vec![group]).step(&gradients)?;
            assert_eq!(place()?, before, "{dtype}");
            let signs = numbers(9, 4.0).into_iter().map(f64::signum);
            let want: Vec<f64> =
                start.iter().zip(signs).map(|(x, sign)| x * 0.9375 - 0.125 * sign).collect();
            let got = parameter.value().to_dtype(DType::F64)?.to_vec::<f64>()?;
            assert_close(&got, &want, 4e-3, "lion");
        }
        Ok(())
    });
}

#[test]
fn muon_has_groups_and_leaves_to_adamw_what_it_is_told_to() {
    spmd(2, |world| {
        let mesh = mesh(world, &[("x", 2)]);
        let matrix =
            |seed: f64| Parameter::new(&tensor(&[4, 3], seed, DType::F64, &mesh, &[Shard(0)]));
        let (fast, slow, table, bias) = (matrix(1.0)?, matrix(1.0)?, matrix(1.0)?, {
            Parameter::new(&tensor(&[5], 2.0, DType::F64, &mesh, &[Replicate]))?
        });
        let gradient = |parameter: &Parameter| {
            tensor(parameter.value().shape(), 3.0, DType::F64, &mesh, &[Replicate])
        };
        let all = [&fast, &slow, &table, &bias];
        let mut gradients = Gradients::default();
        for parameter in all {
            gradients.insert(&parameter.value(), gradient(parameter));
        }
        // The same by itself, without a group, and by AdamW.
        let alone = |lr: f64, decay: f64| -> Result<Vec<f64>> {
            let own = matrix(1.0)?;
            let mut gradients = Gradients::default();
            gradients.insert(&own.value(), gradient(&own));
            Muon::new(vec![own.clone()], lr, 0.0).weight_decay(decay).step(&gradients)?;
            Ok(own.value().to_vec::<f64>()?)
        };
        let by_adamw = {
            let own = matrix(1.0)?;
            let mut gradients = Gradients::default();
            gradients.insert(&own.value(), gradient(&own));
            AdamW::new(vec![own.clone()], 0.01).step(&gradients)?;
            own.value().to_vec::<f64>()?
        };
        let groups = vec![
            Group::new(vec![fast.clone()], 0.2).weight_decay(0.5),
            Group::new(vec![slow.clone()], 0.02),
        ];
        let others = AdamW::new(vec![table.clone(), bias.clone()], 0.01);
        let mut muon = Muon::of_groups(groups, others)?;
        assert_eq!(muon.learning_rates(), [0.2, 0.02, 0.01]);
        let numbers: Vec<String> =
            muon.numbered_parameters().into_iter().map(|(number, _)| number).collect();
        assert_eq!(numbers, ["0", "1", "others.0", "others.1"]);
        muon.step(&gradients)?;
        assert_close(&fast.value().to_vec::<f64>()?, &alone(0.2, 0.5)?, 1e-13, "fast");
        assert_close(&slow.value().to_vec::<f64>()?, &alone(0.02, 0.0)?, 1e-13, "slow");
        assert_close(&table.value().to_vec::<f64>()?, &by_adamw, 1e-13, "table");
        // No matrix, or twice: refused.
        let refused = |matrices: Vec<Parameter>, others: Vec<Parameter>| {
            let groups = vec![Group::new(matrices, 0.1)];
            Muon::of_groups(groups, AdamW::new(others, 0.1)).map(drop).unwrap_err().to_string()
        };
        let error = refused(vec![fast.clone(), bias.clone()], vec![]);
        assert!(error.contains("[5]") && error.contains("give it to AdamW"), "{error}");
        for (matrices, others) in
            [(vec![fast.clone(); 2], vec![]), (vec![fast.clone()], vec![fast.clone()])]
        {
            assert!(refused(matrices, others).contains("twice"));
        }
        Ok(())
    });
}

/// Which of two groups changes it would be left to chance.
#[test]
fn a_parameter_that_is_given_twice_is_refused() {
    for (what, make) in ALL {
        spmd(1, |world| {
            let mesh = mesh(world, &[("x", 1)]);
            let parameter = Parameter::new(&placed(&START, &[2, 2], &mesh, &[Replicate]))?;
            let mut gradients = Gradients::default();
            gradients.insert(&parameter.value(), parameter.value().detach());
            let mut optimizer = make(vec![parameter.clone(), parameter.clone()]);
            let refused = optimizer.step(&gradients).unwrap_err().to_string();
            assert!(refused.contains("twice"), "{what}: {refused}");
            assert_eq!(parameter.value().to_vec::<f64>()?, START, "{what}");
            Ok(())
        });
    }
    spmd(1, |world| {
        let mesh = mesh(world, &[("x", 1)]);
        let parameter = Parameter::new(&placed(&START, &[4], &mesh, &[Replicate]))?;
        let mut gradients = Gradients::default();
        gradients.insert(&parameter.value(), parameter.value().detach());
        let group = |lr: f64| Group::new(vec![parameter.clone()], lr);
        let refused = AdamW::of_groups(vec![group(0.1), group(0.2)]).step(&gradients);
        assert!(matches!(refused, Err(Error::BadSetting { .. })), "{refused:?}");
        Ok(())
    });
}

/// They are of the values before the last step, or of another model: a step would do nothing, without a word.
#[test]
fn gradients_of_other_tensors_are_refused() {
    for (what, make) in ALL {
        spmd(1, |world| {
            let mesh = mesh(world, &[("x", 1)]);
            let make_one = || Parameter::new(&placed(&START, &[2, 2], &mesh, &[Replicate]));
            let (parameter, other) = (make_one()?, make_one()?);
            let mut gradients = Gradients::default();
            gradients.insert(&parameter.value(), parameter.value().detach());
            let mut optimizer = make(vec![parameter.clone()]);
            optimizer.step(&gradients)?;
            let after = parameter.value().to_vec::<f64>()?;
            let refused = optimizer.step(&gradients).unwrap_err().to_string();
            assert!(
                refused.starts_with("the number of gradients is 1 of other"),
                "{what}: {refused}"
            );
            assert_eq!(parameter.value().to_vec::<f64>()?, after, "{what}");
            // One of several is enough, and none at all is a step of nothing.
            gradients.insert(&parameter.value(), parameter.value().detach());
            gradients.insert(&other.value(), other.value().detach());
            optimizer.step(&gradients)?;
            optimizer.step(&Gradients::default())?;
            Ok(())
        });
    }
}
