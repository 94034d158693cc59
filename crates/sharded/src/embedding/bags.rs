//! Which ids make up which bag.

use dtensor_dtype::DType;
use dtensor_local::{LocalError, Tensor};

use super::{
    bag::{BagMode, BagOptions},
    lookup,
};
use crate::{Error, Result, ShardedTensor, ops::OpCall};

/// What a rank gives of its bags.
pub(super) struct BagArguments<'a> {
    pub ids: &'a Tensor,
    pub offsets: Option<&'a Tensor>,
    pub mode: BagMode,
    pub per_sample_weights: Option<&'a Tensor>,
    pub padding: Option<i64>,
    pub include_last_offset: bool,
}

impl<'a> BagArguments<'a> {
    /// As the operation is called.
    pub(super) fn of(call: &OpCall<'a>) -> Result<BagArguments<'a>> {
        let mode = match call.integer(3)? {
            0 => BagMode::Sum,
            1 => BagMode::Mean,
            2 => BagMode::Max,
            other => {
                return Err(Error::refused(
                    call.name(),
                    format!("a mode of {other}"),
                    "0, 1 or 2 are sum, mean and max",
                ));
            }
        };
        Ok(BagArguments {
            ids: call.plain(0)?,
            offsets: call.optional(2, OpCall::plain)?,
            mode,
            per_sample_weights: call.optional(4, OpCall::plain)?,
            padding: call.optional(5, OpCall::integer)?.map(|row| row as i64),
            include_last_offset: call.number_or(6, false)?.to_f64() != 0.0,
        })
    }

    /// As options say.
    pub(super) fn with_options(
        ids: &'a Tensor,
        offsets: Option<&'a Tensor>,
        options: &'a BagOptions,
    ) -> BagArguments<'a> {
        BagArguments {
            ids,
            offsets,
            mode: options.mode,
            per_sample_weights: options.per_sample_weights.as_ref(),
            padding: options.padding_idx.map(|row| i64::try_from(row).unwrap_or(i64::MAX)),
            include_last_offset: options.include_last_offset,
        }
    }

    /// The bags of rows of a table, or what is wrong with them on this rank.
    pub(super) fn bags(&self, op: &'static str, table: &ShardedTensor) -> Result<Bags> {
        let ids = lookup::ids_of(op, self.ids, table)?;
        let ends = ends_of(op, self, ids.len())?;
        let rows = table.size()[0];
        if let Some(row) = self.padding
            && usize::try_from(row).map_or(true, |row| row >= rows)
        {
            let what = format!("row {row} for padding, of a table of {rows}");
            return Err(Error::refused(op, what, "name a row of the table"));
        }
        let weights = match self.per_sample_weights {
            None => None,
            Some(_) if self.mode != BagMode::Sum => {
                return Err(Error::refused(
                    op,
                    "weights of ids with a mean or a maximum",
                    "use the sum",
                ));
            }
            Some(weights) if weights.shape() != self.ids.shape() => {
                let what = format!(
                    "weights of shape {:?} for ids of {:?}",
                    weights.shape(),
                    self.ids.shape()
                );
                return Err(Error::refused(op, what, "give one weight per id"));
            }
            Some(weights) => Some(weights.to_dtype(DType::F64)?.to_vec::<f64>()?),
        };
        let counts = |position: &usize| Some(ids[*position]) != self.padding;
        let kept: Vec<usize> = (0..ids.len()).filter(counts).collect();
        Ok(Bags {
            mode: self.mode,
            ids: kept.iter().map(|position| ids[*position]).collect(),
            weights: weights
                .map(|weights| kept.iter().map(|position| weights[*position]).collect()),
            ends: ends.iter().map(|end| kept.partition_point(|position| position < end)).collect(),
            positions: kept,
        })
    }
}

/// The bags of a rank, without what does not count.
pub(super) struct Bags {
    pub mode: BagMode,
    pub ids: Vec<i64>,
    /// One per id.
    pub weights: Option<Vec<f64>>,
    /// Where each bag ends among the ids.
    pub ends: Vec<usize>,
    /// Where each id was among all that were given.
    pub positions: Vec<usize>,
}

/// Where each bag ends.
fn ends_of(op: &'static str, arguments: &BagArguments<'_>, n: usize) -> Result<Vec<usize>> {
    let include_last = arguments.include_last_offset;
    match (arguments.ids.shape(), arguments.offsets) {
        ([bags, length], None) if !include_last => {
            Ok((1..=*bags).map(|bag| bag * length).collect())
        }
        ([_, _], None) => Err(Error::refused(
            op,
            "include_last_offset without offsets",
            "give ids of one dim and offsets",
        )),
        ([_, _], Some(_)) => Err(Error::refused(
            op,
            "ids of two dims and offsets",
            "rows are bags already: leave offsets out",
        )),
        ([_], None) => {
            Err(Error::refused(op, "ids of one dim without offsets", "say where bags begin"))
        }
        ([_], Some(offsets)) => {
            let offsets = match (offsets.dtype(), offsets.n_dims()) {
                (DType::I64 | DType::I32, 1) => offsets.to_dtype(DType::I64)?.to_vec::<i64>()?,
                (got, 1) => return Err(LocalError::WrongDType { op, got, want: DType::I64 }.into()),
                (_, dims) => {
                    return Err(Error::refused(
                        op,
                        format!("offsets of {dims} dims"),
                        "give one dim",
                    ));
                }
            };
            let bounds = offsets.iter().map(|offset| usize::try_from(*offset).ok());
            let mut bounds: Vec<usize> = bounds.collect::<Option<_>>().unwrap_or_default();
            if bounds.len() != offsets.len()
                || bounds.first().is_some_and(|first| *first != 0)
                || !bounds.is_sorted()
                || bounds.last().is_some_and(|last| *last > n)
            {
                let what = format!("offsets {offsets:?} for {n} ids");
                return Err(Error::refused(
                    op,
                    what,
                    "they begin with 0, ascend, and end within the ids",
                ));
            }
            match include_last {
                true if bounds.last() != Some(&n) => {
                    let what = format!("offsets that end with {:?} for {n} ids", bounds.last());
                    return Err(Error::refused(
                        op,
                        what,
                        "with include_last_offset the last is the number of ids",
                    ));
                }
                true => {}
                false => bounds.push(n),
            }
            Ok(bounds.into_iter().skip(1).collect())
        }
        (shape, _) => {
            Err(Error::refused(op, format!("ids of {} dims", shape.len()), "give one dim or two"))
        }
    }
}
