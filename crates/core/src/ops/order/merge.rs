//! Sorting what several ranks have, without one of them having it all.
//!
//! Every rank sorts its part. From each they take equally spaced samples, which all ranks see; from these
//! follow values that split the whole into about equal shares (regular sampling: of even parts none is larger
//! than twice the mean). Every rank sends each share of its part to the rank of that share, which merges what it gets. Then
//! the ranks tell each other how much they have, and what crosses a boundary between the chunks of the result
//! moves there.
//!
//! Equal values are ordered by where they were. That order is part of every comparison, so it is stable, and
//! shares are about equal also if all values are.

use std::ops::Range;

use dtensor_layout::DType;
use dtensor_local::Tensor;

use crate::{Result, ops::indexing::ragged::Line};

/// Rows that continue from rank to rank of a line of ranks, to be sorted.
pub(super) struct Merge<'a> {
    pub(super) line: &'a Line<'a>,
    /// How many columns each rank has.
    pub(super) sizes: &'a [usize],
    pub(super) descending: bool,
    /// Which of the sorted columns the rank at a coordinate gets.
    pub(super) wanted: &'a dyn Fn(&[usize]) -> Range<usize>,
}

/// Values, and where they were in the whole.
pub(super) struct Sorted {
    pub(super) values: Tensor,
    pub(super) indices: Tensor,
}

impl Merge<'_> {
    /// `part` has the rows of this rank. Gives its columns of the sorted rows.
    pub(super) fn run(&self, part: &Tensor) -> Result<Sorted> {
        let members = self.line.members()?;
        let own = self.line.position(self.line.mesh.own_coord(self.line.op)?);
        let n_lines = part.shape()[0];
        let shape = [n_lines, (self.wanted)(&members[own]).len()];
        if part.is_meta() {
            let (values, indices) =
                (Tensor::meta(&shape, part.dtype())?, Tensor::meta(&shape, DType::I64)?);
            return Ok(Sorted { values, indices });
        }
        if n_lines == 0 {
            // So it is on all ranks of the line.
            let (values, indices) =
                (Tensor::zeros(&shape, part.dtype())?, Tensor::zeros(&shape, DType::I64)?);
            return Ok(Sorted { values, indices });
        }
        let offset: usize = self.sizes[..own].iter().sum();
        let (values, indices) = part.sort(1, self.descending)?;
        let sorted = Sorted { values, indices: indices.add_scalar(offset as i64)? };
        let shares = self.shares(&sorted)?;
        let merged = self.exchange_shares(&sorted, &shares)?;
        self.exchange_columns(&merged, &members, part.dtype())
    }

    /// Where the share of every rank begins in the sorted rows of this one, and where the last ends.
    fn shares(&self, sorted: &Sorted) -> Result<Vec<Vec<usize>>> {
        let n_ranks = self.sizes.len();
        let (n_lines, n) = (sorted.values.shape()[0], sorted.values.shape()[1]);
        let counts: Vec<usize> = self.sizes.iter().map(|size| n_ranks.min(*size)).collect();
        let own = n_ranks.min(n);
        let places = (0..own).map(|number| (number * n / own.max(1)) as i64).collect();
        let places = Tensor::from_vec::<i64>(places, &[own])?;
        let (values, order) = self
            .gather(&sorted.values.index_select(1, &places)?, &counts)?
            .sort(1, self.descending)?;
        let indices = self.gather(&sorted.indices.index_select(1, &places)?, &counts)?;
        let indices = indices.gather(1, &order)?;
        let n_samples = values.shape()[1];
        let splits = (1..n_ranks).map(|rank| (rank * n_samples / n_ranks) as i64).collect();
        let splits = Tensor::from_vec::<i64>(splits, &[n_ranks - 1])?;
        let (values, indices) =
            (values.index_select(1, &splits)?, indices.index_select(1, &splits)?);
        // Values before, and values that are equal, for which the index decides.
        let ascending = match self.descending {
            true => sorted.values.flip(1)?.contiguous(),
            false => sorted.values.clone(),
        };
        let left = ascending.searchsorted(&values, false)?.to_vec::<i64>()?;
        let right = ascending.searchsorted(&values, true)?.to_vec::<i64>()?;
        let split_at = indices.to_vec::<i64>()?;
        let places = sorted.indices.contiguous();
        let places = places.as_slice::<i64>()?;
        let mut shares = Vec::with_capacity(n_lines);
        for line in 0..n_lines {
            let row = &places[line * n..(line + 1) * n];
            let mut bounds = vec![0];
            for split in line * (n_ranks - 1)..(line + 1) * (n_ranks - 1) {
                let (left, right) = (left[split] as usize, right[split] as usize);
                let equal = if self.descending { n - right..n - left } else { left..right };
                let before = row[equal.clone()].partition_point(|place| *place < split_at[split]);
                bounds.push(equal.start + before);
            }
            bounds.push(n);
            shares.push(bounds);
        }
        Ok(shares)
    }

    /// The share of this rank, row by row, merged.
    fn exchange_shares(
        &self,
        sorted: &Sorted,
        shares: &[Vec<usize>],
    ) -> Result<Vec<(Tensor, Tensor)>> {
        let (n_ranks, n_lines) = (self.sizes.len(), shares.len());
        let ranges = (0..n_ranks)
            .map(|rank| shares.iter().map(|bounds| bounds[rank]..bounds[rank + 1]).collect())
            .collect::<Vec<Vec<_>>>();
        let lengths = ranges.iter().flatten().map(|range| range.len() as i64).collect();
        let lengths = Tensor::from_vec::<i64>(lengths, &[n_ranks * n_lines])?;
        let each = vec![n_lines; n_ranks];
        let lengths = self.line.swap(&lengths, &each, &each)?.to_vec::<i64>()?;
        let lengths: Vec<usize> = lengths.iter().map(|one| *one as usize).collect();
        let values = self.exchange(&rows(&sorted.values)?, &ranges, &lengths)?;
        let indices = self.exchange(&rows(&sorted.indices)?, &ranges, &lengths)?;
        let merge = |(values, indices): (&Tensor, &Tensor)| {
            // Each run is sorted, and runs of equal values come in the order of the ranks.
            let (values, order) = values.sort(0, self.descending)?;
            Ok((values, indices.index_select(0, &order)?))
        };
        values.iter().zip(&indices).map(merge).collect()
    }

    /// From shares to the columns that are wanted.
    fn exchange_columns(
        &self,
        merged: &[(Tensor, Tensor)],
        members: &[Vec<usize>],
        dtype: DType,
    ) -> Result<Sorted> {
        let lengths: Vec<i64> = merged.iter().map(|(values, _)| values.numel() as i64).collect();
        let all = self.line.agree(&lengths)?;
        let own = self.line.position(self.line.mesh.own_coord(self.line.op)?);
        // Per rank and row, the columns that it has.
        let mut held: Vec<Vec<Range<usize>>> = Vec::with_capacity(members.len());
        for lengths in &all {
            let start = |line: usize| held.last().map_or(0, |before| before[line].end);
            let of_line = lengths.iter().enumerate().take(merged.len());
            let of_line = of_line.map(|(line, length)| start(line)..start(line) + *length as usize);
            held.push(of_line.collect());
        }
        let both = |a: &Range<usize>, b: &Range<usize>| {
            let start = a.start.max(b.start);
            start..a.end.min(b.end).max(start)
        };
        let ranges: Vec<Vec<Range<usize>>> = members
            .iter()
            .map(|member| {
                let wanted = (self.wanted)(member);
                let local = |held: &Range<usize>| {
                    let both = both(held, &wanted);
                    match both.is_empty() {
                        true => 0..0,
                        false => both.start - held.start..both.end - held.start,
                    }
                };
                held[own].iter().map(local).collect()
            })
            .collect();
        let wanted = (self.wanted)(&members[own]);
        let lengths: Vec<usize> =
            held.iter().flatten().map(|held| both(held, &wanted).len()).collect();
        let (values, indices): (Vec<Tensor>, Vec<Tensor>) = merged.iter().cloned().unzip();
        let shape = [merged.len(), wanted.len()];
        let values = self.exchange(&values, &ranges, &lengths)?;
        let indices = self.exchange(&indices, &ranges, &lengths)?;
        Ok(Sorted {
            values: stacked(&values, &shape, dtype)?,
            indices: stacked(&indices, &shape, DType::I64)?,
        })
    }

    /// Sends the range of every row to every rank, and gives what comes from all ranks, row by row. `lengths`
    /// are those that come: of the rows of the first rank, then of the second.
    fn exchange(
        &self,
        rows: &[Tensor],
        ranges: &[Vec<Range<usize>>],
        lengths: &[usize],
    ) -> Result<Vec<Tensor>> {
        let n_lines = rows.len();
        let Some(dtype) = rows.first().map(Tensor::dtype) else { return Ok(Vec::new()) };
        let mut views = Vec::with_capacity(ranges.len() * n_lines);
        for of_rank in ranges {
            for (row, range) in rows.iter().zip(of_rank) {
                views.push(row.narrow(0, range.start, range.len())?);
            }
        }
        let send_counts: Vec<usize> =
            ranges.iter().map(|of_rank| of_rank.iter().map(Range::len).sum()).collect();
        let recv_counts: Vec<usize> =
            lengths.chunks(n_lines).map(|of_rank| of_rank.iter().sum()).collect();
        let received = self.line.swap(&Tensor::pack(dtype, &views)?, &send_counts, &recv_counts)?;
        let mut pieces: Vec<Vec<Tensor>> = vec![Vec::new(); n_lines];
        let mut at = 0;
        for (number, length) in lengths.iter().enumerate() {
            pieces[number % n_lines].push(received.narrow(0, at, *length)?);
            at += length;
        }
        pieces.iter().map(|pieces| Ok(Tensor::pack(dtype, pieces)?)).collect()
    }

    /// The columns of all ranks, of which they have so many, beside each other.
    fn gather(&self, own: &Tensor, counts: &[usize]) -> Result<Tensor> {
        let n_lines = own.shape()[0];
        let all: Vec<usize> = counts.iter().map(|count| count * n_lines).collect();
        beside(&self.line.gather(own, &all)?, n_lines, counts)
    }
}

/// Matrices of so many rows and columns, one after the other in a line, beside each other.
pub(super) fn beside(all: &Tensor, n_lines: usize, counts: &[usize]) -> Result<Tensor> {
    let mut at = 0;
    let mut parts = Vec::with_capacity(counts.len());
    for count in counts {
        parts.push(all.narrow(0, at, count * n_lines)?.reshape(&[n_lines, *count])?);
        at += count * n_lines;
    }
    Ok(Tensor::cat(&parts.iter().collect::<Vec<_>>(), 1)?)
}

fn rows(matrix: &Tensor) -> Result<Vec<Tensor>> {
    (0..matrix.shape()[0]).map(|row| Ok(matrix.select(0, row as isize)?)).collect()
}

fn stacked(rows: &[Tensor], shape: &[usize], dtype: DType) -> Result<Tensor> {
    Ok(Tensor::pack(dtype, rows)?.reshape(shape)?)
}
