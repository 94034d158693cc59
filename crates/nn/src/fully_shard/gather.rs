//! One parameter, gathered.

use std::{
    mem,
    sync::{
        Arc, Mutex, PoisonError, Weak,
        atomic::{AtomicUsize, Ordering},
    },
};

use dtensor::{
    DTensor, Keeper, PendingDTensor, Phase, Placement, RedistributeOptions, Result,
    is_grad_enabled, phase,
};

use super::Unit;

/// How a parameter is gathered, and how far that is.
pub(crate) struct Gather {
    /// Its placements when it is whole.
    whole: Vec<Placement>,
    unit: Weak<Unit>,
    /// How many calls of its module are going on.
    open: usize,
    now: Now,
}

enum Now {
    Away,
    UnderWay(PendingDTensor),
    Here(DTensor),
}

impl Gather {
    pub(super) fn new(whole: Vec<Placement>, unit: &Arc<Unit>) -> Gather {
        Gather { whole, unit: Arc::downgrade(unit), open: 0, now: Now::Away }
    }

    /// Begins to gather.
    pub(super) fn start(&mut self, value: &DTensor) -> Result<()> {
        if matches!(self.now, Now::Away) {
            let options = self.options();
            self.now = Now::UnderWay(value.start_redistribute_with(&self.whole, &options)?);
        }
        Ok(())
    }

    /// A call of the module begins: what is gathered is held until it ends.
    pub(super) fn open(&mut self) {
        self.open += 1;
    }

    pub(super) fn close(&mut self) {
        self.open = self.open.saturating_sub(1);
        if self.open == 0 && matches!(self.now, Now::Here(_)) {
            self.now = Now::Away;
        }
    }

    /// The whole parameter.
    pub(crate) fn get(&mut self, value: &DTensor) -> Result<DTensor> {
        let whole = match mem::replace(&mut self.now, Now::Away) {
            Now::Here(whole) if leads_back(&whole, value) => whole,
            Now::UnderWay(pending) => self.with_ticket(value, pending.wait()?),
            Now::Here(_) | Now::Away => {
                let whole = value.redistribute_with(&self.whole, &self.options())?;
                self.with_ticket(value, whole)
            }
        };
        if self.open > 0 {
            self.now = Now::Here(whole.clone());
        }
        Ok(whole)
    }

    /// Forgets what was gathered from a value that is no longer the parameter's.
    pub(crate) fn forget(&mut self) -> Result<()> {
        if let Now::UnderWay(pending) = mem::replace(&mut self.now, Now::Away) {
            pending.wait()?;
        }
        Ok(())
    }

    fn options(&self) -> RedistributeOptions {
        self.unit.upgrade().map(|unit| unit.redistribute_options()).unwrap_or_default()
    }

    /// Gradients keep a ticket, with which it is gathered again, instead of the whole. Not what is computed again on the
    /// way back, whose gradients come next.
    fn with_ticket(&self, value: &DTensor, whole: DTensor) -> DTensor {
        if phase() == Phase::Backward {
            return whole;
        }
        let Some(unit) = self.unit.upgrade().filter(|unit| unit.reshards()) else { return whole };
        if whole.layout() == value.layout() {
            return whole;
        }
        let ticket = Arc::new(Ticket {
            value: value.clone(),
            whole: self.whole.clone(),
            options: unit.redistribute_options(),
            unit: self.unit.clone(),
            now: Mutex::new(Now::Away),
            n_passed: AtomicUsize::new(0),
        });
        unit.remember(&ticket);
        whole.kept_by(ticket)
    }
}

/// Whether what was gathered can be used here. It was gathered without gradients perhaps, in what is only used or computed
/// again later, and gradients would not find the way from it to the parameter.
fn leads_back(whole: &DTensor, value: &DTensor) -> bool {
    whole.needs_grad() || !value.needs_grad() || !is_grad_enabled()
}

/// What is kept of a gathered parameter: its parts. Once it has been gathered again, the whole, until the last gradient
/// that needs it has been computed and the ticket goes, or is kept for another walk.
pub(super) struct Ticket {
    value: DTensor,
    whole: Vec<Placement>,
    options: RedistributeOptions,
    unit: Weak<Unit>,
    now: Mutex<Now>,
    /// How many gradients have been computed with it in a walk after which it stays.
    n_passed: AtomicUsize,
}

impl Ticket {
    pub(super) fn start(&self) -> Result<()> {
        let mut now = self.now.lock().unwrap_or_else(PoisonError::into_inner);
        if matches!(*now, Now::Away) {
            *now = Now::UnderWay(self.value.start_redistribute_with(&self.whole, &self.options)?);
        }
        Ok(())
    }
}

impl Keeper for Ticket {
    fn again(&self) -> Result<DTensor> {
        let whole = {
            let mut now = self.now.lock().unwrap_or_else(PoisonError::into_inner);
            let whole = match mem::replace(&mut *now, Now::Away) {
                Now::Here(whole) if leads_back(&whole, &self.value) => whole,
                Now::UnderWay(pending) => pending.wait()?,
                Now::Here(_) | Now::Away => {
                    self.value.redistribute_with(&self.whole, &self.options)?
                }
            };
            *now = Now::Here(whole.clone());
            whole
        };
        if let Some(unit) = self.unit.upgrade() {
            unit.start_previous()?;
        }
        Ok(whole)
    }

    fn passed(&self, holders: usize) {
        if self.n_passed.fetch_add(1, Ordering::Relaxed) + 1 >= holders {
            self.n_passed.store(0, Ordering::Relaxed);
            let mut now = self.now.lock().unwrap_or_else(PoisonError::into_inner);
            if matches!(*now, Now::Here(_)) {
                *now = Now::Away;
            }
        }
    }
}
