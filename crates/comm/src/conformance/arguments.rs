//! Wrong arguments.

use crate::{CommError, DType, ReduceOp, Values, ValuesMut, World};

use super::{collectives::text, sample::same};

pub(super) fn refused(world: &World) -> Result<(), String> {
    let (group, rank, size) = (world.group(), world.rank(), world.size());
    let (one, mut many) = ([1.0_f32], vec![0.0_f32; size + 1]);
    let zeros = vec![0; size + 1];
    let bytes = [2_u8; 8];
    let refusals = [
        ("a root that is not there", group.broadcast(&mut many, size)),
        ("a receiver that is not there", group.send(&one, size + 3)),
        ("too long a receive buffer", group.all_gather(&one, &mut many)),
        ("too short a send buffer", group.reduce_scatter(&[], &mut [1.0_f32], ReduceOp::Sum)),
        ("one count too many", group.all_gather_v(&one, &mut many, &zeros)),
        ("counts that do not add up", group.all_gather_v(&[], &mut many, &zeros[1..])),
        ("counts beyond all bounds", {
            let mut counts = vec![0; size];
            counts[rank] = usize::MAX / 4;
            group.all_gather_v(&one, &mut many, &counts)
        }),
        ("send counts that do not add up", {
            group.all_to_all_v(&one, &zeros[1..], &mut [], &zeros[1..])
        }),
        ("the average of integers", group.all_reduce(&mut [1_i64], ReduceOp::Avg)),
        ("the average of bools", group.all_reduce(&mut [true], ReduceOp::Avg)),
        ("two dtypes", {
            let mut other = vec![0_i32; size];
            group.erased().all_gather((&one[..]).into(), (&mut other[..]).into())
        }),
        ("a bool that is 2", Values::from_bytes(DType::Bool, &bytes).map(|_| ())),
        ("half an element", Values::from_bytes(DType::F64, &bytes[..7]).map(|_| ())),
        ("a rank twice", world.subgroup(&[rank, rank]).map(|_| ())),
        ("a rank that is not there", world.subgroup(&[rank, size]).map(|_| ())),
        ("no ranks", world.subgroup(&[]).map(|_| ())),
        ("a pending call", group.start_all_gather(vec![1.0_f32], vec![0.0_f64]).map(drop)),
    ];
    for (what, refusal) in refusals {
        match refusal {
            Err(error) if error.is_argument_error() => {}
            other => return Err(format!("{what} gave {other:?}")),
        }
    }
    if size > 1 {
        let uneven = vec![1.0_f32; size + 1];
        let refusal = group.all_to_all(&uneven, &mut many);
        if !matches!(refusal, Err(CommError::WrongLength { .. })) {
            return Err(format!("an uneven all_to_all gave {refusal:?}"));
        }
        let others = [(rank + 1) % size];
        if !matches!(world.subgroup(&others), Err(CommError::BadGroup { .. })) {
            return Err("a rank got a group that it is not in".to_string());
        }
    }
    let scatter = group.scatter(None, &mut [0_u8], rank);
    if !matches!(scatter, Err(CommError::RootWithoutBuffer { .. })) {
        return Err(format!("a root without a buffer gave {scatter:?}"));
    }
    // Nothing was sent, and no call was counted: the group works, byte buffers included.
    let mut sum = [1_u8];
    let values = ValuesMut::from_bytes(DType::U8, &mut sum).map_err(text)?;
    group.erased().all_reduce(values, ReduceOp::Sum).map_err(text)?;
    same("sum afterwards", &sum, &[size as u8])
}
