//! Normalisation of sets of planes, which is what batch and group normalisation are.
//!
//! A plane is what a channel of a sample has. A set of planes is normalised by its mean and deviation, then every
//! channel is scaled and shifted. Sums within a plane are in the type of the values, over planes in `f64`.

use super::real::{Real, row_sum, row_sum_2};
use crate::{Result, Tensor, disjoint::Disjoint, simd::vectorized, threads};

/// Which planes of `[N, C, plane]` go together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Planes {
    pub(super) n_samples: usize,
    pub(super) n_channels: usize,
    /// Elements of a plane.
    pub(super) len: usize,
    pub(super) sets: Sets,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Sets {
    /// A channel of all samples.
    Channel,
    /// So many neighbouring channels of one sample.
    Group(usize),
}

/// Mean and variance of a set; the latter divides by the number of values.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Moments<R> {
    pub(super) mean: R,
    pub(super) var: R,
}

/// What planes are scaled and shifted by, per channel.
#[derive(Clone, Copy)]
pub(super) struct Affine<'a, R> {
    pub(super) weight: Option<&'a [R]>,
    pub(super) bias: Option<&'a [R]>,
}

impl<R: Real> Affine<'_, R> {
    fn weight(&self, channel: usize) -> R {
        self.weight.map_or(R::ONE, |weight| weight[channel])
    }
}

impl Planes {
    fn n_planes(&self) -> usize {
        self.n_samples * self.n_channels
    }

    pub(super) fn n_sets(&self) -> usize {
        match self.sets {
            Sets::Channel => self.n_channels,
            Sets::Group(size) => self.n_planes() / size.max(1),
        }
    }

    fn set_of(&self, plane: usize) -> usize {
        match self.sets {
            Sets::Channel => plane % self.n_channels,
            Sets::Group(size) => plane / size,
        }
    }

    /// The planes of a set.
    fn of_set(&self, set: usize) -> impl Iterator<Item = usize> + use<> {
        match self.sets {
            Sets::Channel => (set..self.n_planes()).step_by(self.n_channels),
            Sets::Group(size) => (set * size..(set + 1) * size).step_by(1),
        }
    }

    /// Values of a set.
    pub(super) fn set_len(&self) -> usize {
        let n_planes = match self.sets {
            Sets::Channel => self.n_samples,
            Sets::Group(size) => size,
        };
        n_planes * self.len
    }

    /// Planes that are worth a hand-over to another thread.
    fn grain(&self) -> usize {
        32 * 1024 / self.len.max(1)
    }

    /// Of every set.
    pub(super) fn moments<R: Real>(&self, x: &[R]) -> Vec<Moments<R>> {
        let mut all = vec![Moments { mean: R::ZERO, var: R::ZERO }; self.n_sets()];
        let n = self.set_len() as f64;
        let plane = |plane: usize| &x[plane * self.len..][..self.len];
        threads::for_pieces_of(&mut all, 1, 32 * 1024 / self.set_len().max(1), |sets, all| {
            for (set, moments) in sets.zip(all) {
                let sum: f64 = self.of_set(set).map(|i| total(plane(i)).wide()).sum();
                moments.mean = R::of(sum / n);
                let mean = moments.mean;
                let squares: f64 = self.of_set(set).map(|i| squares(plane(i), mean).wide()).sum();
                moments.var = R::of(squares / n);
            }
        });
        all
    }

    /// `(x - mean) / sqrt(var + eps) * weight + bias`.
    pub(super) fn normalize<R: Real>(
        &self,
        op: &'static str,
        shape: &[usize],
        x: &[R],
        moments: &[Moments<R>],
        affine: Affine<R>,
        eps: f64,
    ) -> Result<Tensor> {
        Tensor::write(op, shape, |out: &mut [R]| {
            threads::for_pieces_of(out, self.len, self.grain(), |planes, out| {
                for (plane, out) in planes.zip(out.chunks_exact_mut(self.len.max(1))) {
                    let channel = plane % self.n_channels;
                    let Moments { mean, var } = moments[self.set_of(plane)];
                    let scale = affine.weight(channel) * inverse_root(var, eps);
                    let shift = affine.bias.map_or(R::ZERO, |bias| bias[channel]);
                    shift_and_scale(&x[plane * self.len..][..self.len], mean, scale, shift, out);
                }
            });
        })
    }

    /// Gradients of input, weight and bias. The moments are those of the set itself, whose gradients count too, or if
    /// `moments_are_given` constants.
    pub(super) fn backward<R: Real>(
        &self,
        op: &'static str,
        shape: &[usize],
        (x, grad): (&[R], &[R]),
        moments: &[Moments<R>],
        affine: Affine<R>,
        (eps, moments_are_given): (f64, bool),
    ) -> Result<[Tensor; 3]> {
        // Per plane: the sums of the gradient and of its product with the normalised values.
        let mut sums = vec![[R::ZERO; 2]; self.n_planes()];
        let of_plane = |plane: usize| plane * self.len..(plane + 1) * self.len;
        threads::for_pieces_of(&mut sums, 1, self.grain(), |planes, sums| {
            for (plane, sums) in planes.zip(sums) {
                let Moments { mean, var } = moments[self.set_of(plane)];
                let range = of_plane(plane);
                let along = product(&x[range.clone()], mean, &grad[range.clone()]);
                *sums = [total(&grad[range]), along * inverse_root(var, eps)];
            }
        });
        // Per set: the means of the gradient times the weight, and of that times the normalised values.
        let mut means = vec![[R::ZERO; 2]; self.n_sets()];
        if !moments_are_given {
            for (set, means) in means.iter_mut().enumerate() {
                *means = [0, 1].map(|which| {
                    let term = |plane: usize| {
                        affine.weight(plane % self.n_channels).wide() * sums[plane][which].wide()
                    };
                    let sum: f64 = self.of_set(set).map(term).sum();
                    R::of(sum / self.set_len() as f64)
                });
            }
        }
        let input = Tensor::write(op, shape, |out: &mut [R]| {
            let out = Disjoint::new(out);
            threads::for_pieces(self.n_planes(), self.grain(), &|planes| {
                for plane in planes {
                    let set = self.set_of(plane);
                    let (Moments { mean, var }, [shift, along]) = (moments[set], means[set]);
                    let scale = inverse_root(var, eps);
                    let weight = affine.weight(plane % self.n_channels) * scale;
                    let factors = [weight, -scale * scale * along, -scale * shift];
                    let range = of_plane(plane);
                    // SAFETY: Every plane is in one piece.
                    let out = unsafe { out.part(range.clone()) };
                    input_grad(&x[range.clone()], mean, &grad[range], factors, out);
                }
            });
        })?;
        let of_channels = |which: usize| {
            Tensor::write(op, &[self.n_channels], |out: &mut [R]| {
                for (channel, out) in out.iter_mut().enumerate() {
                    let planes = (0..self.n_samples).map(|n| n * self.n_channels + channel);
                    *out = R::of(planes.map(|plane| sums[plane][which].wide()).sum());
                }
            })
        };
        Ok([input, of_channels(1)?, of_channels(0)?])
    }
}

fn inverse_root<R: Real>(var: R, eps: f64) -> R {
    R::ONE / (var + R::of(eps)).sqrt()
}

vectorized! {
    fn total<R: Real>(x: &[R]) -> R {
        row_sum(x, |x| x)
    }
}

vectorized! {
    fn squares<R: Real>(x: &[R], mean: R) -> R {
        row_sum(x, |x| (x - mean) * (x - mean))
    }
}

vectorized! {
    fn product<R: Real>(x: &[R], mean: R, grad: &[R]) -> R {
        row_sum_2(x, grad, |x, grad| (x - mean) * grad)
    }
}

vectorized! {
    fn shift_and_scale<R: Real>(x: &[R], mean: R, scale: R, shift: R, out: &mut [R]) {
        for (out, x) in out.iter_mut().zip(x) {
            *out = (*x - mean).mul_add::<FMA>(scale, shift);
        }
    }
}

vectorized! {
    fn input_grad<R: Real>(x: &[R], mean: R, grad: &[R], factors: [R; 3], out: &mut [R]) {
        let [of_grad, of_x, shift] = factors;
        for (out, (x, grad)) in out.iter_mut().zip(x.iter().zip(grad)) {
            *out = of_grad.mul_add::<FMA>(*grad, of_x.mul_add::<FMA>(*x - mean, shift));
        }
    }
}
