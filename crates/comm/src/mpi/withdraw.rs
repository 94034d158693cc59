//! Letting go of the buffers of a call that failed; the reasoning is in [`mod@super`], "Giving up".

use std::{sync::MutexGuard, time::Duration};

use super::{
    engine::{Engine, Shared},
    operation::Operation,
    wait::wait,
};
use crate::CommError;

/// How long a failing rank waits for the others to acknowledge. Those that wait in a call do so in
/// microseconds; those that compute may take longer, and those that are dead never do.
pub(super) const GRACE: Duration = Duration::from_secs(2);

/// Gives everybody the chance to learn that the world has ended, and to stop taking messages.
pub(super) fn settle<'a>(
    shared: &'a Shared,
    engine: MutexGuard<'a, Engine>,
) -> MutexGuard<'a, Engine> {
    let settled = |engine: &mut Engine| {
        let over = engine.is_over() || engine.has_settled();
        (over || engine.roster.survivors_have_ended()).then_some(())
    };
    let (mut engine, _) = wait(shared, engine, GRACE, settled);
    engine.set_settled();
    engine
}

/// Lets go of the buffers of a call that has failed; true if MPI has let go of them as well.
pub(super) fn withdraw<'a>(
    shared: &'a Shared,
    engine: MutexGuard<'a, Engine>,
    operation: &mut Operation,
) -> (MutexGuard<'a, Engine>, bool) {
    let engine = settle(shared, engine);
    if engine.is_over() {
        let quiet = operation.is_quiet(&engine);
        return (engine, quiet);
    }
    let (engine, quiet) =
        wait(shared, engine, GRACE, |engine| operation.give_up(engine).then_some(()));
    (engine, quiet.is_some())
}

/// The same for buffers that the caller gets back in any case.
pub(super) fn withdraw_borrowed<'a>(
    shared: &'a Shared,
    engine: MutexGuard<'a, Engine>,
    mut operation: Operation,
    error: CommError,
) -> CommError {
    let (mut engine, quiet) = withdraw(shared, engine, &mut operation);
    if operation.is_busy() && !engine.roster.survivors_have_ended() {
        // Something is still being sent, and a rank that might take it has not answered. Data moves
        // only while MPI is called, so it is not called any more.
        engine.close();
    }
    if !quiet {
        // A message was half received when its sender vanished, and MPI may go on writing. There is
        // no way to take the buffer back, and none to keep it.
        tracing::error!(%error, "MPI still writes to a buffer of a call that failed: aborting");
        engine.data_comm.abort();
    }
    final_error(engine, &operation, error)
}

/// The error of a call that has been withdrawn. When several causes were found at once, the one that
/// all have agreed upon in the meantime counts.
pub(super) fn final_error(
    mut engine: MutexGuard<'_, Engine>,
    operation: &Operation,
    error: CommError,
) -> CommError {
    let table = operation.table(&engine);
    engine.add_table(table);
    engine.stop(operation).unwrap_or(error)
}
