//! The plans of `rustfft` and `realfft`, kept for the next transform of the same length.

use std::{cell::RefCell, sync::Arc};

use realfft::{ComplexToReal, RealFftPlanner, RealToComplex};
use rustfft::{Fft, FftNum, FftPlanner};

use super::Direction;
use crate::Element;

/// Values for which a thread keeps plans; beyond, it begins anew. Plans need memory in proportion to
/// their lengths, and a program may have any number of these.
const KEPT: usize = 1 << 22;

/// `f32` and `f64`.
pub(super) trait Real: Element + FftNum {
    fn rounded(value: f64) -> Self;

    /// Calls `plan` with the planners of this thread and this type, told that it wants `length`.
    fn with_planners<R>(length: usize, plan: impl FnOnce(&mut Planners<Self>) -> R) -> R;
}

pub(super) fn complex_plan<T: Real>(length: usize, direction: Direction) -> Arc<dyn Fft<T>> {
    T::with_planners(length, |planners| match direction {
        Direction::Forward => planners.complex.plan_fft_forward(length),
        Direction::Inverse => planners.complex.plan_fft_inverse(length),
    })
}

pub(super) fn forward_real_plan<T: Real>(length: usize) -> Arc<dyn RealToComplex<T>> {
    T::with_planners(length, |planners| planners.real.plan_fft_forward(length))
}

pub(super) fn inverse_real_plan<T: Real>(length: usize) -> Arc<dyn ComplexToReal<T>> {
    T::with_planners(length, |planners| planners.real.plan_fft_inverse(length))
}

pub(super) struct Planners<T: FftNum> {
    complex: FftPlanner<T>,
    real: RealFftPlanner<T>,
    lengths: Vec<usize>,
}

impl<T: FftNum> Planners<T> {
    fn new() -> Self {
        Planners { complex: FftPlanner::new(), real: RealFftPlanner::new(), lengths: Vec::new() }
    }

    fn will_plan(&mut self, length: usize) {
        if self.lengths.contains(&length) {
            return;
        }
        if self.lengths.iter().sum::<usize>().saturating_add(length) > KEPT {
            *self = Planners::new();
        }
        self.lengths.push(length);
    }
}

macro_rules! real {
    ($type:ty) => {
        impl Real for $type {
            fn rounded(value: f64) -> Self {
                value as $type
            }

            fn with_planners<R>(length: usize, plan: impl FnOnce(&mut Planners<Self>) -> R) -> R {
                thread_local! {
                    static PLANNERS: RefCell<Planners<$type>> = RefCell::new(Planners::new());
                }
                PLANNERS.with_borrow_mut(|planners| {
                    planners.will_plan(length);
                    plan(planners)
                })
            }
        }
    };
}

real!(f32);
real!(f64);
