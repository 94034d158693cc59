//! Failures that only one rank sees.
//!
//! Whether an index is in range, a divisor is zero or a matrix has an inverse is known to the rank that holds
//! it. A rank that failed alone would leave the others waiting in the next collective. So where ranks hold
//! different values of what an operation [may refuse](Op::may_refuse), they agree before results are given
//! out: one all-reduce of 8 bytes says that all have one. If not, every rank gets the same error.

use std::{
    collections::BTreeSet,
    sync::{Mutex, PoisonError},
};

use dtensor_comm::{Group, ReduceOp};
use dtensor_layout::{DType, Layout, Placement, plan::StepKind};
use dtensor_local::LocalError;

use crate::{
    DeviceMesh, Error, Phase, Result, debug,
    op::{Meta, Op},
};

/// The ranks that have to agree whether an operation fails.
#[derive(Clone, Debug)]
pub(crate) struct Agreement {
    op: &'static str,
    /// What the calls are known by.
    name: &'static str,
    group: Group,
    /// How many such groups the mesh has.
    n_groups: usize,
    /// Whether only integers may be refused: indices.
    is_of_indices: bool,
}

impl Agreement {
    /// For operands in these layouts. `None` where every rank sees the same values, or nothing that may be
    /// refused.
    pub(crate) fn of(
        op: &dyn Op,
        operands: &[Layout],
        mesh: &DeviceMesh,
    ) -> Result<Option<Agreement>> {
        let metas: Vec<Meta> = operands.iter().map(Meta::of_layout).collect();
        let refused: Vec<&Layout> = operands
            .iter()
            .enumerate()
            .filter(|(operand, _)| op.may_refuse(*operand, &metas))
            .map(|(_, layout)| layout)
            .collect();
        let differ = |axis: &usize| {
            mesh.mesh().axis_size(*axis) > 1
                && refused.iter().any(|layout| layout.placements()[*axis] != Placement::Replicate)
        };
        let axes: Vec<usize> = (0..mesh.n_axes()).filter(differ).collect();
        if axes.is_empty() || mesh.coord().is_none() {
            return Ok(None);
        }
        let op = op.name();
        let name = known(&format!("{op} check"));
        let group = mesh.group_of(op, &axes)?.tag(name);
        let n_groups = mesh.size() / group.size();
        let is_of_indices = refused.iter().all(|layout| !layout.dtype().is_float());
        Ok(Some(Agreement { op, name, group, n_groups, is_of_indices }))
    }

    /// What this rank has computed, if no rank has failed. Else the error of one of them, the same on all.
    pub(crate) fn on<T>(&self, computed: Result<T, LocalError>) -> Result<T> {
        if self.is_of_indices && debug::phase() == Phase::Backward && computed.is_ok() {
            // Those of a gradient are the ones that were agreed upon before.
            return computed.map_err(Error::from);
        }
        let own = computed.as_ref().err().map(written).unwrap_or_default();
        let mut longest = [own.len() as i64];
        {
            let _sending = debug::sent(self.name, StepKind::AllReduce, || self.bytes(16));
            self.group.all_reduce(&mut longest, ReduceOp::Max).map_err(Error::comm(self.op))?;
        }
        match computed {
            Ok(computed) if longest[0] == 0 => Ok(computed),
            _ => Err(self.first(&own, usize::try_from(longest[0]).unwrap_or(0))?.into()),
        }
    }

    /// Of the errors of all ranks, of which the longest has so many bytes, that of the first matrix, or else
    /// of the first rank.
    #[cold]
    fn first(&self, own: &str, longest: usize) -> Result<LocalError> {
        let _sending = debug::sent(self.name, StepKind::AllGather, || self.bytes(longest));
        let mut padded = own.as_bytes().to_vec();
        padded.resize(longest, 0);
        let mut all = vec![0; longest * self.group.size()];
        self.group.all_gather(&padded, &mut all).map_err(Error::comm(self.op))?;
        let texts = all.chunks(longest.max(1)).map(String::from_utf8_lossy);
        let errors = texts.filter_map(|text| read(text.trim_end_matches('\0')));
        let first = errors.min_by(|a, b| matrix(a).cmp(matrix(b)));
        Ok(first.unwrap_or_else(|| other(self.op, "it failed on one of the ranks")))
    }

    /// Of a call in which every rank sends so many to every other.
    fn bytes(&self, each: usize) -> u128 {
        (each * (self.group.size() - 1) * self.n_groups) as u128
    }
}

/// Between the parts of an error that is sent.
const BETWEEN: char = '\u{1f}';

/// An error as a text that is not empty.
fn written(error: &LocalError) -> String {
    use LocalError::{
        BadNumber, DivisionByZero, IndexOutOfRange, NoConvergence, NotFinite, NotPositiveDefinite,
        Singular,
    };
    let text = |parts: &[&dyn ToString]| {
        let parts: Vec<String> = parts.iter().map(|part| part.to_string()).collect();
        parts.join(&BETWEEN.to_string())
    };
    let of_matrix = |kind: &str, op: &str, matrix: &[usize]| {
        let mut parts: Vec<&dyn ToString> = vec![&kind, &op];
        parts.extend(matrix.iter().map(|index| index as &dyn ToString));
        text(&parts)
    };
    match error {
        IndexOutOfRange { op, index, dim, size } => text(&[&"index", op, index, dim, size]),
        DivisionByZero { op, dtype } => text(&[&"zero", op, dtype]),
        BadNumber { op, name, got, want } => text(&[&"number", op, name, got, want]),
        NotFinite { op, matrix } => of_matrix("not finite", op, matrix),
        Singular { op, matrix } => of_matrix("singular", op, matrix),
        NotPositiveDefinite { op, matrix } => of_matrix("not positive", op, matrix),
        NoConvergence { op, matrix } => of_matrix("no convergence", op, matrix),
        any => {
            let why = any.to_string();
            let (op, why) = why.split_once(": ").unwrap_or(("", &why));
            text(&[&"other", &op, &why])
        }
    }
}

/// What [`written`] wrote, on this rank or on another.
fn read(text: &str) -> Option<LocalError> {
    let mut parts = text.split(BETWEEN);
    let (kind, op) = (parts.next()?, known(parts.next()?));
    let parts: Vec<&str> = parts.collect();
    let matrix = || parts.iter().map(|index| index.parse().ok()).collect::<Option<Vec<usize>>>();
    Some(match (kind, &parts[..]) {
        ("index", [index, dim, size]) => LocalError::IndexOutOfRange {
            op,
            index: index.parse().ok()?,
            dim: dim.parse().ok()?,
            size: size.parse().ok()?,
        },
        ("zero", [dtype]) => {
            let dtype = DType::ALL.into_iter().find(|known| known.to_string() == *dtype)?;
            LocalError::DivisionByZero { op, dtype }
        }
        ("number", [name, got, want]) => {
            let (name, got, want) = (known(name), (*got).to_string(), known(want));
            LocalError::BadNumber { op, name, got, want }
        }
        ("not finite", _) => LocalError::NotFinite { op, matrix: matrix()? },
        ("singular", _) => LocalError::Singular { op, matrix: matrix()? },
        ("not positive", _) => LocalError::NotPositiveDefinite { op, matrix: matrix()? },
        ("no convergence", _) => LocalError::NoConvergence { op, matrix: matrix()? },
        (_, why) => other(op, why.first()?),
    })
}

/// An error of which only the message is known.
fn other(op: &'static str, why: &str) -> LocalError {
    LocalError::Foreign { op, why: why.to_string() }
}

/// Which matrix an error is about.
fn matrix(error: &LocalError) -> &[usize] {
    match error {
        LocalError::NotFinite { matrix, .. }
        | LocalError::Singular { matrix, .. }
        | LocalError::NotPositiveDefinite { matrix, .. }
        | LocalError::NoConvergence { matrix, .. } => matrix,
        _ => &[],
    }
}

/// A name, for as long as the program runs. The ranks run the same program, so these are its constants, of
/// which there are few.
fn known(name: &str) -> &'static str {
    static NAMES: Mutex<BTreeSet<&'static str>> = Mutex::new(BTreeSet::new());
    let mut names = NAMES.lock().unwrap_or_else(PoisonError::into_inner);
    match names.get(name) {
        Some(known) => known,
        None => {
            let name: &'static str = Box::leak(name.into());
            names.insert(name);
            name
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_that_is_sent_arrives_as_it_was() {
        let matrix = vec![3, 0, 12];
        let errors = [
            LocalError::IndexOutOfRange { op: "gather", index: -7, dim: 1, size: 5 },
            LocalError::DivisionByZero { op: "rem", dtype: DType::I32 },
            LocalError::BadNumber { op: "mine", name: "p", got: "NaN".into(), want: "a number" },
            LocalError::NotFinite { op: "svd", matrix: Vec::new() },
            LocalError::Singular { op: "inv", matrix: matrix.clone() },
            LocalError::NotPositiveDefinite { op: "cholesky", matrix: matrix.clone() },
            LocalError::NoConvergence { op: "eigh", matrix },
        ];
        for error in errors {
            assert_eq!(read(&written(&error)), Some(error));
        }
        // Of others the message arrives.
        let error = LocalError::NothingToReduce { op: "amax", shape: vec![0] };
        let arrived = read(&written(&error)).map(|error| error.to_string());
        assert_eq!(arrived, Some(error.to_string()));
        assert_eq!(read(""), None);
    }
}
