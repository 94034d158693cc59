//! Ctrl-C: the step is finished, a checkpoint written, and every rank ends.

use std::sync::{
    Once,
    atomic::{AtomicBool, Ordering},
};

use dtensor::{ReduceOp, World};

static ASKED: AtomicBool = AtomicBool::new(false);

/// Listens from now on. A second Ctrl-C ends the program at once.
pub fn listen() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        // Without it the program ends at once, as every program does.
        let _ = ctrlc::set_handler(|| {
            if ASKED.swap(true, Ordering::Relaxed) {
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
