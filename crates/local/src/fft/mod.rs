//! Fourier transforms, as `torch.fft`.
//!
//! ```
//! use dtensor_local::{Tensor, fft::{self, Norm}};
//!
//! let wave = Tensor::from_vec(vec![0.0_f64, 1.0, 0.0, -1.0], &[4])?;
//! let spectrum = fft::rfft(&wave, None, -1, Norm::Backward)?;
//! assert_eq!(spectrum.shape(), [3, 2]); // Three complex numbers.
//! assert_eq!(spectrum.to_vec::<f64>()?, [0.0, 0.0, 0.0, -2.0, 0.0, 0.0]);
//! assert_eq!(fft::irfft(&spectrum, None, -1, Norm::Backward)?.to_vec::<f64>()?, [0.0, 1.0, 0.0, -1.0]);
//! # Ok::<(), dtensor_local::LocalError>(())
//! ```
//!
//! # Complex numbers
//!
//! There is no complex dtype: **a complex tensor has a last dim of size 2**, the real and the imaginary
//! part, as `torch.view_as_real` gives it. **Dims are counted without that one**: of a complex tensor of
//! shape `[3, 8, 2]`, dim -1 is the one of size 8. A real tensor becomes a complex one by
//! `Tensor::stack(&[&x, &zeros], -1)`; but [`rfft`] takes it as it is.
//!
//! # Trade-offs
//!
//! * `f32` and `f64`; other dtypes are an error that asks for a conversion.
//! * Any length is fast, primes too: the algorithms are those of the crates `rustfft` and `realfft`.
//!   Each thread keeps the plans for the lengths that it has seen, up to a limit.
//! * Every line of a tensor is transformed by one thread, so results do not depend on their number.
//! * A dim other than the last is moved there and back, a copy each.

mod lines;
mod many;
mod one;
mod plans;
mod shift;

pub use many::{fft2, fftn, ifft2, ifftn, irfft2, irfftn, rfft2, rfftn};
pub use one::{fft, ifft, irfft, rfft};
pub use shift::{Elements, fftfreq, fftshift, ifftshift, rfftfreq};

/// By what a transform of `n` values is divided.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Norm {
    /// The inverse by `n`, so that it gives back what the forward transform was given.
    #[default]
    Backward,
    /// Both by the root of `n`: lengths are kept.
    Ortho,
    /// The forward transform by `n`.
    Forward,
}

/// Of the exponent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Direction {
    Forward,
    Inverse,
}

impl Norm {
    /// The factor for `n` values.
    fn factor(self, direction: Direction, n: usize) -> f64 {
        match (self, direction) {
            (Norm::Ortho, _) => 1.0 / (n as f64).sqrt(),
            (Norm::Backward, Direction::Inverse) | (Norm::Forward, Direction::Forward) => {
                1.0 / n as f64
            }
            _ => 1.0,
        }
    }
}
