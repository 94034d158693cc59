//! The same elements in another shape.

use std::ops::Range;

use dtensor_layout::{Cut, Layout, Placement, rule::Rule};
use dtensor_local::{LocalError, Tensor};
use smallvec::{SmallVec, smallvec};

use super::stretches::{Line, Stretch, places, stretches};
use crate::{
    DTensor, Error, Result,
    dispatch::{call_one, choose::choose},
    exchange::{Run, Source, Traffic, Want, blank, held_by, in_ranges, placed},
    op::{Backward, Grads, Keep, LocalContext, Meta, Op, OpRecord, Outputs, Sample, one},
};

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Reshape(SmallVec<[usize; 6]>);

impl Op for Reshape {
    fn name(&self) -> &'static str {
        "reshape"
    }

    fn rule(&self, operands: &[Meta]) -> Result<Rule> {
        Rule::reshape(&operands[0].shape, &self.0).map_err(Error::rule("reshape"))
    }

    fn eval(&self, x: &[&Tensor], context: &LocalContext) -> Result<Outputs, LocalError> {
        one(x[0].reshape(&context.result_shape(0, &self.0)))
    }

    /// Where the cuts do not line up. (Without elements there is nothing to exchange.)
    fn decomposes(&self, operands: &[&Layout]) -> bool {
        let meta = Meta::of_layout(operands[0]);
        let result = [Meta::new(&self.0, meta.dtype)];
        let rule = || self.rule(std::slice::from_ref(&meta));
        operands[0].numel() > 0
            && rule()
                .and_then(|rule| choose("reshape", &rule, operands, &result, false))
                .is_ok_and(|choice| choice.operands[0] != *operands[0])
    }

    /// Every rank gets the elements of its part of the result directly.
    fn decompose(&self, operands: &[&DTensor]) -> Result<Outputs<DTensor>> {
        let x = in_ranges("reshape", operands[0])?;
        let way = Way::new(x.layout(), &self.0)?;
        let held = |coord: &[usize]| held_by(x.layout(), coord);
        let wanted = |coord: &[usize]| way.wanted(coord);
        let source = Source { local: x.local(), axes: &way.axes, held: &held, wanted: &wanted };
        let traffic = Traffic { op: "reshape", mesh: x.mesh(), sources: vec![source] };
        let reshaped = placed(x.mesh(), &way.result, |coord| {
            let blocks = way.blocks(coord);
            let into = blocks.iter().map(|block| {
                let cover = block.iter().flat_map(|line| &line.cover).map(Range::len);
                blank(x.mesh(), &cover.collect::<Vec<_>>(), x.dtype())
            });
            let received = traffic.run(into.collect::<Result<_>>()?)?;
            let shape = way.result.local_shape(coord);
            let part = way.assemble(&blocks, &received, || {
                blank(x.mesh(), &way.flat_shape(coord), x.dtype())
            })?;
            Ok(part.reshape(&shape)?)
        })?;
        Ok(smallvec![reshaped])
    }

    fn keeps(&self) -> Option<Keep> {
        Some(Keep::NOTHING)
    }

    fn gradient(&self, backward: &Backward<'_>) -> Result<Grads> {
        let grad = backward.grad()?;
        backward.first(|| call_one(&Reshape(backward.shape(0).into()), &[&grad]))
    }
}

/// From a layout to that of the reshaped tensor.
struct Way<'a> {
    from: &'a Layout,
    result: Layout,
    stretches: Vec<Stretch>,
    /// The axes that cut a stretch of more than one dim.
    axes: Vec<usize>,
}

/// What a rank receives at once: a line of every stretch.
type Block = Vec<Line>;

impl<'a> Way<'a> {
    fn new(from: &'a Layout, shape: &[usize]) -> Result<Way<'a>> {
        let stretches = stretches(from.global_shape(), shape);
        let mut placements = from.placements().to_vec();
        let mut cuts: Vec<Vec<Cut>> = vec![Vec::new(); shape.len()];
        let mut axes = Vec::new();
        for stretch in &stretches {
            let cut_dims =
                || stretch.from.clone().filter(|dim| !from.order().cuts(*dim).is_empty());
            let mut own: Vec<Cut> =
                cut_dims().flat_map(|dim| from.order().cuts(dim)).copied().collect();
            if cut_dims().nth(1).is_some() {
                own.sort_by_key(|cut| cut.axis);
            }
            if stretch.from.len() != 1 || stretch.to.len() != 1 {
                axes.extend(own.iter().map(|cut| cut.axis));
            }
            let n_parts = own.iter().map(|cut| from.mesh().axis_size(cut.axis)).product();
            let dim = target(&shape[stretch.to.clone()], n_parts).map(|dim| stretch.to.start + dim);
            for cut in &own {
                placements[cut.axis] = dim.map_or(Placement::Replicate, Placement::Shard);
            }
            if let Some(dim) = dim {
                cuts[dim] = own;
            }
        }
        axes.sort_unstable();
        let result = Layout::with_cuts(shape, from.dtype(), from.mesh(), &placements, &cuts);
        Ok(Way { from, result: result.map_err(Error::layout("reshape"))?, stretches, axes })
    }

    /// The blocks that the part of the rank at a coordinate consists of.
    fn blocks(&self, coord: &[usize]) -> Vec<Block> {
        let part = held_by(&self.result, coord);
        self.stretches.iter().fold(vec![Block::new()], |blocks, stretch| {
            let lines: Vec<Line> = self.lines(stretch, &part);
            let with = |block: &Block| {
                let block = block.clone();
                lines
                    .iter()
                    .map(move |line| [block.as_slice(), std::slice::from_ref(line)].concat())
            };
            blocks.iter().flat_map(with).collect()
        })
    }

    /// A stretch of the part of the result that has these indices.
    fn lines(&self, stretch: &Stretch, part: &[Range<usize>]) -> Vec<Line> {
        let (from, to) = (self.from.global_shape(), self.result.global_shape());
        let places = places(&to[stretch.to.clone()], &part[stretch.to.clone()]);
        places.into_iter().map(|one| Line::new(&from[stretch.from.clone()], one)).collect()
    }

    /// Every box of every block.
    fn wanted(&self, coord: &[usize]) -> Vec<Want> {
        let mut all = Vec::new();
        for (into, block) in self.blocks(coord).iter().enumerate() {
            let runs = block.iter().fold(vec![Vec::new()], |done: Vec<Vec<Vec<Run>>>, line| {
                let with = |runs: &Vec<Vec<Run>>| {
                    let runs = runs.clone();
                    line.boxes.iter().map(move |one| {
                        let dims = one.iter().zip(&line.cover).map(|(range, cover)| {
                            let to = range.start - cover.start..range.end - cover.start;
                            vec![Run { to, from: range.start, step: 1 }]
                        });
                        runs.iter().cloned().chain(dims).collect::<Vec<_>>()
                    })
                };
                done.iter().flat_map(with).collect()
            });
            all.extend(runs.into_iter().map(|runs| Want { into, runs }));
        }
        all
    }

    /// The shape of a part with one dim per stretch.
    fn flat_shape(&self, coord: &[usize]) -> Vec<usize> {
        let shape = self.result.local_shape(coord);
        self.stretches.iter().map(|stretch| shape[stretch.to.clone()].iter().product()).collect()
    }

    /// The part, with one dim per stretch, from what was received for its blocks. `into` is where it goes if
    /// there are several.
    fn assemble(
        &self,
        blocks: &[Block],
        received: &[Tensor],
        into: impl FnOnce() -> Result<Tensor>,
    ) -> Result<Tensor> {
        let flat = |block: &Block, received: &Tensor| -> Result<Tensor> {
            let covers = block.iter().map(|line| line.cover.iter().map(Range::len).product());
            let mut flat = received.reshape(&covers.collect::<Vec<usize>>())?;
            for (dim, line) in block.iter().enumerate() {
                flat = flat.narrow(dim as isize, line.start, line.length)?;
            }
            Ok(flat)
        };
        if let ([block], [received]) = (blocks, received) {
            return flat(block, received);
        }
        let mut part = into()?;
        // Blocks come in the order of their lines, the last stretch varying fastest.
        let mut reached: Vec<usize> = vec![0; self.stretches.len()];
        let sizes = part.shape().to_vec();
        for (block, received) in blocks.iter().zip(received) {
            let place: Vec<Range<usize>> = (reached.iter().zip(block))
                .map(|(start, line)| *start..start + line.length)
                .collect();
            part.slice_assign_in_place(&place, &flat(block, received)?)?;
            for (dim, line) in block.iter().enumerate().rev() {
                reached[dim] += line.length;
                if reached[dim] < sizes[dim] {
                    break;
                }
                reached[dim] = 0;
            }
        }
        Ok(part)
    }
}

/// Which dim of a stretch of the result is cut into so many parts: the first that has enough indices, so that
/// parts have few pieces and no rank is without; else the first of the largest.
fn target(shape: &[usize], n_parts: usize) -> Option<usize> {
    let enough = shape.iter().position(|size| *size >= n_parts && *size > 1);
    enough.or_else(|| {
        let largest = shape.iter().max()?;
        shape.iter().position(|size| size == largest)
    })
}

impl DTensor {
    /// The same elements, the last dim varying fastest, in another shape. One size may be -1: it is what is
    /// left.
    ///
    /// Nothing is sent where the parts of the ranks are parts of the result. Where they are not, as for
    /// uneven ones, every rank receives what it lacks of its part, in one exchange, and the result is cut, too.
    ///
    /// ```
    /// use dtensor::{CommDebug, DType, DeviceMesh, Placement::Shard, Runner, zeros};
    ///
    /// Runner::threads(4).run(|world| {
    ///     let mesh = DeviceMesh::of_world(world, "x")?;
    ///     let x = zeros(&[6, 4], DType::F32, &mesh, &[Shard(0)])?;     // 2, 2, 2 and 0 rows
    ///     let (line, comm) = CommDebug::record(|| x.reshape(&[-1]));   // 6 elements each
    ///     let line = line?;
    ///     assert_eq!((line.shape(), line.placements()), (&[24][..], &[Shard(0)][..]));
    ///     assert_eq!((line.to_local().numel(), comm.calls()), (6, 1));
    ///     Ok::<_, dtensor::Error>(())
    /// })?;
    /// # Ok::<(), dtensor::RunError>(())
    /// ```
    pub fn reshape(&self, shape: &[isize]) -> Result<DTensor> {
        let shape = sizes("reshape", self.numel(), shape, self.shape())?;
        call_one(&Reshape(shape), &[self])
    }

    /// As [`reshape`](DTensor::reshape).
    pub fn view(&self, shape: &[isize]) -> Result<DTensor> {
        self.reshape(shape)
    }

    /// Dims `start` to `end`, both included, as one.
    pub fn flatten(&self, start: isize, end: isize) -> Result<DTensor> {
        if self.n_dims() == 0 {
            return self.reshape(&[1]);
        }
        let meta = Meta::of_layout(self.layout());
        let (start, end) = (meta.dim("flatten", start)?, meta.dim("flatten", end)?);
        if start > end {
            return Err(LocalError::BadNumber {
                op: "flatten",
                name: "the first dim",
                got: start.to_string(),
                want: "not after the last",
            }
            .into());
        }
        let mut shape: SmallVec<[usize; 6]> = self.shape().into();
        let size = shape.drain(start..=end).product();
        shape.insert(start, size);
        call_one(&Reshape(shape), &[self])
    }

    /// One dim as several of these sizes, of which one may be -1.
    pub fn unflatten(&self, dim: isize, shape: &[isize]) -> Result<DTensor> {
        let dim = Meta::of_layout(self.layout()).dim("unflatten", dim)?;
        let own = self.shape();
        let new = sizes("unflatten", own[dim], shape, own)?;
        let product = new.iter().try_fold(1_usize, |product, size| product.checked_mul(*size));
        if product != Some(own[dim]) {
            return Err(LocalError::ShapeMismatch {
                op: "unflatten",
                from: vec![own[dim]],
                to: new.to_vec(),
                why: "the sizes must multiply to that of the dim",
            }
            .into());
        }
        let shape = own[..dim].iter().chain(&new).chain(&own[dim + 1..]);
        call_one(&Reshape(shape.copied().collect()), &[self])
    }
}

/// The sizes that `n` elements are to have, with the number that -1 stands for.
fn sizes(
    op: &'static str,
    n: usize,
    shape: &[isize],
    own: &[usize],
) -> Result<SmallVec<[usize; 6]>> {
    let given = shape.iter().filter(|size| **size != -1);
    let known = given
        .clone()
        .try_fold(1_usize, |product, size| product.checked_mul(usize::try_from(*size).ok()?));
    let one_open = given.count() + 1 >= shape.len();
    let Some(known) = known.filter(|_| one_open) else {
        return Err(LocalError::BadNumber {
            op,
            name: "the shape",
            got: format!("{shape:?}"),
            want: "sizes, of which one may be -1",
        }
        .into());
    };
    // Of nothing any number would do.
    let open = n.checked_div(known).filter(|open| open * known == n);
    let size = |size: &isize| match usize::try_from(*size) {
        Ok(size) => Ok(size),
        Err(_) => open.ok_or_else(|| {
            let to = shape.iter().map(|size| size.unsigned_abs()).collect();
            let why = "no number in place of the -1 gives as many elements";
            LocalError::ShapeMismatch { op, from: own.to_vec(), to, why }.into()
        }),
    };
    shape.iter().map(size).collect()
}

pub(super) const RECORDS: &[OpRecord] = &[OpRecord {
    name: "reshape",
    samples: || {
        let reshape = |shape: &[usize]| Reshape(shape.into());
        vec![
            Sample::new(reshape(&[24]), &[&[6, 4]]),
            Sample::new(reshape(&[6, 4]), &[&[24]]),
            Sample::new(reshape(&[6, 4]), &[&[2, 3, 4]]),
            Sample::new(reshape(&[6, 4]), &[&[4, 6]]),
            Sample::new(reshape(&[3, 1, 2]), &[&[1, 6]]),
            Sample::new(reshape(&[2, 5]), &[&[10, 1]]),
            Sample::new(reshape(&[]), &[&[1, 1]]),
            Sample::new(reshape(&[0, 2]), &[&[3, 0]]),
        ]
    },
}];
