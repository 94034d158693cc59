//! Windows that slide over spatial dims.

use dtensor_layout::Layout;
use dtensor_local::Tensor;

use crate::{
    DTensor, Result,
    op::Op,
    ops::nn::{
        halo::{Arranged, Window, fetched, held},
        steps::{Sizes, cuts, letter},
    },
};

/// The settings of windows that slide.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Sliding {
    /// Number of spatial dims.
    pub(super) n: usize,
    pub(super) kernel: Sizes,
    pub(super) stride: Sizes,
    pub(super) padding: Sizes,
    pub(super) dilation: Sizes,
    pub(super) ceil_mode: bool,
}

impl Sliding {
    /// The first spatial dim.
    pub(super) fn first(&self, n_dims: usize) -> usize {
        n_dims.saturating_sub(self.n)
    }

    pub(super) fn is_cut(&self, layout: &Layout) -> bool {
        cuts(layout, |dim| dim >= self.first(layout.n_dims()))
    }

    /// Windows without padding, of an input that has just what they see, in these dims.
    pub(super) fn within(&self, first: usize, dims: &[usize]) -> Sliding {
        let mut within = self.clone();
        for dim in dims {
            within.padding[dim - first] = 0;
        }
        within
    }

    /// The sizes of all settings are those of the spatial dims.
    pub(super) fn is_complete(&self) -> bool {
        [&self.kernel, &self.stride, &self.padding, &self.dilation]
            .iter()
            .all(|sizes| sizes.len() == self.n)
    }

    /// What this rank's windows see, with `fill` for the padding; and which dims were cut.
    pub(super) fn fetch(
        &self,
        op: &'static str,
        arranged: &Arranged,
        fill: f64,
    ) -> Result<(Tensor, Vec<usize>)> {
        let (x, result) = (&arranged.operands[0], &arranged.results[0]);
        let first = self.first(x.n_dims());
        let cut: Vec<usize> =
            (first..x.n_dims()).filter(|dim| cuts(x.layout(), |one| one == *dim)).collect();
        let window = |coord: &[usize], dim: usize| self.seen(result, coord, dim, first);
        Ok((fetched(op, x, &cut, &window, fill)?, cut))
    }

    pub(super) fn seen(
        &self,
        result: &Layout,
        coord: &[usize],
        dim: usize,
        first: usize,
    ) -> Window {
        let (outputs, spatial) = (held(result, dim, coord), dim - first);
        let start = (outputs.start * self.stride[spatial]) as isize;
        let extent = self.dilation[spatial] * (self.kernel[spatial] - 1) + 1;
        let len = match outputs.len() {
            0 => 0,
            n => (n - 1) * self.stride[spatial] + extent,
        };
        Window { start: start.wrapping_sub_unsigned(self.padding[spatial]), len }
    }

    /// The operand, arranged such that windows can be fetched.
    pub(super) fn arrange(
        &self,
        op: &dyn Op,
        operands: &[&DTensor],
        n_results: usize,
    ) -> Result<Arranged> {
        let n_dims = operands[0].n_dims();
        let row = |dim: usize| {
            let results = vec![format!("S({dim})"); n_results].join(" ");
            format!("S({dim}) -> {results}")
        };
        Arranged::new(op, operands, &(self.first(n_dims)..n_dims).map(row).collect::<Vec<_>>())
    }
}

/// The letters of what has planes of `n` dims, and of the same with planes of another size. Planes are whole.
pub(in crate::ops::nn) fn plane_letters(n_dims: usize, n: usize) -> [String; 2] {
    let first = n_dims.saturating_sub(n);
    let side = |offset: usize| {
        let one = |dim: usize| match dim < first {
            true => letter(dim),
            false => letter(dim + offset) + "!",
        };
        (0..n_dims).map(one).collect::<Vec<_>>().join(" ")
    };
    [side(0), side(n)]
}

/// An input with planes of `n` dims.
pub(super) fn sample_shape(n: usize) -> &'static [usize] {
    [&[2, 3, 7][..], &[1, 2, 5, 4], &[1, 1, 3, 4, 3]][n - 1]
}
