//! Parts of a local tensor, in the order in which a message has them.

use dtensor_layout::{IndexBox, Layout};
use dtensor_local::Tensor;

use crate::Result;

/// For every member of a group the boxes of this rank's tensor that go to it or come from it.
#[derive(Debug)]
pub(crate) struct Parts {
    /// Elements per member.
    pub(crate) counts: Vec<usize>,
    boxes: Vec<IndexBox>,
    /// One after the other the boxes are the whole tensor in the order of its memory: nothing needs to
    /// be packed or unpacked.
    direct: bool,
}

impl Parts {
    /// `members` are lists of boxes of global indices. All of them are held by the rank at `coord`.
    pub(crate) fn new(
        layout: &Layout,
        coord: &[usize],
        members: impl Iterator<Item = Vec<IndexBox>>,
    ) -> Parts {
        let shape = layout.local_shape(coord);
        let (mut counts, mut boxes) = (Vec::new(), Vec::new());
        for member in members {
            counts.push(member.iter().map(IndexBox::numel).sum());
            // A rank holds what it sends and receives; were it not so, the counts would not fit, which
            // is found before anything is sent.
            boxes.extend(member.iter().filter_map(|global| layout.local_box(coord, global)));
        }
        let direct = tiles(&boxes, &shape);
        Parts { counts, boxes, direct }
    }

    /// Nothing to or from any of so many members.
    pub(crate) fn none(n_members: usize) -> Parts {
        Parts { counts: vec![0; n_members], boxes: Vec::new(), direct: false }
    }

    pub(crate) fn numel(&self) -> usize {
        self.counts.iter().sum()
    }

    /// The elements of the boxes, one after the other.
    pub(crate) fn pack(&self, local: &Tensor) -> Result<Tensor> {
        if self.direct {
            return Ok(local.contiguous());
        }
        let views = self.boxes.iter().map(|part| view(local, part)).collect::<Result<Vec<_>>>()?;
        Ok(Tensor::pack(local.dtype(), &views)?)
    }

    /// A tensor of this shape of which `packed` has the elements of the boxes.
    pub(crate) fn unpack(&self, packed: &Tensor, shape: &[usize]) -> Result<Tensor> {
        if self.direct {
            return Ok(packed.reshape(shape)?);
        }
        self.unpack_into(Tensor::empty(shape, packed.dtype())?, packed)
    }

    /// The same tensor with other elements in the boxes.
    pub(crate) fn unpack_into(&self, mut whole: Tensor, packed: &Tensor) -> Result<Tensor> {
        let mut at = 0;
        for part in &self.boxes {
            let values = packed.narrow(0, at, part.numel())?.reshape(&part.shape())?;
            whole.slice_assign_in_place(&part.0, &values)?;
            at += part.numel();
        }
        Ok(whole)
    }

    /// The box, if there is one: what needs no copy.
    pub(crate) fn only(&self) -> Option<&IndexBox> {
        match &*self.boxes {
            [one] => Some(one),
            _ => None,
        }
    }
}

/// The part of a tensor in a box.
pub(crate) fn view(local: &Tensor, part: &IndexBox) -> Result<Tensor> {
    let mut view = local.clone();
    for (dim, range) in part.0.iter().enumerate() {
        if range.len() != local.shape()[dim] {
            view = view.narrow(dim as isize, range.start, range.len())?;
        }
    }
    Ok(view)
}

/// Whether the boxes, one after the other, are all elements of a tensor of this shape in order.
fn tiles(boxes: &[IndexBox], shape: &[usize]) -> bool {
    let mut reached = 0;
    for part in boxes {
        // Consecutive: from the first dim of which it has more than one index, it has all of the rest.
        let inner = part.0.iter().zip(shape).skip_while(|(range, _)| range.len() == 1).skip(1);
        if !inner.clone().all(|(range, size)| range.len() == *size) {
            return false;
        }
        let start = part.0.iter().zip(shape).fold(0, |at, (range, size)| at * size + range.start);
        if start != reached {
            return false;
        }
        reached += part.numel();
    }
    reached == shape.iter().product::<usize>()
}
