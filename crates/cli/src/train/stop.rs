//! Ctrl-C: the step is finished, a checkpoint written, and every rank ends.

use std::{
    sync::{
        Once,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use dtensor::{ReduceOp, World};

static ASKED: AtomicBool = AtomicBool::new(false);

/// Signals within this time are one wish: a launcher may pass on as SIGTERM what the terminal has sent as SIGINT to all of its group.
const ONE_WISH: Duration = Duration::from_millis(500);

/// Listens from now on. A second Ctrl-C ends the program at once.
pub fn listen() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let mut first: Option<Instant> = None;
        // Without it the program ends at once, as every program does.
        let _ = ctrlc::set_handler(move || {
            ASKED.store(true, Ordering::Relaxed);
            if first.get_or_insert_with(Instant::now).elapsed() > ONE_WISH {
                std::process::exit(130);
            }
        });
    });
}

/// Whether this process was asked to stop.
pub fn is_asked_here() -> bool {
    ASKED.load(Ordering::Relaxed)
}

/// Whether any rank was asked to stop: all say the same.
pub fn is_asked(world: &World) -> dtensor::Result<bool> {
    let mut asked = [i64::from(is_asked_here())];
    let everybody = world.group().tag("stop");
    everybody.all_reduce(&mut asked, ReduceOp::Max).map_err(|source| dtensor::Error::Comm {
        op: "stop",
        source: std::sync::Arc::new(source),
    })?;
    Ok(asked[0] != 0)
}
