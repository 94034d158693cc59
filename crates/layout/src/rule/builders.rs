//! Rules of ops that have attributes, built from those attributes.

use std::collections::{BTreeMap, BTreeSet};

use super::{
    Law, Rule, RuleError,
    letters::{Dim, Letter, Letters, Tensor},
};
use crate::ReduceOp;

impl Rule {
    /// The rule of reducing `dims` of a tensor of `n_dims` dims; the reduced dims vanish, or stay
    /// with size 1.
    ///
    /// ```
    /// use dtensor_layout::{ReduceOp, rule::Rule};
    /// let amax = Rule::reduce(3, &[1], false, ReduceOp::Max)?;
    /// assert_eq!(amax.to_string(), "a b c -> a c @max | Joint(max)");
    /// let mean = Rule::reduce(2, &[1], true, ReduceOp::Avg)?;
    /// assert_eq!(mean.to_string(), "a b -> a 1 @avg | Linear");
    /// # Ok::<(), dtensor_layout::rule::RuleError>(())
    /// ```
    pub fn reduce(
        n_dims: usize,
        dims: &[usize],
        keep_dims: bool,
        op: ReduceOp,
    ) -> Result<Rule, RuleError> {
        let reduced: BTreeSet<usize> = dims.iter().copied().collect();
        if reduced.len() != dims.len() || reduced.iter().any(|dim| *dim >= n_dims) {
            return Err(RuleError::CannotReduce { dims: dims.to_vec(), n_dims });
        }
        let letters: Vec<Letter> = (0..n_dims).map(Letter::nth).collect();
        let result = letters.iter().enumerate().filter_map(|(dim, letter)| {
            match (reduced.contains(&dim), keep_dims) {
                (false, _) => Some(Dim::one(*letter)),
                (true, true) => Some(Dim::Letters(Vec::new())),
                (true, false) => None,
            }
        });
        let result = Tensor { dims: result.collect(), reduce: op };
        let operand = Tensor::new(letters.iter().copied().map(Dim::one).collect());
        let law = match op {
            // A mean is linear too, and a sum divided by a constant.
            ReduceOp::Sum | ReduceOp::Avg => Law::Linear,
            ReduceOp::Max | ReduceOp::Min | ReduceOp::Product => Law::Joint(op),
        };
        let letters = Letters {
            operands: vec![operand],
            results: vec![result],
            whole: BTreeSet::new(),
            sizes: BTreeMap::new(),
        };
        Rule::new(Some(letters), Vec::new(), vec![law])
    }

    /// The rule of a reshape between two shapes, found by splitting them into common factors.
    ///
    /// What has no common factor stays whole: of `[4, 6] -> [6, 4]` only halves are common.
    ///
    /// ```
    /// use dtensor_layout::rule::Rule;
    /// let text = |from: &[usize], to: &[usize]| Rule::reshape(from, to).map(|rule| rule.to_string());
    /// assert_eq!(text(&[8, 32], &[2, 4, 32])?, "(a b) c -> a b c {a=2, b=4} | Moves");
    /// assert_eq!(text(&[1, 24], &[24, 1])?, "1 a -> a 1 | Moves");
    /// assert_eq!(text(&[4, 6], &[6, 4])?, "(a b!) d! -> (a c!) e! {a=2, b=2, c=3} | Moves");
    /// # Ok::<(), dtensor_layout::rule::RuleError>(())
    /// ```
    pub fn reshape(from: &[usize], to: &[usize]) -> Result<Rule, RuleError> {
        let cannot = || RuleError::CannotReshape { from: from.to_vec(), to: to.to_vec() };
        let numel = |shape: &[usize]| shape.iter().try_fold(1usize, |n, size| n.checked_mul(*size));
        let mut builder = Reshape::new(from, to);
        match (numel(from), numel(to)) {
            (Some(0), Some(0)) => builder.split_empty(),
            (Some(n), Some(m)) if n == m => builder.split_common(),
            _ => return Err(cannot()),
        }
        Rule::new(Some(builder.finish()), Vec::new(), vec![Law::Moves])
    }
}

/// The two sides of a reshape while they are being split into letters.
struct Reshape {
    from: Side,
    to: Side,
    whole: BTreeSet<Letter>,
    /// Of every letter so far.
    sizes: BTreeMap<Letter, usize>,
}

struct Side {
    shape: Vec<usize>,
    letters: Vec<Vec<Letter>>,
    /// The dim that is being split.
    dim: usize,
    /// What of its size has no letter yet; above 1, or the side is done.
    rest: usize,
}

impl Reshape {
    fn new(from: &[usize], to: &[usize]) -> Reshape {
        Reshape {
            from: Side::new(from),
            to: Side::new(to),
            whole: BTreeSet::new(),
            sizes: BTreeMap::new(),
        }
    }

    /// Walks both sides in step. Each step gives the largest common factor of what is left of the
    /// two current dims a letter on both sides. Where there is none, the rest of this stretch stays
    /// whole, up to the next place at which both sides begin a dim after equally many elements.
    fn split_common(&mut self) {
        while !self.from.is_done() && !self.to.is_done() {
            match gcd(self.from.rest, self.to.rest) {
                1 => self.keep_stretch_whole(),
                common => {
                    let letter = self.name(common);
                    self.from.push(letter, common);
                    self.to.push(letter, common);
                }
            }
        }
    }

    fn keep_stretch_whole(&mut self) {
        // Elements of the stretch so far. Both sides have equally many in all, so the two meet, and
        // neither exceeds the number of elements of the tensor.
        let (mut from_product, mut to_product) = (1, 1);
        loop {
            let from_is_behind = from_product <= to_product;
            let size = if from_is_behind { self.from.rest } else { self.to.rest };
            let letter = self.name(size);
            self.whole.insert(letter);
            let (side, product) = match from_is_behind {
                true => (&mut self.from, &mut from_product),
                false => (&mut self.to, &mut to_product),
            };
            *product *= size;
            side.push(letter, size);
            if from_product == to_product {
                return;
            }
        }
    }

    /// Without elements there is nothing to factorise: equal dims at both ends correspond, and all
    /// between them stays whole.
    fn split_empty(&mut self) {
        let equal = |(a, b): &(&usize, &usize)| a == b;
        let (from, to) = (&self.from.shape, &self.to.shape);
        let head = from.iter().zip(to).take_while(equal).count();
        let backwards = from[head..].iter().rev().zip(to[head..].iter().rev());
        let tail = backwards.take_while(equal).count();
        let (from_tail, to_tail) = (from.len() - tail, to.len() - tail);
        for dim in 0..head {
            self.pair(dim, dim);
        }
        for dim in head..from_tail {
            let letter = self.name(self.from.shape[dim]);
            self.whole.insert(letter);
            self.from.letters[dim].push(letter);
        }
        for dim in head..to_tail {
            let letter = self.name(self.to.shape[dim]);
            self.whole.insert(letter);
            self.to.letters[dim].push(letter);
        }
        for dim in 0..tail {
            self.pair(from_tail + dim, to_tail + dim);
        }
    }

    /// One letter for a dim of either side, both of one size.
    fn pair(&mut self, from_dim: usize, to_dim: usize) {
        let letter = self.name(self.from.shape[from_dim]);
        self.from.letters[from_dim].push(letter);
        self.to.letters[to_dim].push(letter);
    }

    fn name(&mut self, size: usize) -> Letter {
        let letter = Letter::nth(self.sizes.len());
        self.sizes.insert(letter, size);
        letter
    }

    fn finish(mut self) -> Letters {
        let sides = [self.from.letters, self.to.letters];
        // The size of a letter that is a dim of its own follows from the operand's shape, or is not
        // needed: only letters of groups keep it.
        let in_groups: BTreeSet<Letter> =
            sides.iter().flatten().filter(|dim| dim.len() > 1).flatten().copied().collect();
        self.sizes.retain(|letter, _| in_groups.contains(letter));
        let [operand, result] =
            sides.map(|dims| Tensor::new(dims.into_iter().map(Dim::Letters).collect()));
        Letters {
            operands: vec![operand],
            results: vec![result],
            whole: self.whole,
            sizes: self.sizes,
        }
    }
}

impl Side {
    fn new(shape: &[usize]) -> Side {
        let mut side =
            Side { shape: shape.to_vec(), letters: vec![Vec::new(); shape.len()], dim: 0, rest: 1 };
        side.rest = shape.first().copied().unwrap_or(1);
        side.skip_ones();
        side
    }

    fn is_done(&self) -> bool {
        self.dim >= self.shape.len()
    }

    fn push(&mut self, letter: Letter, size: usize) {
        self.letters[self.dim].push(letter);
        self.rest /= size;
        self.skip_ones();
    }

    /// A dim of size 1 gets no letter: it prints as `1`, and nothing can be cut.
    fn skip_ones(&mut self) {
        while self.rest == 1 && !self.is_done() {
            self.dim += 1;
            self.rest = self.shape.get(self.dim).copied().unwrap_or(1);
        }
    }
}

fn gcd(a: usize, b: usize) -> usize {
    match b {
        0 => a,
        b => gcd(b, a % b),
    }
}
