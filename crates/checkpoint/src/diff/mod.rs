//! What differs between two checkpoints, whatever wrote them.

mod compare;

use std::{
    collections::{BTreeMap, BTreeSet},
    ops::Range,
    sync::{Mutex, PoisonError},
};

pub use compare::{Difference, Tolerance};

use dtensor_comm::Group;
use dtensor_layout::IndexBox;

use crate::{
    OnProgress, Result, Selection, Source, StoredType, Value, convert::pieces, progress::Meter,
    team::Team, workers,
};

/// What counts as a difference.
#[derive(Clone, Default)]
pub struct DiffOptions<'a> {
    /// Which names take part, on both sides; names of the first checkpoint are changed.
    pub select: Selection,
    /// How far numbers may lie apart.
    pub tolerance: Tolerance,
    /// Whether tensors of different types are equal if their numbers are.
    pub ignore_types: bool,
    /// Threads that read and compare; 0 is as many as the machine has.
    pub threads: usize,
    /// Processes that share the work: all of them call with the same arguments, each compares some of the elements, and all get the
    /// whole result. None: this process alone.
    pub group: Option<Group>,
    /// Told now and then how many bytes are done, of those that this process compares.
    pub progress: Option<&'a OnProgress<'a>>,
}

/// What two checkpoints hold, name by name.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Diff {
    /// By name.
    pub tensors: BTreeMap<String, TensorDiff>,
    /// By name; `None` where one of both has no such value. Equal ones are not listed.
    pub values: BTreeMap<String, (Option<Value>, Option<Value>)>,
}

/// A tensor of two checkpoints.
#[derive(Clone, Debug, PartialEq)]
pub struct TensorDiff {
    /// In the first.
    pub a: Option<TensorInfo>,
    /// In the second.
    pub b: Option<TensorInfo>,
    /// Of their elements, if both are there and of one shape.
    pub difference: Option<Difference>,
}

/// A tensor without its elements.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TensorInfo {
    /// The type of its elements.
    pub stored: StoredType,
    /// Its global shape.
    pub shape: Vec<usize>,
}

/// What is to be said of a tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// No difference beyond the tolerance.
    Equal,
    /// It is in the first only.
    OnlyInA,
    /// It is in the second only.
    OnlyInB,
    /// The shapes differ.
    Shape,
    /// The types differ, whether or not the numbers do.
    Type,
    /// Elements differ.
    Values,
}

impl TensorDiff {
    /// What is to be said of it.
    pub fn verdict(&self, ignore_types: bool) -> Verdict {
        match (&self.a, &self.b, &self.difference) {
            (_, None, _) => Verdict::OnlyInA,
            (None, _, _) => Verdict::OnlyInB,
            (Some(_), Some(_), None) => Verdict::Shape,
            (Some(a), Some(b), _) if a.stored != b.stored && !ignore_types => Verdict::Type,
            (_, _, Some(difference)) if difference.beyond > 0 => Verdict::Values,
            _ => Verdict::Equal,
        }
    }
}

impl Diff {
    /// Whether there is no difference at all.
    pub fn is_equal(&self, ignore_types: bool) -> bool {
        let equal = |tensor: &TensorDiff| tensor.verdict(ignore_types) == Verdict::Equal;
        self.values.is_empty() && self.tensors.values().all(equal)
    }
}

/// Compares two checkpoints: names, types, shapes, elements and values.
///
/// Elements are read piece by piece, so that checkpoints may be larger than memory.
pub fn diff(a: &Source, b: &Source, options: &DiffOptions<'_>) -> Result<Diff> {
    let team = Team::new(options.group.as_ref());
    let (mut diff, pairs) = team.agree(pairs(a, b, options))?;
    compare_all(a, b, &pairs, &team, options)?;
    let found: Vec<Difference> = pairs
        .iter()
        .map(|pair| *pair.difference.lock().unwrap_or_else(PoisonError::into_inner))
        .collect();
    for (pair, difference) in pairs.iter().zip(merged(&found, &team)?) {
        if let Some(tensor) = diff.tensors.get_mut(&pair.name) {
            tensor.difference = Some(difference);
        }
    }
    Ok(diff)
}

/// What all processes have found, pair by pair.
fn merged(own: &[Difference], team: &Team<'_>) -> Result<Vec<Difference>> {
    let mut all = vec![Difference::default(); own.len()];
    for found in team.all(own.iter().flat_map(|found| found.to_bytes()).collect())? {
        for (all, bytes) in all.iter_mut().zip(found.as_chunks().0) {
            all.merge(&Difference::from_bytes(bytes));
        }
    }
    Ok(all)
}

/// What can be said without reading elements, and the tensors whose elements are to be compared.
fn pairs<'n>(
    a: &'n Source,
    b: &'n Source,
    options: &DiffOptions<'_>,
) -> Result<(Diff, Vec<Pair<'n>>)> {
    options.select.check(a.names().chain(b.names()))?;
    let b_select = Selection { rename: Vec::new(), ..options.select.clone() };
    let a_names = options.select.apply(a.names())?;
    let b_names = b_select.apply(b.names())?;
    let mut diff = Diff::default();
    let mut pairs = Vec::new();
    for name in a_names.keys().chain(b_names.keys()).collect::<BTreeSet<_>>() {
        let (a_name, b_name) = (a_names.get(name).copied(), b_names.get(name).copied());
        a_name.map_or(Ok(()), |name| a.check_readable(name))?;
        b_name.map_or(Ok(()), |name| b.check_readable(name))?;
        let value =
            |source: &Source, name: Option<&str>| source.catalog().values.get(name?).cloned();
        let values = (value(a, a_name), value(b, b_name));
        if !same_value(&values) {
            diff.values.insert(name.clone(), values);
        }
        let info = |source: &Source, name: Option<&str>| {
            let entry = source.catalog().tensors.get(name?)?;
            Some(TensorInfo { stored: entry.stored, shape: entry.shape.clone() })
        };
        let (a_info, b_info) = (info(a, a_name), info(b, b_name));
        if let (Some(a_info), Some(b_info), Some(a_name), Some(b_name)) =
            (&a_info, &b_info, a_name, b_name)
            && a_info.shape == b_info.shape
        {
            let (a, b) = ((a_name, a_info.stored), (b_name, b_info.stored));
            pairs.push(Pair {
                name: name.clone(),
                shape: a_info.shape.clone(),
                a,
                b,
                difference: Mutex::default(),
            });
        }
        if a_info.is_some() || b_info.is_some() {
            diff.tensors
                .insert(name.clone(), TensorDiff { a: a_info, b: b_info, difference: None });
        }
    }
    Ok((diff, pairs))
}

/// A tensor that is on both sides with one shape: its name, and what each side calls it and stores.
struct Pair<'n> {
    name: String,
    shape: Vec<usize>,
    a: (&'n str, StoredType),
    b: (&'n str, StoredType),
    difference: Mutex<Difference>,
}

impl Pair<'_> {
    /// Bytes of an element, in the larger of both types.
    fn element_bytes(&self) -> usize {
        self.a.1.size().max(self.b.1.size())
    }
}

fn compare_all(
    a: &Source,
    b: &Source,
    pairs: &[Pair<'_>],
    team: &Team<'_>,
    options: &DiffOptions<'_>,
) -> Result<()> {
    let threads = workers::threads(options.threads);
    // Two buffers for each thread.
    let most = team.least(workers::piece_bytes(threads, 2))?;
    let mut jobs = Vec::new();
    for (position, pair) in pairs.iter().enumerate() {
        let index = IndexBox::whole(&pair.shape);
        let step = most / pair.element_bytes();
        for start in (0..index.numel()).step_by(step) {
            jobs.push((position, start..index.numel().min(start + step)));
        }
    }
    let bytes = |(position, elements): &(usize, Range<usize>)| {
        (elements.len() * pairs[*position].element_bytes()) as u64
    };
    let own = &jobs[team.share(jobs.iter().map(bytes))];
    let meter = Meter::new(own.iter().map(bytes).sum(), options.progress);
    let compared =
        workers::share(own.len(), threads, Default::default, |buffers: &mut [Vec<u8>; 2], job| {
            let (position, elements) = &own[job];
            let pair = &pairs[*position];
            let index = IndexBox::whole(&pair.shape);
            let [a_bytes, b_bytes] = buffers;
            for (source, (name, stored), bytes) in
                [(a, pair.a, &mut *a_bytes), (b, pair.b, &mut *b_bytes)]
            {
                bytes.resize(elements.len() * stored.size(), 0);
                source.read(name, &pieces::boxes(&index, elements.clone()), bytes)?;
            }
            let found =
                compare::compare((a_bytes, pair.a.1), (b_bytes, pair.b.1), &options.tolerance);
            pair.difference.lock().unwrap_or_else(PoisonError::into_inner).merge(&found);
            meter.add(bytes(&own[job]));
            Ok(())
        });
    team.agree(compared)
}

/// NaN is the same as NaN.
fn same_value((a, b): &(Option<Value>, Option<Value>)) -> bool {
    match (a, b) {
        (Some(Value::Float(a)), Some(Value::Float(b))) => a == b || a.is_nan() && b.is_nan(),
        (a, b) => a == b,
    }
}
