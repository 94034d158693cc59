use std::{hint::black_box, time::Instant};

use dtensor_comm::{Group, ReduceOp};

use super::{
    buffers::{Buffers, Counts, Shape},
    comm::BenchError,
};

/// What all ranks measure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Case {
    AllGather,
    AllToAll,
    AllReduce,
    ReduceScatter,
    Memcpy,
    MemcpyPiece,
}

impl Case {
    /// The memcpy comes between the collectives, so that it meets the same noise.
    pub const ALL: [Case; 6] = [
        Case::AllGather,
        Case::AllToAll,
        Case::Memcpy,
        Case::AllReduce,
        Case::ReduceScatter,
        Case::MemcpyPiece,
    ];

    pub fn name(self) -> &'static str {
        match self {
            Case::AllGather => "all_gather",
            Case::AllToAll => "all_to_all",
            Case::AllReduce => "all_reduce",
            Case::ReduceScatter => "reduce_scatter",
            Case::Memcpy => "memcpy",
            Case::MemcpyPiece => "memcpy_piece",
        }
    }

    /// The memcpy of as many bytes as each rank writes in this case.
    pub fn baseline(self) -> Case {
        match self {
            Case::AllGather | Case::AllToAll | Case::AllReduce | Case::Memcpy => Case::Memcpy,
            Case::ReduceScatter | Case::MemcpyPiece => Case::MemcpyPiece,
        }
    }
}

/// What one rank needs to make the calls.
pub struct Bench<'a> {
    pub group: &'a Group,
    pub counts: &'a Counts,
    pub buffers: &'a mut Buffers,
}

impl Bench<'_> {
    /// Time of one call on the slowest rank, in microseconds.
    ///
    /// Every case, the memcpy included, begins with both buffers just written in the same order.
    /// Otherwise each would find in the caches what the case before it left there, and the
    /// comparison would be one of neighbours. The source of a copy is written last; the buffer that
    /// an all-reduce works in is the colder one.
    pub fn sample(
        &mut self,
        call: impl FnOnce(&mut Self) -> Result<(), BenchError>,
    ) -> Result<f64, BenchError> {
        self.buffers.recv.fill(1.0);
        self.buffers.send.fill(1.0);
        self.group.barrier()?;
        let start = Instant::now();
        call(self)?;
        let mut slowest = [start.elapsed().as_secs_f64() * 1e6];
        self.group.all_reduce(&mut slowest, ReduceOp::Max)?;
        Ok(slowest[0])
    }

    pub fn call(&mut self, case: Case, shape: Shape) -> Result<(), BenchError> {
        let Bench { group, counts, buffers } = self;
        let rank = group.rank();
        let (total, piece) = (counts.total, counts.pieces[rank]);
        let Buffers { send, recv } = buffers;
        match (case, shape) {
            (Case::AllGather, Shape::Even) => {
                group.all_gather(&send[..piece], &mut recv[..total])?
            }
            (Case::AllGather, Shape::Uneven) => {
                group.all_gather_v(&send[..piece], &mut recv[..total], &counts.pieces)?;
            }
            (Case::AllToAll, Shape::Even) => {
                group.all_to_all(&send[..total], &mut recv[..total])?;
            }
            (Case::AllToAll, Shape::Uneven) => {
                let (sent, received) = (&counts.matrix[rank], counts.received(rank));
                let (n_sent, n_received) = (sent.iter().sum(), received.iter().sum());
                let (send, recv): (&[f32], &mut [f32]) = (&send[..n_sent], &mut recv[..n_received]);
                group.all_to_all_v(send, sent, recv, &received)?;
            }
            (Case::AllReduce, _) => group.all_reduce(&mut recv[..total], ReduceOp::Sum)?,
            (Case::ReduceScatter, Shape::Even) => {
                group.reduce_scatter(&send[..total], &mut recv[..piece], ReduceOp::Sum)?;
            }
            (Case::ReduceScatter, Shape::Uneven) => {
                let (send, recv) = (&send[..total], &mut recv[..piece]);
                group.reduce_scatter_v(send, recv, &counts.pieces, ReduceOp::Sum)?;
            }
            (Case::Memcpy, _) => recv[..total].copy_from_slice(&send[..total]),
            (Case::MemcpyPiece, _) => recv[..piece].copy_from_slice(&send[..piece]),
        }
        // A copy that nobody looks at might not be made.
        black_box(&recv[..]);
        Ok(())
    }

    /// Makes the call once, with values that tell ranks apart, and looks at the result. Also warms up.
    pub fn check(&mut self, case: Case, shape: Shape) -> Result<(), BenchError> {
        let (rank, ranks) = (self.group.rank(), self.group.size());
        self.buffers.send.fill(rank as f32 + 1.0);
        self.buffers.recv.fill(if case == Case::AllReduce { rank as f32 + 1.0 } else { 0.0 });
        self.call(case, shape)?;
        let counts = self.counts;
        let sum = (ranks * (ranks + 1) / 2) as f32;
        // Runs of equal values that the result must consist of.
        let want: Vec<(usize, f32)> = match case {
            Case::AllGather => {
                counts.pieces.iter().enumerate().map(|(from, n)| (*n, from as f32 + 1.0)).collect()
            }
            Case::AllToAll => {
                let received = counts.received(rank).into_iter().enumerate();
                received.map(|(from, n)| (n, from as f32 + 1.0)).collect()
            }
            Case::AllReduce => vec![(counts.total, sum)],
            Case::ReduceScatter => vec![(counts.pieces[rank], sum)],
            Case::Memcpy => vec![(counts.total, rank as f32 + 1.0)],
            Case::MemcpyPiece => vec![(counts.pieces[rank], rank as f32 + 1.0)],
        };
        let mut rest = self.buffers.recv.as_slice();
        for (n, value) in want {
            let (run, after) = rest.split_at(n);
            if run.iter().any(|element| *element != value) {
                return Err(BenchError::Wrong { case, shape });
            }
            rest = after;
        }
        Ok(())
    }
}
