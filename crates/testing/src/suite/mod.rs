//! Named cases that run on any world: on threads by `cargo test`, under mpirun by `mpi-suite`.
//!
//! A case is the program of one rank, right for every number of ranks.

mod checkpoints;
mod faults;
mod layouts;
mod remote_shards;
mod sharded;
mod sharded_errors;
mod sharded_modules;
mod tensors;
mod training;

use dtensor_comm::conformance;
pub use dtensor_comm::conformance::Case;

pub use faults::{Fault, Loses, faults};

/// The cases of this crate, by name.
pub const CASES: &[(&str, Case)] = &[
    ("parts_gathered_from_all_ranks_are_the_whole", layouts::gathered),
    ("contributions_reduced_along_their_axis_are_the_whole", layouts::reduced),
    ("every_layout_becomes_every_other", tensors::redistributed),
    ("tensors_move_to_other_meshes", tensors::to_other_meshes),
    ("pending_redistributions_arrive", tensors::pending),
    ("tensors_are_made_of_parts_and_of_one_ranks_data", tensors::constructed),
    ("random_values_are_those_of_one_rank", tensors::random),
    ("every_operation_gives_the_dense_result", tensors::operations),
    ("values_that_one_rank_refuses_are_an_error_on_all", tensors::refused_values),
    ("gradients_are_those_of_one_rank", training::gradients),
    ("training_gives_the_bits_of_threads", training::steps),
    ("checkpoints_move_between_layouts_and_meshes", checkpoints::moved),
    ("ranks_convert_a_checkpoint_together", checkpoints::converted),
    ("damage_that_one_rank_reads_is_an_error_on_all", checkpoints::damaged),
    ("shards_of_other_ranks_are_fetched_as_they_are", remote_shards::fetched),
    ("workers_own_shards_by_their_names", remote_shards::named),
    ("workers_that_meet_by_address_fetch_shards", remote_shards::by_address),
    ("shards_are_fetched_by_many_threads_at_a_time", remote_shards::fetched_at_once),
    ("garbage_that_asks_for_shards_gets_an_error", remote_shards::asked_for_garbage),
    ("sharded_tensors_are_made_of_what_ranks_bring_and_gathered", sharded::constructed),
    ("sharded_tensors_are_cut_in_every_other_way", sharded::resharded),
    ("bags_of_sharded_tables_are_those_of_whole_ones", sharded::looked_up),
    ("sharded_tensors_are_saved_and_loaded_in_every_cut", sharded::saved),
    ("sharded_tensors_become_bytes_and_come_back", sharded_modules::stored),
    ("sharded_modules_train_as_whole_ones", sharded_modules::trained),
    ("sharded_tensors_compute_as_distributed_ones", sharded_modules::delegated),
    ("what_is_wrong_with_sharded_tensors_is_the_same_error_on_all", sharded_errors::same_on_all),
    ("a_shard_that_one_rank_places_wrongly_is_an_error_on_all", sharded::refused),
];

/// Every case: first those of the communication that the others stand on.
pub fn cases() -> impl Iterator<Item = (&'static str, Case)> {
    conformance::CASES.iter().chain(CASES).copied()
}
