//! Places of values in a sorted sequence. How many elements of the sequence are before a value is the sum of how
//! many of each part are: a sequence that is cut stays so, and the result is a pending sum.

use dtensor_layout::rule::Rule;
use dtensor_local::{LocalError, Tensor};

use crate::{
    DTensor, Error, Result,
    dispatch::call_one,
    op::{
        LocalContext, Meta, Op, OpRecord, Outputs, Sample,
        SampleValues::{Ascending, Integer},
        one,
    },
    ops::indexing::held::{LIST, letters},
};

/// `searchsorted`: the sequence, and the values.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct SearchSorted {
    right: bool,
}

impl Op for SearchSorted {
    fn name(&self) -> &'static str {
        "searchsorted"
    }

    fn rule(&self, operands: &[Meta]) -> Result<Rule> {
        let letters = match operands[0].n_dims() {
            1 => "n, ... -> ...",
            _ => "... n, ... m -> ... m",
        };
        // The larger the value, the larger its place, NaN included. Not so for the smallest: a NaN among
        // contributions to a minimum is its value, but its place is not the smallest.
        let text = format!("{letters}; R P(max) -> P(max)");
        text.parse().map_err(Error::rule(self.name()))
    }

    fn eval(&self, x: &[&Tensor], _: &LocalContext) -> Result<Outputs, LocalError> {
        one(x[0].searchsorted(x[1], self.right))
    }
}

/// `bucketize`: the values, and the boundaries.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Bucketize {
    right: bool,
}

impl Op for Bucketize {
    fn name(&self) -> &'static str {
        "bucketize"
    }

    fn rule(&self, _: &[Meta]) -> Result<Rule> {
        let text = "..., n -> ...; P(max) R -> P(max)";
        text.parse().map_err(Error::rule(self.name()))
    }

    fn eval(&self, x: &[&Tensor], _: &LocalContext) -> Result<Outputs, LocalError> {
        one(x[0].bucketize(x[1], self.right))
    }
}

/// `isin`: the values, and the elements.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct IsIn;

impl Op for IsIn {
    fn name(&self) -> &'static str {
        "isin"
    }

    fn rule(&self, operands: &[Meta]) -> Result<Rule> {
        // Among all elements if among some: the maximum of bools is *or*.
        let elements = letters(LIST, operands[1].n_dims()).join(" ");
        Ok(Rule::of(&format!("..., {elements} -> ... @max"), &[]))
    }

    fn eval(&self, x: &[&Tensor], _: &LocalContext) -> Result<Outputs, LocalError> {
        one(x[0].isin(x[1]))
    }
}

impl DTensor {
    /// Where each of `values` would be inserted into this tensor, which is sorted along its last dim, as
    /// `i64`: before values that are equal, or after them if `right`.
    ///
    /// The sequence has one dim, or the leading dims of `values`. It may be cut along its last dim: the ranks
    /// count what is before each value, and the result is a pending sum.
    pub fn searchsorted(&self, values: &DTensor, right: bool) -> Result<DTensor> {
        call_one(&SearchSorted { right }, &[self, values])
    }

    /// The number of the bucket of each value, as `i64`: [`searchsorted`](DTensor::searchsorted) the other way
    /// round, in `boundaries` of one dim.
    pub fn bucketize(&self, boundaries: &DTensor, right: bool) -> Result<DTensor> {
        call_one(&Bucketize { right }, &[self, boundaries])
    }

    /// Whether each element equals one of `elements`, as `bool`. NaN equals nothing. Elements that are cut
    /// stay so, and the result is a pending *or*.
    pub fn isin(&self, elements: &DTensor) -> Result<DTensor> {
        call_one(&IsIn, &[self, elements])
    }
}

pub(super) const RECORDS: &[OpRecord] = &[
    OpRecord {
        name: "searchsorted",
        samples: || {
            let sample = |right, shapes: &[&[usize]; 2]| {
                Sample::new(SearchSorted { right }, shapes).with(0, Ascending)
            };
            vec![
                sample(false, &[&[5], &[4, 3]]),
                sample(true, &[&[3, 6], &[3, 4]]),
                sample(false, &[&[7], &[]]),
            ]
        },
    },
    OpRecord {
        name: "bucketize",
        samples: || {
            let sample = |right, shapes: &[&[usize]; 2]| {
                Sample::new(Bucketize { right }, shapes).with(1, Ascending)
            };
            vec![sample(true, &[&[4, 3], &[5]]), sample(false, &[&[7], &[3]])]
        },
    },
    OpRecord {
        name: "isin",
        samples: || {
            let sample = |shapes: &[&[usize]; 2]| {
                Sample::new(IsIn, shapes).with(0, Integer).with(1, Integer)
            };
            vec![sample(&[&[4, 3], &[5]]), sample(&[&[7], &[2, 3]]), sample(&[&[5], &[]])]
        },
    },
];
