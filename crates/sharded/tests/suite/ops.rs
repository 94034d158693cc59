//! Operations.

use dtensor::{
    DeviceMesh,
    Placement::{Replicate, Shard},
    distribute_tensor, random,
};
use dtensor_sharded::{
    ChunkShardingSpec, DType, Error, Fan, Nonlinearity, ProcessGroup, Result, ShardedTensor, Spec,
    Tensor, TensorLayout, World,
    ops::{self, OPS, OpValue, linear},
    shard_tensor,
};
use dtensor_testing::spmd;

use crate::support::{Grid, boxes, chunks, cut, numbered, same_error};

/// Values with both signs.
fn signed(size: &[usize]) -> Tensor {
    numbered(size).mul_scalar(0.25).unwrap().sub_scalar(2.0).unwrap()
}

fn specs() -> Vec<Spec> {
    vec![
        chunks(0, &[0, 1, 2]),
        chunks(1, &[0, 1, 2]),
        // Not a layout: other orders, several shards per rank, none, boxes.
        chunks(0, &[2, 0, 1]),
        chunks(1, &[0, 0, 2]),
        boxes(&[(&[0, 0], &[4, 1], 2), (&[0, 1], &[1, 4], 0), (&[1, 1], &[3, 4], 2)]),
    ]
}

fn values(x: &ShardedTensor) -> Result<Vec<f32>> {
    Ok(x.full_tensor()?.to_vec::<f32>()?)
}

#[track_caller]
fn assert_close(got: &[f32], want: &[f32]) {
    assert_eq!(got.len(), want.len());
    for (got, want) in got.iter().zip(want) {
        assert!(
            (got - want).abs() <= 1e-5 * (1.0 + want.abs()) || got == want,
            "{got} is not {want}"
        );
    }
}

#[test]
fn elementwise_operations_keep_every_spec_and_send_nothing() {
    spmd(3, |world| {
        for spec in specs() {
            let whole = signed(&[4, 5]);
            let x = shard_tensor(&whole, &spec, 0, world)?;
            let before = world.recorder().records().len();
            let results = [
                (x.relu()?, whole.relu()?),
                (x.gelu()?, whole.gelu()?),
                (x.tanh()?, whole.tanh()?),
                (x.add(1.5)?, whole.add_scalar(1.5)?),
                (x.sub(&x)?, whole.sub(&whole)?),
                (x.mul(&x)?, whole.mul(&whole)?),
                (x.div(4.0)?, whole.div_scalar(4.0)?),
                (x.div(&x.add(10.0)?)?, whole.div(&whole.add_scalar(10.0)?)?),
                (x.add(&whole)?, whole.add(&whole)?),
                // Broadcast: the same row for all.
                (x.mul(numbered(&[5]))?, whole.mul(&numbered(&[5]))?),
                (x.nan_to_num(0.0, None, None)?, whole.clone()),
                (
                    x.masked_fill(&whole.gt_scalar(0.0)?, 9.0)?,
                    whole.masked_fill(&whole.gt_scalar(0.0)?, 9.0)?,
                ),
            ];
            assert_eq!(world.recorder().records().len(), before, "{spec:?}");
            for (number, (got, want)) in results.iter().enumerate() {
                assert_eq!(got.metadata().shards_metadata, x.metadata().shards_metadata);
                assert_close(&values(got)?, &want.to_vec::<f32>()?);
                assert!(got.local_shards().all(|shard| shard.tensor().is_contiguous()), "{number}");
            }
        }
        Ok(())
    });
}

#[test]
fn dtypes_are_promoted_and_integers_divide_to_floats() {
    spmd(2, |world| {
        for spec in [chunks(0, &[0, 1]), chunks(0, &[1, 0])] {
            let x = shard_tensor(&numbered(&[4]).to_dtype(DType::I64)?, &spec, 0, world)?;
            assert_eq!(x.add(1_i64)?.dtype(), DType::I64);
            assert_eq!(x.mul(0.5)?.dtype(), DType::F32);
            let y = x.div(2_i64)?;
            assert_eq!((y.dtype(), values(&y)?), (DType::F32, vec![0.0, 0.5, 1.0, 1.5]));
        }
        Ok(())
    });
}

#[test]
fn operands_that_do_not_fit_are_refused_on_every_rank() {
    let refused = |body: fn(&ShardedTensor, &World) -> Result<ShardedTensor>| {
        same_error(3, |world| body(&cut(&[4, 5], &chunks(0, &[1, 0]), world)?, world))
    };
    let other =
        |x: &ShardedTensor, world: &World| x.add(&cut(&[4, 5], &chunks(1, &[1, 0]), world)?);
    assert_eq!(refused(other), Error::DifferentShards { op: "add".into() });
    let bits = |x: &ShardedTensor, _: &World| x.masked_fill(1.0, 2.0);
    assert!(matches!(refused(bits), Error::WrongOperand { operand: 1, .. }));
    let larger = |x: &ShardedTensor, _: &World| x.add(numbered(&[2, 4, 5]));
    assert!(matches!(refused(larger), Error::Local(_)));
    let not_bool = |x: &ShardedTensor, _: &World| x.masked_fill(numbered(&[4, 5]), 2.0);
    assert!(matches!(refused(not_bool), Error::Local(_)));
    let nothing = |x: &ShardedTensor, _: &World| x.add(OpValue::Nothing);
    assert!(matches!(refused(nothing), Error::WrongOperand { .. }));
    let softmax = |x: &ShardedTensor, _: &World| x.softmax(0);
    assert!(matches!(refused(softmax), Error::Unsupported { .. }));
    let elsewhere = |x: &ShardedTensor, world: &World| {
        let group = ProcessGroup::new(world, &[2, 1, 0])?;
        x.add(&cut(&[4, 5], &chunks(0, &[1, 0]), &group)?)
    };
    assert!(matches!(refused(elsewhere), Error::MixedGroups { operand: 1, .. }));
}

#[test]
fn operations_along_dims_are_those_of_the_whole_tensor() {
    spmd(3, |world| {
        for spec in [chunks(0, &[0, 1, 2]), chunks(1, &[0, 1, 2])] {
            let whole = signed(&[4, 6]);
            let x = shard_tensor(&whole, &spec, 0, world)?;
            for dim in [0, 1, -1] {
                let y = x.softmax(dim)?;
                assert_close(&values(&y)?, &whole.softmax(dim)?.to_vec::<f32>()?);
            }
            let y = x.transpose(0, 1)?;
            assert_eq!(y.size(), [6, 4]);
            assert_close(&values(&y)?, &whole.transpose(0, 1)?.to_vec::<f32>()?);
            for shape in [&[2, 2, 6][..], &[24], &[-1, 3], &[4, 2, 3]] {
                let y = x.view(shape)?;
                assert_close(&values(&y)?, &whole.to_vec::<f32>()?);
            }
            for (parts, dim) in [(2, 0), (3, 1), (4, 1)] {
                let pieces = x.chunk(parts, dim)?;
                let wanted = whole.chunk(parts, dim)?;
                assert_eq!(pieces.len(), wanted.len());
                for (piece, want) in pieces.iter().zip(wanted) {
                    assert_close(&values(piece)?, &want.to_vec::<f32>()?);
                }
            }
            let (weight, bias) = (numbered(&[6]), numbered(&[6]).mul_scalar(-0.5)?);
            let y = x.layer_norm(&[6], Some(&weight), Some(&bias), 1e-5)?;
            let want = whole.layer_norm(&[6], Some(&weight), Some(&bias), 1e-5)?;
            assert_close(&values(&y)?, &want.to_vec::<f32>()?);
        }
        Ok(())
    });
}

#[test]
fn batches_of_matrices_are_multiplied() {
    spmd(2, |world| {
        let (a, b) = (signed(&[3, 2, 4]), signed(&[3, 4, 5]));
        for (first, second) in [(0, 0), (1, 0), (0, 2)] {
            let x = shard_tensor(&a, chunks(first, &[0, 1]), 0, world)?;
            let y = shard_tensor(&b, chunks(second, &[0, 1]), 0, world)?;
            assert_close(&values(&x.bmm(&y)?)?, &a.matmul(&b)?.to_vec::<f32>()?);
        }
        let flat = cut(&[4, 4], &chunks(0, &[0, 1]), world)?;
        assert!(matches!(flat.bmm(&flat), Err(Error::Unsupported { .. })));
        Ok(())
    });
}

#[test]
fn dropout_is_by_global_index_and_nothing_in_evaluation() {
    spmd(2, |world| {
        let whole = Tensor::full(&[6, 5], 1.0_f32)?;
        let mut seen = Vec::new();
        for spec in [chunks(0, &[0, 1]), chunks(1, &[0, 1])] {
            let x = shard_tensor(&whole, &spec, 0, world)?;
            random::manual_seed(3);
            seen.push(values(&x.dropout(0.5, true)?)?);
            assert_eq!(values(&x.dropout(0.5, false)?)?, [1.0; 30]);
        }
        assert_eq!(seen[0], seen[1]);
        assert!(seen[0].contains(&0.0) && seen[0].contains(&2.0));
        Ok(())
    });
}

#[test]
fn linear_layers_take_sharded_weights() {
    spmd(2, |world| {
        let (input, weight, bias) = (signed(&[3, 5]), signed(&[4, 5]), signed(&[4]));
        let want = input.matmul(&weight.transpose(0, 1)?)?.add(&bias)?.to_vec::<f32>()?;
        for (dim, shown) in [(0, "[S(1)]"), (1, "[P(sum)]")] {
            let sharded = shard_tensor(&weight, chunks(dim, &[0, 1]), 0, world)?;
            let y = linear(&input, &sharded, Some(&bias))?;
            assert_eq!(y.layout().to_string(), shown);
            assert_close(&y.to_vec::<f32>()?, &want);
            // The input may be cut as well.
            let mesh = y.mesh().clone();
            let rows = distribute_tensor(&input, &mesh, &[Shard(0)])?;
            assert_close(&linear(&rows, &sharded, Some(&bias))?.to_vec::<f32>()?, &want);
        }
        let sharded = shard_tensor(&weight, chunks(0, &[0, 1]), 0, world)?;
        let y = ShardedTensor::from_dtensor(&linear(&input, &sharded, None::<&Tensor>)?)?;
        assert_eq!(y.sharding_spec().as_chunk(), chunks(1, &[0, 1]).as_chunk());
        Ok(())
    });
}

#[test]
fn gradients_pass_through_operations_on_sharded_tensors() {
    spmd(2, |world| {
        let (input, weight) = (signed(&[3, 5]), signed(&[4, 5]));
        let mut seen = Vec::new();
        for dim in [0, 1] {
            let mut w = shard_tensor(&weight, chunks(dim, &[0, 1]), 0, world)?;
            w.set_requires_grad(true)?;
            let scaled = w.mul(2.0)?.tanh()?;
            assert!(scaled.requires_grad() && !scaled.is_leaf() && w.is_leaf());
            let y = linear(&input, &scaled, None::<&Tensor>)?;
            let gradients = y.sum(&[], false)?.backward()?;
            seen.push(values(&w.gradient(&gradients)?.expect("a gradient"))?);
        }
        let mesh = DeviceMesh::of_world(world, "x")?;
        let w = distribute_tensor(&weight, &mesh, &[Replicate])?.requires_grad()?;
        let x = distribute_tensor(&input, &mesh, &[Replicate])?;
        let loss = x.linear(&w.mul(2.0)?.tanh()?, None)?.sum(&[], false)?;
        let want = loss.backward()?.get(&w).expect("a gradient").to_vec::<f32>()?;
        seen.iter().for_each(|got| assert_close(got, &want));
        Ok(())
    });
}

#[test]
fn gradients_that_would_be_lost_are_refused() {
    spmd(2, |world| {
        let mut x = cut(&[4, 3], &chunks(0, &[1, 0]), world)?;
        x.set_requires_grad(true)?;
        assert!(matches!(x.relu(), Err(Error::Unsupported { .. })));
        assert!(x.detach().relu().is_ok());
        assert!(dtensor::no_grad(|| x.relu()).is_ok());
        let mut y = cut(&[4, 3], &chunks(0, &[0, 1]), world)?;
        y.set_requires_grad(true)?;
        let loss = y.to_dtype(DType::F64)?.mul(3.0)?.to_dtensor()?.sum(&[], false)?;
        assert_eq!(values(&y.gradient(&loss.backward()?)?.expect("a gradient"))?, [3.0; 12]);
        // A clone wants its own.
        let copy = y.clone();
        let loss = copy.mul(2.0)?.to_dtensor()?.sum(&[], false)?;
        let gradients = loss.backward()?;
        assert!(copy.gradient(&gradients)?.is_some() && y.gradient(&gradients)?.is_none());
        Ok(())
    });
}

#[test]
fn results_lie_on_the_group_of_their_operands() {
    spmd(4, |world| {
        // The columns vary slowest on this mesh, whose ranks are then not in order.
        let x = cut(&[6, 8], &Grid::over_ranks(2, [0, 2, 1, 3]).into(), world)?;
        let y = x.transpose(0, 1)?.transpose(0, 1)?;
        assert!(y.process_group().is_same(x.process_group()));
        assert_eq!(values(&y.add(&y)?)?, x.full_tensor()?.mul_scalar(2.0)?.to_vec::<f32>()?);
        Ok(())
    });
}

/// The table of PyTorch 2.15, all of it.
const OF_PYTORCH: [&str; 35] = [
    "shape",
    "dtype",
    "layout",
    "size",
    "dim",
    "ndim",
    "is_contiguous",
    "contiguous",
    "is_floating_point",
    "__reduce_ex__",
    "requires_grad",
    "grad",
    "grad_fn",
    "is_leaf",
    "device",
    "is_meta",
    "_has_compatible_shallow_copy_type",
    "type_as",
    "__deepcopy__",
    "clone",
    "detach",
    "copy_",
    "requires_grad_",
    "equal",
    "allclose",
    "uniform_",
    "normal_",
    "kaiming_uniform_",
    "constant_",
    "full_like",
    "empty_like",
    "zeros_like",
    "ones_like",
    "rand_like",
    "randn_like",
];

#[test]
fn gradients_are_asked_of_walks_and_computed_tensors_know_their_way_back() {
    spmd(2, |world| {
        let mut x = cut(&[4, 3], &chunks(0, &[0, 1]), world)?;
        x.set_requires_grad(true)?;
        let y = x.mul(2.0)?;
        for tensor in [&x, &y] {
            assert!(matches!(ops::call("grad", &[tensor.into()])?, OpValue::Nothing));
            let alike = ops::call("_has_compatible_shallow_copy_type", &[tensor.into()])?;
            assert!(matches!(alike, OpValue::Number(number) if number.to_f64() == 0.0));
        }
        assert!(matches!(ops::call("grad_fn", &[(&x).into()])?, OpValue::Nothing));
        let way_back = ops::call("grad_fn", &[(&y).into()])?.into_distributed("grad_fn")?;
        let gradients = way_back.sum(&[], false)?.backward()?;
        let gradient = x.gradient(&gradients)?.expect("a gradient");
        assert_eq!(values(&gradient)?, [2.0; 12]);
        Ok(())
    });
}

#[test]
fn arithmetic_in_place_is_that_of_new_tensors_in_every_cut() {
    spmd(3, |world| {
        for spec in specs() {
            let whole = signed(&[4, 5]);
            let x = shard_tensor(&whole, &spec, 0, world)?;
            let row = Tensor::from_vec(vec![1.0_f32, -2.0, 3.0, 0.5, 4.0], &[5])?;
            let before = world.recorder().records().len();
            let others = || [OpValue::from(2.5), (&row).into(), x.clone().into()];
            for other in others() {
                let mut changed = [x.clone(), x.clone(), x.clone(), x.clone()];
                changed[0].add_assign(other.clone())?;
                changed[1].sub_assign(other.clone())?;
                changed[2].mul_assign(other.clone())?;
                changed[3].div_assign(other.clone())?;
                let want = [
                    x.add(other.clone())?,
                    x.sub(other.clone())?,
                    x.mul(other.clone())?,
                    x.div(other)?,
                ];
                for (changed, want) in changed.iter().zip(&want) {
                    assert_eq!(changed.metadata().shards_metadata, x.metadata().shards_metadata);
                    for (got, want) in changed.local_shards().zip(want.local_shards()) {
                        let bits = |tensor: &Tensor| -> Result<Vec<u32>> {
                            Ok(tensor.to_vec::<f32>()?.into_iter().map(f32::to_bits).collect())
                        };
                        assert_eq!(bits(got.tensor())?, bits(want.tensor())?, "{spec:?}");
                    }
                }
            }
            assert_eq!(world.recorder().records().len(), before, "{spec:?}");
            assert!(x.full_tensor()?.equal(&whole)?, "a clone has changed");
        }
        Ok(())
    });
}

#[test]
fn what_cannot_be_changed_in_place_is_refused_on_every_rank_and_stays() {
    type Body = fn(&mut ShardedTensor, &ShardedTensor) -> Result<()>;
    let refused = |dtype: DType, body: Body| {
        let error = same_error(2, |world| {
            let mut x = cut(&[4, 3], &chunks(0, &[1, 0]), world)?.to_dtype(dtype)?;
            let (other, before) = (cut(&[4, 3], &chunks(1, &[1, 0]), world)?, x.full_tensor()?);
            let result = body(&mut x, &other);
            assert!(x.dtype() == dtype && x.full_tensor()?.equal(&before)?);
            result
        });
        error.cause().clone()
    };
    // Integers take no floats, and a quotient is one.
    assert!(matches!(refused(DType::I64, |x, _| x.add_assign(0.5)), Error::Unsupported { .. }));
    assert!(matches!(refused(DType::I64, |x, _| x.div_assign(2_i64)), Error::Unsupported { .. }));
    let error = refused(DType::F32, |x, other| x.add_assign(other));
    assert!(matches!(error, Error::DifferentShards { .. }), "{error}");
    spmd(2, |world| {
        let rows = chunks(0, &[0, 1]);
        let mut leaf = cut(&[4, 3], &rows, world)?;
        leaf.set_requires_grad(true)?;
        let mut x = cut(&[4, 3], &rows, world)?;
        assert!(matches!(x.add_assign(&leaf), Err(Error::Unsupported { .. })));
        assert!(matches!(leaf.mul(2.0)?.add_assign(1.0), Err(Error::Unsupported { .. })));
        x.add_assign(leaf.detach())?;
        leaf.add_assign(1.0)?;
        // A parameter stays one, and integers keep their dtype.
        assert!(leaf.requires_grad() && leaf.is_leaf() && !x.requires_grad());
        let mut whole = cut(&[4, 3], &rows, world)?.to_dtype(DType::I32)?;
        whole.mul_assign(3_i64)?;
        assert_eq!(whole.dtype(), DType::I32);
        Ok(())
    });
}

#[test]
fn every_operation_of_the_table_is_there_once() {
    let mut names: Vec<&str> = OPS.iter().map(|record| record.name).collect();
    names.sort_unstable();
    assert!(names.windows(2).all(|pair| pair[0] != pair[1]), "{names:?}");
    for wanted in OF_PYTORCH.into_iter().chain(["linear", "add_", "embedding_bag"]) {
        assert!(names.contains(&wanted), "{wanted}");
    }
}

type Method = fn(&ShardedTensor) -> Result<ShardedTensor>;

/// Operations that give new elements, what they are called with, and the method that does the same.
fn filling() -> Vec<(&'static str, Vec<OpValue>, Method)> {
    fn filled(
        x: &ShardedTensor,
        fill: impl FnOnce(&mut ShardedTensor) -> Result<()>,
    ) -> Result<ShardedTensor> {
        let mut x = x.clone();
        fill(&mut x)?;
        Ok(x)
    }
    vec![
        ("uniform_", vec![], |x| filled(x, |x| x.fill_uniform(0.0, 1.0))),
        ("uniform_", vec![2.0.into(), 5.0.into()], |x| filled(x, |x| x.fill_uniform(2.0, 5.0))),
        ("normal_", vec![], |x| filled(x, |x| x.fill_normal(0.0, 1.0))),
        ("normal_", vec![3.0.into(), 0.5.into()], |x| filled(x, |x| x.fill_normal(3.0, 0.5))),
        ("kaiming_uniform_", vec![], |x| filled(x, |x| x.fill_kaiming_uniform(0.0))),
        ("kaiming_uniform_", vec![2.0.into()], |x| filled(x, |x| x.fill_kaiming_uniform(2.0))),
        ("kaiming_uniform_", vec![0.0.into(), "fan_out".into(), "tanh".into()], |x| {
            filled(x, |x| x.fill_kaiming_uniform_with(Fan::Out, Nonlinearity::Tanh))
        }),
        ("rand_like", vec![], ShardedTensor::rand_like),
        ("randn_like", vec![], ShardedTensor::randn_like),
        ("zeros_like", vec![], ShardedTensor::zeros_like),
        ("ones_like", vec![], ShardedTensor::ones_like),
    ]
}

#[test]
fn operations_of_the_table_can_be_called_by_name() {
    spmd(2, |world| {
        let x = cut(&[4, 3], &chunks(0, &[0, 1]), world)?;
        let on = |name: &'static str, rest: &[OpValue]| {
            ops::call(name, &[&[OpValue::from(&x)], rest].concat())
        };
        let number = |value: OpValue| match value {
            OpValue::Number(number) => number.to_f64(),
            other => panic!("{other:?}"),
        };
        for name in ["shape", "size"] {
            assert!(matches!(on(name, &[])?, OpValue::Integers(size) if size == [4, 3]));
        }
        assert_eq!((number(on("dim", &[])?), number(on("ndim", &[])?)), (2.0, 2.0));
        assert!(matches!(on("layout", &[])?, OpValue::Layout(TensorLayout::Strided)));
        assert!(
            matches!(on("__reduce_ex__", &[])?, OpValue::Bytes(bytes) if bytes == x.to_bytes()?)
        );
        assert!(matches!(on("dtype", &[])?, OpValue::DType(DType::F32)));
        assert!(
            matches!(on("device", &[])?, OpValue::Device(device) if device.to_string() == "cpu")
        );
        for (name, want) in [
            ("is_meta", 0.0),
            ("is_contiguous", 1.0),
            ("is_floating_point", 1.0),
            ("is_leaf", 1.0),
            ("requires_grad", 0.0),
        ] {
            assert_eq!(number(on(name, &[])?), want, "{name}");
        }
        for name in ["contiguous", "clone", "__deepcopy__", "detach"] {
            assert!(on(name, &[])?.into_sharded(name)?.equal(&x)?, "{name}");
        }
        assert!(on("requires_grad_", &[])?.into_sharded("requires_grad_")?.requires_grad());
        let wide = x.to_dtype(DType::F64)?;
        assert_eq!(
            on("type_as", &[wide.clone().into()])?.into_sharded("type_as")?.dtype(),
            DType::F64
        );
        let other =
            shard_tensor(&signed(&[4, 3]).to_dtype(DType::F64)?, chunks(0, &[0, 1]), 0, world)?;
        let copied = on("copy_", &[other.into()])?.into_sharded("copy_")?;
        assert_eq!(copied.dtype(), DType::F32);
        assert_eq!(values(&copied)?, signed(&[4, 3]).to_vec::<f32>()?);
        assert_eq!(number(on("equal", &[x.clone().into()])?), 1.0);
        assert_eq!(number(on("equal", &[x.add(1.0)?.into()])?), 0.0);
        assert_eq!(number(on("allclose", &[x.add(1e-9)?.into()])?), 1.0);
        assert_eq!(number(on("allclose", &[x.add(1.0)?.into()])?), 0.0);
        // Rows of the table that were swapped would give other values.
        for (name, operands, method) in filling() {
            random::manual_seed(11);
            let got = on(name, &operands)?.into_sharded(name)?;
            random::manual_seed(11);
            let want = method(&x)?;
            assert_eq!(values(&got)?, values(&want)?, "{name}");
            assert_eq!(got.metadata().shards_metadata, x.metadata().shards_metadata, "{name}");
        }
        for names in [["fan_inside".into(), "relu".into()], ["fan_in".into(), "relu6".into()]] {
            let operands = [&[OpValue::from(0.0)], &names[..]].concat();
            let error = on("kaiming_uniform_", &operands).unwrap_err();
            assert!(matches!(error, Error::Unsupported { .. }), "{error}");
        }
        let empty = on("empty_like", &[])?.into_sharded("empty_like")?;
        assert_eq!(empty.metadata(), x.metadata());
        for name in ["constant_", "full_like"] {
            assert_eq!(values(&on(name, &[3.0.into()])?.into_sharded(name)?)?, [3.0; 12]);
        }
        assert!(matches!(on("full_like", &[]), Err(Error::WrongOperand { .. })));
        Ok(())
    });
}

#[test]
fn own_operations_come_first_then_those_of_a_spec_then_the_table() {
    ops::register_op("test_first_of_three", |_| Ok(OpValue::Number(1_i64.into())));
    ops::register_spec_op::<ChunkShardingSpec>("test_first_of_three", |_| {
        Ok(OpValue::Number(2_i64.into()))
    });
    ops::register_spec_op::<Grid>("tanh", |call| Ok(call.sharded(0)?.zeros_like()?.into()));
    spmd(4, |world| {
        let x = cut(&[4, 4], &chunks(0, &[0, 1, 2, 3]), world)?;
        let got = ops::call("test_first_of_three", &[x.clone().into()])?;
        assert!(matches!(got, OpValue::Number(number) if number.to_f64() == 1.0));
        let grid = cut(&[4, 4], &Grid::over_ranks(2, 0..4).into(), world)?;
        assert_eq!(values(&grid.tanh()?)?, [0.0; 16]);
        assert_eq!(values(&x.tanh()?)?[1], 1.0_f32.tanh());
        Ok(())
    });
}

#[test]
fn calls_without_what_they_need_are_refused() {
    assert!(matches!(ops::call("relu", &[]), Err(Error::NoOperands { .. })));
    assert!(matches!(ops::call("relu", &[1.0.into()]), Err(Error::NoShardedOperand { .. })));
    let error =
        same_error(2, |world| ops::call("numpy", &[cut(&[4], &chunks(0, &[0, 1]), world)?.into()]));
    assert!(matches!(error, Error::Unsupported { .. }));
    assert!(error.to_string().contains("numpy"), "{error}");
}

#[test]
fn what_is_no_number_is_replaced_in_every_cut() {
    spmd(3, |world| {
        let mut numbers = numbered(&[4, 5]).to_vec::<f32>()?;
        (numbers[3], numbers[7], numbers[19]) = (f32::NAN, f32::INFINITY, f32::NEG_INFINITY);
        let whole = Tensor::from_slice(&numbers, &[4, 5])?;
        for spec in specs() {
            let x = shard_tensor(&whole, &spec, 0, world)?;
            let mut want = numbers.clone();
            (want[3], want[7], want[19]) = (-1.0, 100.0, -200.0);
            assert_eq!(values(&x.nan_to_num(-1.0, Some(100.0), Some(-200.0))?)?, want, "{spec:?}");
            (want[3], want[7], want[19]) = (0.0, f32::MAX, f32::MIN);
            assert_eq!(values(&x.nan_to_num(0.0, None, None)?)?, want, "{spec:?}");
        }
        Ok(())
    });
}

#[test]
fn masks_may_be_cut_as_the_tensor_is() {
    spmd(3, |world| {
        let whole = signed(&[4, 5]);
        let mask = whole.gt_scalar(0.0)?;
        let want = whole.masked_fill(&mask, 9.0)?.to_vec::<f32>()?;
        for spec in specs() {
            let x = shard_tensor(&whole, &spec, 0, world)?;
            let mask = shard_tensor(&mask, &spec, 0, world)?;
            assert_eq!(values(&x.masked_fill(&mask, 9.0)?)?, want, "{spec:?}");
        }
        let x = shard_tensor(&whole, chunks(0, &[0, 1, 2]), 0, world)?;
        let other = shard_tensor(&mask, chunks(1, &[0, 1, 2]), 0, world)?;
        let error = x.masked_fill(&other, 9.0).unwrap_err();
        assert_eq!(error, Error::DifferentShards { op: "masked_fill".into() });
        Ok(())
    });
}

#[test]
fn an_operation_of_the_table_can_be_replaced() {
    // It may have any values, so no other test minds.
    ops::register_op("empty_like", |call| Ok(call.sharded(0)?.full_like(42)?.into()));
    spmd(2, |world| {
        for spec in [chunks(0, &[0, 1]), chunks(1, &[1, 1])] {
            let x = cut(&[4, 3], &spec, world)?;
            let made = ops::call("empty_like", &[(&x).into()])?.into_sharded("empty_like")?;
            assert_eq!(values(&made)?, [42.0; 12]);
        }
        Ok(())
    });
}

#[test]
fn operands_and_results_of_another_kind_are_refused() {
    ops::register_op("test_gives_a_number", |_| Ok(OpValue::Number(1_i64.into())));
    spmd(2, |world| {
        let x = cut(&[4, 3], &chunks(0, &[0, 1]), world)?;
        for name in ["equal", "allclose", "copy_", "type_as"] {
            let operands = [OpValue::from(&x), OpValue::from(numbered(&[4, 3]))];
            let error = ops::call(name, &operands).unwrap_err();
            assert!(matches!(error, Error::WrongOperand { operand: 1, .. }), "{name}: {error}");
        }
        let error = ops::call("transpose", &[(&x).into(), vec![0_isize, 1, 0].into()]).unwrap_err();
        assert!(matches!(error, Error::WrongOperand { operand: 1, .. }), "{error}");
        let given = ops::call("test_gives_a_number", &[(&x).into()])?;
        let error = given.into_sharded("test_gives_a_number").unwrap_err();
        assert!(matches!(error, Error::Unsupported { .. }), "{error}");
        assert!(error.to_string().contains("a number"), "{error}");
        let turned = ProcessGroup::new(world, &[1, 0])?;
        let elsewhere = cut(&[4, 3], &chunks(0, &[0, 1]), &turned)?;
        let error = x.allclose(&elsewhere, 1.0, 1.0, true).unwrap_err();
        assert!(matches!(error, Error::MixedGroups { operand: 1, .. }), "{error}");
        Ok(())
    });
}

#[test]
fn a_copy_takes_the_elements_and_keeps_what_the_tensor_wants() {
    spmd(2, |world| {
        let spec = chunks(0, &[1, 0]);
        let y = cut(&[4, 3], &spec, world)?;
        let mut x = y.zeros_like()?;
        x.set_requires_grad(true)?;
        x.copy_from(&y)?;
        assert!(x.requires_grad() && x.is_leaf());
        assert_eq!(values(&x)?, values(&y)?);
        let mut z = y.zeros_like()?;
        z.copy_from(&x)?;
        assert!(!z.requires_grad());
        assert_eq!(values(&z)?, values(&y)?);
        // What was copied from does not change with the copy.
        z.fill_constant(1)?;
        assert_eq!(values(&y)?, numbered(&[4, 3]).to_vec::<f32>()?);
        Ok(())
    });
    let error = same_error(2, |world| {
        let mut x = cut(&[4, 3], &chunks(0, &[1, 0]), world)?;
        let turned = ProcessGroup::new(world, &[1, 0])?;
        x.copy_from(&cut(&[4, 3], &chunks(0, &[1, 0]), &turned)?)
    });
    assert!(matches!(error, Error::MixedGroups { .. }), "{error}");
}

#[test]
fn a_number_may_be_the_first_operand_in_every_cut() {
    spmd(3, |world| {
        let whole = numbered(&[4, 5]).add_scalar(1.0)?;
        for spec in specs() {
            let x = shard_tensor(&whole, &spec, 0, world)?;
            let want = whole.mul_scalar(-1.0)?.add_scalar(2.5)?.to_vec::<f32>()?;
            assert_eq!(values(&x.rsub(2.5)?)?, want, "{spec:?}");
            let want: Vec<f32> = whole.to_vec::<f32>()?.iter().map(|value| 3.0 / value).collect();
            assert_eq!(values(&x.rdiv(3)?)?, want, "{spec:?}");
            let ints = shard_tensor(&whole.to_dtype(DType::I64)?, &spec, 0, world)?;
            assert_eq!(ints.rsub(1)?.dtype(), DType::I64);
            let want = whole.mul_scalar(-1.0)?.add_scalar(0.5)?.to_vec::<f32>()?;
            assert_eq!(values(&ints.rsub(0.5)?)?, want, "{spec:?}");
        }
        Ok(())
    });
}
