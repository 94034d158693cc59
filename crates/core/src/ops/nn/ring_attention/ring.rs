//! The way of keys and values around the ranks that share a sequence.
//!
//! In step `s`, rank `r` of `n` has the block of rank `r - s`. Before it looks at it, it begins to send it to
//! the next rank and to receive that of the rank before, so that blocks travel while ranks compute. A block goes no
//! further than to the last rank that sees anything of it. On the way back its gradient travels behind it, each rank
//! adding its own, and goes home from the last one directly.

use dtensor_comm::{Group, Pending};
use dtensor_layout::{DType, Layout, Placement, plan::StepKind};
use dtensor_local::{RecvTensor, SendTensor, Tensor};

use super::{
    super::steps::wide,
    Positions,
    local::{Block, Owed, Seen},
    positions::{Run, sees},
};
use crate::{
    DeviceMesh, Error, Result,
    debug::{self, Sending},
    exchange::{held_by, members},
};

/// Messages of different kinds pass each other: what a rank receives next is said by its tag.
const BLOCKS: &str = "ring_attention";
const GRADS: &str = "ring_attention gradients";
const HOME: &str = "ring_attention home";

/// The ranks that share a sequence, as one of them sees it.
pub(super) struct Ring<'a> {
    op: &'static str,
    /// Of keys and of values.
    layouts: [&'a Layout; 2],
    /// `None` on a fake mesh.
    group: Option<Group>,
    /// This rank, of `n`.
    rank: usize,
    n: usize,
    /// The keys of every rank.
    runs: Vec<Vec<Run>>,
    /// For the block of every rank, the last step in which it is needed.
    last: Vec<usize>,
}

/// Keys and values of a rank, or their gradients.
struct Held {
    keys: Tensor,
    values: Tensor,
    /// Both as they are sent, if they were.
    packed: Option<Tensor>,
}

/// Something that is under way from rank to rank.
#[derive(Default)]
struct Passing {
    send: Option<Pending<SendTensor>>,
    /// With the number of elements.
    recv: Option<(Pending<RecvTensor>, usize)>,
    /// Ends when it has arrived.
    _sending: Option<Sending>,
}

impl<'a> Ring<'a> {
    /// The ranks on the axes that cut the keys along their positions.
    pub(super) fn new(
        op: &'static str,
        mesh: &DeviceMesh,
        coord: &[usize],
        [queries, keys, values]: [&'a Layout; 3],
        causal: bool,
        order: Positions,
    ) -> Result<Ring<'a>> {
        let dim = keys.n_dims() - 2;
        let axes = axes_of(keys, dim);
        let members = members(mesh, &axes, coord);
        let of = |layout: &Layout| -> Vec<Vec<Run>> {
            let runs = |member: &Vec<usize>| {
                let range = held_by(layout, member)[dim].clone();
                order.runs(range, layout.global_shape()[dim])
            };
            members.iter().map(runs).collect()
        };
        let (of_queries, runs, n) = (of(queries), of(keys), members.len());
        let last = |block: usize| {
            let sees = |step: &usize| sees(causal, &of_queries[(block + step) % n], &runs[block]);
            (0..n).rev().find(sees).unwrap_or(0)
        };
        let last = (0..n).map(last).collect();
        let rank = members.iter().position(|member| member == coord).unwrap_or(0);
        let group = match mesh.is_fake() {
            true => None,
            false => Some(mesh.group_of(op, &axes)?),
        };
        Ok(Ring { op, layouts: [keys, values], group, rank, n, runs, last })
    }

    /// Shows all blocks to the queries of this rank, which has these keys and values.
    pub(super) fn forward(&self, seen: &mut Seen<'_>, own: [&Tensor; 2]) -> Result<()> {
        let mut held = Some(Held::new(own.map(Tensor::clone)));
        for step in 0..self.n {
            let passing = self.pass_block(step, held.as_ref(), own)?;
            if let Some(held) = &held {
                seen.see(&held.block(&self.runs[self.block(step)]))?;
            }
            held = self.arrived(passing.wait(self.op)?, step + 1, own)?;
        }
        Ok(())
    }

    /// Shows all blocks to the queries once more, and gives the gradients of the keys and values of this rank.
    pub(super) fn backward(&self, owed: &mut Owed<'_>, own: [&Tensor; 2]) -> Result<[Tensor; 2]> {
        let dtype = wide(own[0].dtype());
        let mut home = Passing::default();
        if self.last[self.rank] > 0 {
            // From the first step on, so that who sends it does not wait for the last one of this rank.
            let from = (self.rank + self.last[self.rank]) % self.n;
            home.recv = Some(self.receive(HOME, self.numel(self.rank, own), dtype, from)?);
        }
        let mut held = Some(Held::new(own.map(Tensor::clone)));
        let (mut behind, mut homeward) = (Passing::default(), Passing::default());
        let mut of_own = None;
        for step in 0..self.n {
            let block = self.block(step);
            let passing = self.pass_block(step, held.as_ref(), own)?;
            let mut grads = match &held {
                Some(held) => Some(Held::new(owed.see(&held.block(&self.runs[block]))?)),
                None => None,
            };
            let before = self.arrived(behind.wait(self.op)?, step, own)?;
            if let (Some(grads), Some(before)) = (&mut grads, before) {
                *grads =
                    Held::new([grads.keys.add(&before.keys)?, grads.values.add(&before.values)?]);
            }
            let _sending = self.sent(dtype.size(), |last| last > 0 && step <= last);
            behind = self.pass(GRADS, step, grads.as_ref(), own, dtype)?;
            match grads {
                Some(grads) if self.last[block] > step => drop(grads),
                Some(grads) if step == 0 => of_own = Some(grads),
                Some(grads) => {
                    homeward.wait(self.op)?;
                    let send = Some(self.send(HOME, &grads, block)?);
                    homeward = Passing { send, ..Passing::default() };
                }
                None => {}
            }
            held = self.arrived(passing.wait(self.op)?, step + 1, own)?;
        }
        let arrived = self.arrived(home.wait(self.op)?, 0, own)?;
        homeward.wait(self.op)?;
        let of_own = of_own.or(arrived).ok_or_else(|| self.lost("a gradient did not come home"))?;
        Ok([of_own.keys, of_own.values])
    }

    /// On a fake mesh: tells what would be sent, in elements of this size; for gradients in elements of another.
    pub(super) fn pretend(&self, element: usize, of_grads: Option<usize>) {
        for step in 0..self.n {
            drop(self.sent(element, |last| step < last));
            if let Some(element) = of_grads {
                drop(self.sent(element, |last| last > 0 && step <= last));
            }
        }
    }

    /// Whose block this rank has in a step.
    fn block(&self, step: usize) -> usize {
        (self.rank + self.n - step % self.n) % self.n
    }

    /// Begins to pass on the block that this rank has.
    fn pass_block(&self, step: usize, held: Option<&Held>, own: [&Tensor; 2]) -> Result<Passing> {
        let dtype = own[0].dtype();
        let _sending = self.sent(dtype.size(), |last| step < last);
        Ok(Passing { _sending, ..self.pass(BLOCKS, step, held, own, dtype)? })
    }

    /// Begins to send what belongs to the block of this step to the next rank, if it goes there, and to receive what
    /// belongs to that of the next step.
    fn pass(
        &self,
        tag: &'static str,
        step: usize,
        held: Option<&Held>,
        own: [&Tensor; 2],
        dtype: DType,
    ) -> Result<Passing> {
        let (here, coming) = (self.block(step), self.block(step + 1));
        let mut passing = Passing::default();
        if step < self.last[coming] && step + 1 < self.n {
            let from = (self.rank + self.n - 1) % self.n;
            passing.recv = Some(self.receive(tag, self.numel(coming, own), dtype, from)?);
        }
        if let Some(held) = held.filter(|_| step < self.last[here]) {
            passing.send = Some(self.send(tag, held, (self.rank + 1) % self.n)?);
        }
        Ok(passing)
    }

    fn send(&self, tag: &'static str, held: &Held, to: usize) -> Result<Pending<SendTensor>> {
        let packed = match &held.packed {
            Some(packed) => packed.clone(),
            None => Tensor::pack(held.keys.dtype(), &[held.keys.clone(), held.values.clone()])?,
        };
        let packed = SendTensor::new(&packed)?;
        self.group(tag)?.start_send(packed, to).map_err(Error::comm(self.op))
    }

    fn receive(
        &self,
        tag: &'static str,
        n: usize,
        dtype: DType,
        from: usize,
    ) -> Result<(Pending<RecvTensor>, usize)> {
        let room = RecvTensor::new(n, dtype)?;
        Ok((self.group(tag)?.start_recv(room, from).map_err(Error::comm(self.op))?, n))
    }

    /// What came for the block of a step, if anything did.
    fn arrived(
        &self,
        packed: Option<Tensor>,
        step: usize,
        own: [&Tensor; 2],
    ) -> Result<Option<Held>> {
        let Some(packed) = packed else { return Ok(None) };
        let [keys, values] = own.map(|own| self.shape(self.block(step), own));
        let n = keys.iter().product();
        let keys = packed.narrow(0, 0, n)?.reshape(&keys)?;
        let values = packed.narrow(0, n, packed.numel() - n)?.reshape(&values)?;
        Ok(Some(Held { keys, values, packed: Some(packed) }))
    }

    /// The shape of a rank's keys or values, of which this rank has its own.
    fn shape(&self, block: usize, own: &Tensor) -> Vec<usize> {
        let mut shape = own.shape().to_vec();
        let dim = shape.len() - 2;
        shape[dim] = length(&self.runs[block]);
        shape
    }

    fn numel(&self, block: usize, own: [&Tensor; 2]) -> usize {
        own.iter().map(|own| self.shape(block, own).iter().product::<usize>()).sum()
    }

    fn group(&self, tag: &'static str) -> Result<Group> {
        let group =
            self.group.as_ref().ok_or_else(|| self.lost("nothing is sent on a fake mesh"))?;
        Ok(group.tag(tag))
    }

    fn lost(&self, what: &'static str) -> Error {
        Error::Unsupported { op: self.op, what: what.into(), way_out: "please report this" }
    }

    /// Tells what all ranks send in a step: the blocks of which `travels` says so, by the last steps that need them.
    fn sent(&self, element: usize, travels: impl Fn(usize) -> bool) -> Option<Sending> {
        let blocks = self.runs.iter().zip(&self.last).filter(|(_, last)| travels(**last));
        let length: usize = blocks.map(|(runs, _)| length(runs)).sum();
        let per_position: usize = self.layouts.iter().map(|layout| per_position(layout)).sum();
        let bytes = length as u128 * per_position as u128 * element as u128;
        match bytes {
            0 => None,
            bytes => debug::sent(self.op, StepKind::Exchange, || bytes),
        }
    }
}

impl Held {
    fn new([keys, values]: [Tensor; 2]) -> Held {
        Held { keys, values, packed: None }
    }

    fn block<'a>(&'a self, runs: &'a [Run]) -> Block<'a> {
        Block { keys: &self.keys, values: &self.values, runs }
    }
}

impl Passing {
    /// What was received, if anything is. What was sent has been received, too.
    fn wait(self, op: &'static str) -> Result<Option<Tensor>> {
        let received = match self.recv {
            Some((recv, n)) => Some(recv.wait().map_err(Error::comm(op))?.into_tensor(&[n])?),
            None => None,
        };
        if let Some(send) = self.send {
            send.wait().map_err(Error::comm(op))?;
        }
        Ok(received)
    }
}

/// Elements of a position, on all ranks that have it.
fn per_position(layout: &Layout) -> usize {
    let dim = layout.n_dims() - 2;
    let sizes = layout.global_shape().iter().enumerate();
    let elements: usize = sizes.filter(|(other, _)| *other != dim).map(|(_, size)| *size).product();
    let whole = layout.placements().iter().enumerate();
    let whole = whole.filter(|(_, placement)| placement.shard_dim().is_none());
    elements * whole.map(|(axis, _)| layout.mesh().axis_size(axis)).product::<usize>()
}

fn length(runs: &[Run]) -> usize {
    runs.iter().map(Run::len).sum()
}

/// The axes that cut a dim.
pub(super) fn axes_of(layout: &Layout, dim: usize) -> Vec<usize> {
    let placements = layout.placements().iter().enumerate();
    placements.filter(|(_, one)| **one == Placement::Shard(dim)).map(|(axis, _)| axis).collect()
}
