//! Transforms of lines: what lies in the last dim of consecutive values.

use rustfft::num_complex::Complex;

use super::{
    Direction,
    plans::{Real, complex_plan, forward_real_plan, inverse_real_plan},
};
use crate::{DType, LocalError, Result, Tensor, threads::for_pieces_of};

/// Values that a thread is woken up for.
const PIECE: usize = 1 << 14;

/// One kind of transform of all lines.
#[derive(Clone, Copy)]
pub(super) struct Lines {
    pub(super) op: &'static str,
    pub(super) kind: Kind,
    /// Values per line of the result, or of the input if the result is half of a spectrum: the length of
    /// the transform. At least one. The lines of the input are cropped or filled up with zeros.
    pub(super) length: usize,
    /// What the result is multiplied by.
    pub(super) factor: f64,
}

#[derive(Clone, Copy)]
pub(super) enum Kind {
    Complex(Direction),
    /// Half of the spectrum of real values; the other half is its mirror.
    RealToComplex,
    /// Back again.
    ComplexToReal,
}

impl Lines {
    /// Complex tensors have lines in the dim before the last, real ones in the last. The shape is that of
    /// the result.
    pub(super) fn transform(self, input: &Tensor, shape: &[usize]) -> Result<Tensor> {
        if input.is_meta() {
            return Tensor::meta(shape, input.dtype());
        }
        match input.dtype() {
            DType::F32 => self.typed::<f32>(input, shape),
            DType::F64 => self.typed::<f64>(input, shape),
            got => Err(LocalError::NotFullPrecision { op: self.op, got }),
        }
    }

    fn typed<T: Real>(self, input: &Tensor, shape: &[usize]) -> Result<Tensor> {
        let input = input.contiguous();
        let have = match self.kind {
            Kind::RealToComplex => input.shape()[input.n_dims() - 1],
            _ => input.shape()[input.n_dims() - 2],
        };
        let input = input.as_slice::<T>()?;
        Tensor::write(self.op, shape, |out: &mut [T]| {
            match self.kind {
                Kind::Complex(direction) => {
                    self.complex(as_complex(input), have, as_complex_mut(out), direction);
                }
                Kind::RealToComplex => self.real_to_complex(input, have, as_complex_mut(out)),
                Kind::ComplexToReal => self.complex_to_real(as_complex(input), have, out),
            }
            if self.factor != 1.0 {
                let factor = T::rounded(self.factor);
                for_pieces_of(out, 1, PIECE, |_, part| {
                    part.iter_mut().for_each(|value| *value = *value * factor);
                });
            }
        })
    }

    fn complex<T: Real>(
        self,
        input: &[Complex<T>],
        have: usize,
        out: &mut [Complex<T>],
        direction: Direction,
    ) {
        let plan = complex_plan::<T>(self.length, direction);
        for_pieces_of(out, self.length, PIECE / self.length, |piece, part| {
            for (line, part) in piece.zip(part.chunks_exact_mut(self.length)) {
                fit(&input[line * have..(line + 1) * have], part);
            }
            let mut scratch = vec![Complex::default(); plan.get_inplace_scratch_len()];
            plan.process_with_scratch(part, &mut scratch);
        });
    }

    fn real_to_complex<T: Real>(self, input: &[T], have: usize, out: &mut [Complex<T>]) {
        let plan = forward_real_plan::<T>(self.length);
        let half = self.length / 2 + 1;
        for_pieces_of(out, half, PIECE / self.length, |piece, part| {
            // The transform uses its input as scratch, so that is a copy.
            let mut values = plan.make_input_vec();
            let mut scratch = plan.make_scratch_vec();
            for (line, part) in piece.zip(part.chunks_exact_mut(half)) {
                fit(&input[line * have..(line + 1) * have], &mut values);
                let done = plan.process_with_scratch(&mut values, part, &mut scratch);
                debug_assert!(done.is_ok(), "{done:?}: the lengths are the plan's");
            }
        });
    }

    fn complex_to_real<T: Real>(self, input: &[Complex<T>], have: usize, out: &mut [T]) {
        let plan = inverse_real_plan::<T>(self.length);
        for_pieces_of(out, self.length, PIECE / self.length, |piece, part| {
            let mut values = plan.make_input_vec();
            let mut scratch = plan.make_scratch_vec();
            for (line, part) in piece.zip(part.chunks_exact_mut(self.length)) {
                fit(&input[line * have..(line + 1) * have], &mut values);
                // Real values have no imaginary part there; what is there is ignored, as by PyTorch.
                values[0].im = T::zero();
                if self.length.is_multiple_of(2) {
                    values[self.length / 2].im = T::zero();
                }
                let done = plan.process_with_scratch(&mut values, part, &mut scratch);
                debug_assert!(done.is_ok(), "{done:?}: the lengths are the plan's");
            }
        });
    }
}

/// Copies a line, cropped or filled up with zeros.
fn fit<T: Copy + Default>(line: &[T], out: &mut [T]) {
    let common = line.len().min(out.len());
    out[..common].copy_from_slice(&line[..common]);
    out[common..].fill(T::default());
}

fn as_complex<T: Real>(values: &[T]) -> &[Complex<T>] {
    // SAFETY: A `Complex<T>` is two `T`s, one after the other (`repr(C)`), aligned as they are; half as
    // many lie within the slice.
    unsafe { std::slice::from_raw_parts(values.as_ptr().cast(), values.len() / 2) }
}

fn as_complex_mut<T: Real>(values: &mut [T]) -> &mut [Complex<T>] {
    // SAFETY: As in `as_complex`, and borrowed for as long.
    unsafe { std::slice::from_raw_parts_mut(values.as_mut_ptr().cast(), values.len() / 2) }
}
