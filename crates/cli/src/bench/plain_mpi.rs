//! MPI's own calls, without anything of ours around them: what there is to compare with.

use dtensor_comm::{World, WorldKind};
use mpi::{
    collective::SystemOperation,
    datatype::{Partition, PartitionMut},
    topology::SimpleCommunicator,
    traits::{Communicator, CommunicatorCollectives},
};

use super::{
    buffers::{Buffers, Counts, Shape},
    cases::Case,
};

/// The calls on the communicator of all ranks.
pub struct PlainMpi {
    world: SimpleCommunicator,
}

impl PlainMpi {
    /// The calls, where the world's ranks are MPI processes.
    pub fn of(world: &World) -> Option<PlainMpi> {
        let running = world.kind() == WorldKind::Mpi;
        running.then(|| PlainMpi { world: SimpleCommunicator::world() })
    }

    /// Whether there is such a call. rsmpi has no reduce-scatter with counts, and a memcpy is no call.
    pub fn has(&self, case: Case, shape: Shape) -> bool {
        match case {
            Case::AllGather | Case::AllToAll | Case::AllReduce => true,
            Case::ReduceScatter => shape == Shape::Even,
            Case::Memcpy | Case::MemcpyPiece => false,
        }
    }

    /// Makes one call of those that it [`has`](PlainMpi::has).
    pub fn call(&self, case: Case, shape: Shape, counts: &Counts, buffers: &mut Buffers) {
        let rank = usize::try_from(self.world.rank()).unwrap_or(0);
        let (total, piece) = (counts.total, counts.pieces[rank]);
        let Buffers { send, recv } = buffers;
        let sum = SystemOperation::sum();
        match (case, shape) {
            (Case::AllGather, Shape::Even) => {
                self.world.all_gather_into(&send[..piece], &mut recv[..total]);
            }
            (Case::AllGather, Shape::Uneven) => {
                let (counts, offsets) = as_mpi_counts(&counts.pieces);
                let mut recv = PartitionMut::new(&mut recv[..total], counts, offsets);
                self.world.all_gather_varcount_into(&send[..piece], &mut recv);
            }
            (Case::AllToAll, Shape::Even) => {
                self.world.all_to_all_into(&send[..total], &mut recv[..total]);
            }
            (Case::AllToAll, Shape::Uneven) => {
                let (sent, received) = (&counts.matrix[rank], counts.received(rank));
                let (n_sent, n_received) = (sent.iter().sum(), received.iter().sum());
                let ((sent, send_offsets), (received, recv_offsets)) =
                    (as_mpi_counts(sent), as_mpi_counts(&received));
                let send: &[f32] = &send[..n_sent];
                let recv: &mut [f32] = &mut recv[..n_received];
                self.world.all_to_all_varcount_into(
                    &Partition::new(send, sent, send_offsets),
                    &mut PartitionMut::new(recv, received, recv_offsets),
                );
            }
            (Case::AllReduce, _) => {
                self.world.all_reduce_into(&send[..total], &mut recv[..total], sum);
            }
            (Case::ReduceScatter, Shape::Even) => {
                self.world.reduce_scatter_block_into(&send[..total], &mut recv[..piece], sum);
            }
            (Case::ReduceScatter, Shape::Uneven) | (Case::Memcpy | Case::MemcpyPiece, _) => {}
        }
    }

    /// An all-reduce of 8 bytes.
    pub fn small_all_reduce(&self) {
        let mut result = [0.0f64];
        self.world.all_reduce_into(&[1.0f64], &mut result, SystemOperation::max());
    }
}

/// Counts and where their pieces start, in MPI's own integers. Benches stay far below their limit.
fn as_mpi_counts(counts: &[usize]) -> (Vec<mpi::Count>, Vec<mpi::Count>) {
    let as_count = |count: usize| mpi::Count::try_from(count).unwrap_or(mpi::Count::MAX);
    let mut offset = 0;
    let offsets = counts.iter().map(|count| {
        let here = offset;
        offset += count;
        as_count(here)
    });
    let offsets = offsets.collect();
    (counts.iter().map(|count| as_count(*count)).collect(), offsets)
}
