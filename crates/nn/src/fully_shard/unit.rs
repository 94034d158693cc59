//! A module whose parameters are gathered together.

use std::{
    cell::RefCell,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError, Weak,
        atomic::{AtomicBool, Ordering},
    },
};

use dtensor::{DTensor, Phase, RedistributeOptions, Result, is_grad_enabled, phase};

use super::{FullyShardOptions, gather::Ticket};
use crate::{Member, Module, Parameter, traverse};

/// The parameters of a module that are gathered when it runs.
pub(crate) struct Unit {
    parameters: Vec<Parameter>,
    options: FullyShardOptions,
    neighbours: Mutex<Neighbours>,
    /// What gradients keep of the parameters since the last call.
    tickets: Mutex<Vec<Weak<Ticket>>>,
    /// Whether nothing was kept when the module ran last: it runs once more on the way back.
    runs_again: AtomicBool,
}

/// The units that run before and after this one.
#[derive(Default)]
struct Neighbours {
    previous: Weak<Unit>,
    next: Weak<Unit>,
    /// Whether a unit around them has said so, and not the order in which they ran.
    are_told: bool,
}

thread_local! {
    /// The unit that ran last on this rank.
    static LAST: RefCell<Weak<Unit>> = const { RefCell::new(Weak::new()) };
}

impl Unit {
    pub(super) fn new(parameters: Vec<Parameter>, options: &FullyShardOptions) -> Arc<Unit> {
        Arc::new(Unit {
            parameters,
            options: options.clone(),
            neighbours: Mutex::default(),
            tickets: Mutex::default(),
            runs_again: AtomicBool::new(false),
        })
    }

    /// Runs a module with its parameters gathered.
    pub(crate) fn around(
        self: &Arc<Unit>,
        x: &DTensor,
        forward: impl FnOnce(&DTensor) -> Result<DTensor>,
    ) -> Result<DTensor> {
        /// Lets go of the parameters, also after an error.
        struct Close<'a>(&'a [Parameter]);
        impl Drop for Close<'_> {
            fn drop(&mut self) {
                for parameter in self.0 {
                    if let Some(gather) = &mut *parameter.gather() {
                        gather.close();
                    }
                }
            }
        }
        lock(&self.tickets).clear();
        match phase() {
            Phase::Forward => self.follow(),
            Phase::Backward => self.runs_again.store(false, Ordering::Relaxed),
        }
        self.start()?;
        self.start_following()?;
        for parameter in &self.parameters {
            if let Some(gather) = &mut *parameter.gather() {
                gather.open();
            }
        }
        let close = Close(&self.parameters);
        let x = match self.options.param_dtype {
            Some(dtype) if x.dtype().is_float() => x.to_dtype(dtype)?,
            _ => x.clone(),
        };
        let y = forward(&x)?;
        drop(close);
        match self.options.output_dtype {
            Some(dtype) if y.dtype().is_float() => y.to_dtype(dtype),
            _ => Ok(y),
        }
    }

    /// Blocks of a model that is no unit itself are told of each other by nobody. The first time that they run, each learns
    /// which one ran before it. All ranks run them in one order, and so learn the same.
    fn follow(self: &Arc<Unit>) {
        let last = LAST.with_borrow_mut(|last| std::mem::replace(last, Arc::downgrade(self)));
        let Some(last) = last.upgrade() else { return };
        let is_free = |unit: &Unit, neighbour: fn(&Neighbours) -> &Weak<Unit>| {
            let neighbours = lock(&unit.neighbours);
            !neighbours.are_told && neighbour(&neighbours).upgrade().is_none()
        };
        let are_free = is_free(self, |own| &own.previous) && is_free(&last, |own| &own.next);
        // The first block runs after the last one as well, in the next step, with other values.
        if are_free && !self.leads_to(&last) {
            link_pair(&last, self);
        }
    }

    /// Whether another one runs after this one, as far as they have learnt it themselves.
    fn leads_to(self: &Arc<Unit>, other: &Arc<Unit>) -> bool {
        let mut unit = Some(self.clone());
        while let Some(own) = unit {
            if Arc::ptr_eq(&own, other) {
                return true;
            }
            let neighbours = lock(&own.neighbours);
            unit = neighbours.next.upgrade().filter(|_| !neighbours.are_told);
        }
        false
    }

    /// Begins to gather all parameters.
    fn start(&self) -> Result<()> {
        for parameter in &self.parameters {
            if let Some(gather) = &mut *parameter.gather() {
                gather.start(&parameter.value())?;
            }
        }
        Ok(())
    }

    /// Begins to gather the parameters of the unit that runs after this one, which on the way back is the one before it.
    fn start_following(&self) -> Result<()> {
        let following = match phase() {
            Phase::Forward => {
                self.runs_again.store(!is_grad_enabled(), Ordering::Relaxed);
                lock(&self.neighbours).next.upgrade()
            }
            Phase::Backward => {
                let previous = lock(&self.neighbours).previous.upgrade();
                previous.filter(|previous| previous.runs_again())
            }
        };
        following.filter(|_| self.options.prefetch).map_or(Ok(()), |following| following.start())
    }

    /// Begins to gather again what the gradients of the unit before this one need.
    pub(super) fn start_previous(&self) -> Result<()> {
        if !self.options.prefetch {
            return Ok(());
        }
        let Some(previous) = lock(&self.neighbours).previous.upgrade() else { return Ok(()) };
        let tickets: Vec<_> = lock(&previous.tickets).iter().filter_map(Weak::upgrade).collect();
        if tickets.is_empty() && previous.runs_again() {
            return previous.start();
        }
        tickets.iter().try_for_each(|ticket| ticket.start())
    }

    /// Whether it is still to run once more on the way back.
    fn runs_again(&self) -> bool {
        self.runs_again.load(Ordering::Relaxed)
    }

    pub(super) fn remember(&self, ticket: &Arc<Ticket>) {
        lock(&self.tickets).push(Arc::downgrade(ticket));
    }

    pub(super) fn reshards(&self) -> bool {
        self.options.reshard_after_forward
    }

    pub(super) fn redistribute_options(&self) -> RedistributeOptions {
        // A block's gradients go to their parts before those of the next block are computed, so that no rank has those of
        // the whole model.
        let mut options = RedistributeOptions::default().gradient_at_once();
        options.forward_dtype = self.options.param_dtype;
        options.backward_dtype = self.options.reduce_dtype;
        options
    }
}

/// Tells every unit of a model which ones run before and after it: those of a module before those in it, and else in the
/// order of the fields. The way back begins with what the model itself does after its last unit, and so that one comes before
/// the model.
pub(super) fn link(module: &dyn Module) {
    let mut units: Vec<Arc<Unit>> = module.state().unit().cloned().into_iter().collect();
    traverse::walk(module, "", &mut |_, member| {
        if let Member::Module(module) = member {
            units.extend(module.state().unit().cloned());
        }
        true
    });
    for pair in units.windows(2) {
        let [before, after] = pair else { continue };
        link_pair(before, after);
        lock(&before.neighbours).are_told = true;
        lock(&after.neighbours).are_told = true;
    }
    if let (Some(_), [around, .., last]) = (module.state().unit(), &*units) {
        lock(&around.neighbours).previous = Arc::downgrade(last);
    }
}

fn link_pair(before: &Arc<Unit>, after: &Arc<Unit>) {
    lock(&before.neighbours).next = Arc::downgrade(after);
    lock(&after.neighbours).previous = Arc::downgrade(before);
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
