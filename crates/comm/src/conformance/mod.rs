//! What every world must do, as named cases that run on any of them.
//!
//! Each case is a function of one rank's [`World`], valid for every size from 1 on, that computes by
//! itself what all ranks hold and what must come out. The same list runs on threads and under mpirun.
//!
//! ```
//! use dtensor_comm::{Runner, conformance::CASES};
//!
//! let (name, case) = CASES[0];
//! Runner::threads(3).run(case).map_err(|error| format!("{name}: {error}"))?;
//! # Ok::<(), String>(())
//! ```

mod arguments;
mod collectives;
mod faults;
mod groups;
mod messages;
mod pending;
mod reductions;
mod sample;

use crate::World;

pub use faults::{DEATHS, FAULTS};
pub use sample::Sample;

/// A case: the program of one rank. `Err` says what was wrong.
pub type Case = fn(&World) -> Result<(), String>;

/// Cases in which nothing goes wrong. They may run one after the other in one world, in this order on
/// every rank.
pub const CASES: &[(&str, Case)] = &[
    ("barrier_returns_on_every_rank", collectives::barrier),
    ("broadcast_gives_everybody_the_roots_values", collectives::broadcast),
    ("scatter_gives_each_rank_its_piece", collectives::scatter),
    ("gather_collects_the_pieces_on_the_root", collectives::gather),
    ("all_gather_collects_the_pieces_everywhere", collectives::all_gather),
    ("lists_of_any_length_are_collected_and_passed_on", collectives::lists),
    ("all_to_all_transposes_the_pieces", collectives::all_to_all),
    ("erased_calls_do_what_the_typed_ones_do", collectives::erased),
    ("all_reduce_is_the_serial_reduction_bit_for_bit", reductions::all_reduce),
    ("reduce_scatter_is_the_serial_reduction_bit_for_bit", reductions::reduce_scatter),
    ("sums_are_made_in_rank_order", reductions::rank_order),
    ("halves_are_rounded_once", reductions::halves),
    ("nan_wins_max_and_min_and_integers_wrap", reductions::special_values),
    ("all_members_have_the_same_bits_every_time", reductions::same_bits),
    ("subgroups_in_any_order_work_side_by_side", groups::side_by_side),
    ("the_same_ranks_are_the_same_group", groups::cached),
    ("many_calls_on_many_groups_are_in_flight_at_once", groups::many_in_flight),
    ("every_call_has_a_pending_form", pending::every_form),
    ("ranks_may_wait_in_different_orders", pending::different_orders),
    ("pending_calls_may_be_tested_until_ready", pending::tested),
    ("more_calls_than_a_ring_holds_may_be_pending", pending::many),
    ("a_dropped_pending_call_completes", pending::dropped),
    ("a_leaked_pending_call_hurts_nobody", pending::leaked),
    ("messages_arrive_in_order", messages::in_order),
    ("messages_are_matched_by_tag", messages::by_tag),
    ("pending_messages_cross", messages::crossing),
    ("wrong_arguments_are_refused_and_the_group_lives_on", arguments::refused),
];
