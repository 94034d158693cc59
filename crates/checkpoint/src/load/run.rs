//! Carrying out a plan.

use dtensor_comm::Group;

use super::{
    disordered, memory::Memory, own::Own, plan::Plan, round::Exchange, source::Source,
    target::Target,
};
use crate::{Reader, Result, agree::agree, workers};

/// Reads what this rank reads, passes it on, and puts what it needs. All ranks succeed, or none does.
pub(super) fn run(
    group: &Group,
    reader: &Reader,
    targets: &[Target<'_>],
    plan: &Plan<'_>,
    memory: &mut Memory<'_, '_>,
) -> Result<()> {
    let mut source = Source::new(reader, targets, plan);
    // Ranks may all be on this machine, and each of them keeps a processor busy.
    let threads = (workers::threads(0) / group.size()).max(1);
    let mut own = Own::new(&plan.own, plan.rounds.len(), threads);
    let mut exchange = Exchange::new(group);
    let mut outcome = Ok(());
    for round in &plan.rounds {
        outcome = outcome.and_then(|()| own.go_on(&mut source, memory));
        // A rank that has failed meets the others in this round, and then all know it.
        if !exchange.run(&mut source, memory, round, &mut outcome)? {
            return agree(group, outcome);
        }
    }
    outcome = outcome.and_then(|()| own.finish(&mut source, memory));
    outcome = outcome.and_then(|()| disordered::read(reader, targets, plan, memory));
    agree(group, outcome)
}
