use std::time::Instant;

use dtensor::{ReduceOp, World};
use dtensor_comm::CommError;
use serde_json::{Map, Value, json};

/// Times of one case, in microseconds.
#[derive(Clone, Debug, Default)]
pub struct Samples(Vec<f64>);

impl Samples {
    pub fn new(microseconds: Vec<f64>) -> Samples {
        Samples(microseconds)
    }

    pub fn push(&mut self, microseconds: f64) {
        self.0.push(microseconds);
    }

    pub fn extend(&mut self, other: Samples) {
        self.0.extend(other.0);
    }

    /// All of them, in microseconds.
    pub fn all(&self) -> &[f64] {
        &self.0
    }

    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// The shortest time: on a shared machine the one with the least noise of others in it.
    pub fn min(&self) -> f64 {
        self.0.iter().copied().fold(f64::INFINITY, f64::min)
    }

    /// The middle time, or the mean of the two middle ones.
    pub fn median(&self) -> f64 {
        let mut sorted = self.0.clone();
        sorted.sort_unstable_by(f64::total_cmp);
        let middle = sorted.len() / 2;
        match sorted.len() {
            0 => f64::NAN,
            n if n % 2 == 1 => sorted[middle],
            _ => (sorted[middle - 1] + sorted[middle]) / 2.0,
        }
    }

    /// Adds `min_us`, `median_us` and `n`, rounded to nanoseconds.
    pub fn insert_into(&self, line: &mut Map<String, Value>) {
        line.insert("min_us".into(), json!(nanoseconds(self.min())));
        line.insert("median_us".into(), json!(nanoseconds(self.median())));
        line.insert("n".into(), json!(self.0.len()));
    }
}

/// The time of the slowest rank, in microseconds. All ranks call it; `comm` says what becomes of an error of theirs.
pub fn of_slowest_rank<E>(
    world: &World,
    comm: impl Fn(CommError) -> E,
    work: impl FnOnce() -> Result<(), E>,
) -> Result<f64, E> {
    let group = world.group().tag("bench");
    group.barrier().map_err(&comm)?;
    let start = Instant::now();
    work()?;
    let mut slowest = [start.elapsed().as_secs_f64() * 1e6];
    group.all_reduce(&mut slowest, ReduceOp::Max).map_err(&comm)?;
    Ok(slowest[0])
}

fn nanoseconds(microseconds: f64) -> f64 {
    (microseconds * 1e3).round() / 1e3
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_middle_of_an_even_number_is_between_two() {
        assert_eq!(Samples::new(vec![3.0, 1.0, 2.0]).median(), 2.0);
        assert_eq!(Samples::new(vec![4.0, 1.0, 2.0, 3.0]).median(), 2.5);
        assert_eq!(Samples::new(vec![4.0, 1.0]).min(), 1.0);
    }
}
