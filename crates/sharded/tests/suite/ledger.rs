//! Which test here says what each of PyTorch's tests says: `test/distributed/_shard` of 2.15, 12 files with 111
//! cases, one row each, in our own words. Where PyTorch asks for four GPUs, there are thread ranks here.

use std::collections::{BTreeMap, BTreeSet};

/// A file of PyTorch's tests, a class or subject in it, and its cases.
type Part = (&'static str, &'static str, &'static [Row]);
/// What one case is about, and the tests that stand for it; or why there is none.
type Row = (&'static str, Covered);

enum Covered {
    By(&'static [&'static str]),
    Not(&'static str),
}

use Covered::{By, Not};

const SHARDED_TENSOR: &str = "sharded_tensor/test_sharded_tensor.py";

/// How many cases each file has.
const FILES: [(&str, usize); 12] = [
    (SHARDED_TENSOR, 74),
    ("sharding_spec/test_sharding_spec.py", 11),
    ("sharded_tensor/ops/test_tensor_ops.py", 5),
    ("sharded_tensor/ops/test_binary_cmp.py", 4),
    ("sharded_tensor/ops/test_init.py", 3),
    ("sharding_plan/test_sharding_plan.py", 3),
    ("sharded_tensor/ops/test_embedding.py", 2),
    ("sharded_tensor/ops/test_embedding_bag.py", 2),
    ("sharded_tensor/test_sharded_tensor_reshard.py", 2),
    ("sharded_optim/test_sharded_optim.py", 2),
    ("test_sharder.py", 2),
    ("sharded_tensor/test_logger.py", 1),
];

/// How many cases each class of the largest has.
const CLASSES: [usize; 14] = [1, 1, 2, 3, 2, 2, 22, 14, 2, 16, 3, 2, 2, 2];

const LEDGER: &[Part] = &[
    (
        SHARDED_TENSOR,
        "metadata",
        &[(
            "stored and read with every dtype, layout and memory format",
            By(&[
                "properties_of_every_kind_survive_storing_in_every_combination",
                "metadata_survive_storing",
                "properties_are_stored_as_six_fields_and_read_from_five",
            ]),
        )],
    ),
    (
        SHARDED_TENSOR,
        "a local tensor from properties",
        &[("empty", By(&["empty_tensors_have_the_size_and_the_properties_that_are_asked_for"]))],
    ),
    (
        SHARDED_TENSOR,
        "parameters",
        &[
            ("cut from one rank", By(&["a_parameter_is_cut_from_one_rank"])),
            (
                "missing, not contiguous, or cut differently by ranks",
                By(&[
                    "a_parameter_that_is_not_there_is_the_same_error_on_all",
                    "ranks_that_cut_differently_are_told_so",
                ]),
            ),
        ],
    ),
    (
        SHARDED_TENSOR,
        "cutting a tensor",
        &[
            ("by chunks", By(&["a_tensor_is_cut_from_any_rank_by_any_spec"])),
            ("with an empty shard", By(&["tensors_with_empty_chunks_can_be_used_like_any_other"])),
            (
                "what is wrong with it",
                By(&[
                    "ranks_that_cut_differently_are_told_so",
                    "devices_that_nothing_can_be_sent_to_are_the_same_error_on_all",
                ]),
            ),
        ],
    ),
    (
        SHARDED_TENSOR,
        "outputs of modules",
        &[
            (
                "resharded",
                By(&[
                    "outputs_are_resharded_and_given_as_local_parts",
                    "a_plan_tells_modules_what_becomes_of_their_results",
                ]),
            ),
            ("the part of each rank", By(&["outputs_are_resharded_and_given_as_local_parts"])),
        ],
    ),
    (
        SHARDED_TENSOR,
        "the local tensor",
        &[
            ("of one shard", By(&["every_rank_makes_its_chunk"])),
            ("of several", By(&["placements_say_which_rank_has_which_chunk_and_how_many"])),
        ],
    ),
    (
        SHARDED_TENSOR,
        "chunks",
        &[
            (
                "what can be asked without elements",
                By(&[
                    "every_rank_makes_its_chunk",
                    "operations_of_the_table_can_be_called_by_name",
                ]),
            ),
            (
                "on all ranks, with references",
                By(&[
                    "every_rank_makes_its_chunk",
                    "every_rank_fetches_what_the_others_have_in_their_order",
                ]),
            ),
            (
                "fewer elements than ranks",
                By(&[
                    "empty_chunks_may_begin_at_the_end_or_beyond_it",
                    "tensors_with_empty_chunks_can_be_used_like_any_other",
                ]),
            ),
            ("ones", By(&["every_rank_makes_its_chunk"])),
            ("gathered, even", By(&["every_spec_gathers_on_every_destination"])),
            ("gathered, uneven", By(&["every_spec_gathers_on_every_destination"])),
            (
                "zeros",
                By(&[
                    "placements_say_which_rank_has_which_chunk_and_how_many",
                    "tensors_like_another_have_the_values_of_their_names",
                ]),
            ),
            (
                "random values",
                By(&[
                    "random_values_do_not_depend_on_the_sharding",
                    "random_values_have_the_bounds_and_moments_that_are_asked_for",
                ]),
            ),
            (
                "one value",
                By(&[
                    "uneven_boxes_may_be_listed",
                    "tensors_like_another_have_the_values_of_their_names",
                ]),
            ),
            (
                "like another",
                By(&[
                    "tensors_like_another_have_the_values_of_their_names",
                    "tensors_like_another_have_its_dtype_group_and_gradients",
                ]),
            ),
            (
                "on some ranks, with references",
                By(&[
                    "placements_say_which_rank_has_which_chunk_and_how_many",
                    "every_rank_fetches_what_the_others_have_in_their_order",
                ]),
            ),
            (
                "on a group, with references",
                By(&[
                    "a_part_of_the_world_may_hold_the_tensor",
                    "ranks_outside_of_the_group_have_references_too",
                ]),
            ),
            (
                "several per rank, with references",
                By(&[
                    "placements_say_which_rank_has_which_chunk_and_how_many",
                    "every_rank_fetches_what_the_others_have_in_their_order",
                ]),
            ),
            (
                "of columns",
                By(&[
                    "every_rank_makes_its_chunk",
                    "chunks_are_those_of_torch_chunk_but_always_as_many_as_placements",
                ]),
            ),
            (
                "what cannot be made",
                By(&[
                    "what_cannot_be_made_is_refused_on_every_rank",
                    "a_dim_that_is_not_there_is_refused",
                    "a_name_that_no_worker_has_is_an_error_on_all",
                ]),
            ),
            (
                "a worker that is another rank",
                By(&["a_worker_that_is_another_rank_is_an_error_on_all"]),
            ),
            (
                "sizes of tensors of some dims",
                By(&["tensors_of_any_number_of_dims_have_the_size_that_is_asked_for"]),
            ),
            (
                "a state dict of all ranks",
                By(&[
                    "a_state_dict_has_sharded_tensors_and_gives_them_back",
                    "what_a_rank_stores_it_can_read",
                ]),
            ),
            (
                "a state dict of a group",
                By(&[
                    "a_state_dict_that_a_sub_group_has_stored_is_loaded_on_a_new_group",
                    "what_a_sub_group_stores_is_read_within_its_scope",
                ]),
            ),
            (
                "a state dict without sharded tensors",
                By(&["a_module_without_sharded_tensors_has_a_state_dict_like_any_other"]),
            ),
            (
                "a state dict on other ranks",
                By(&[
                    "another_rank_or_world_is_refused_by_name",
                    "a_group_is_said_once_and_forgotten_afterwards",
                ]),
            ),
            (
                "nothing is left behind",
                By(&["a_shard_outlives_its_tensor_while_somebody_has_a_reference"]),
            ),
        ],
    ),
    (
        SHARDED_TENSOR,
        "lists of shards",
        &[
            (
                "what can be asked without elements",
                By(&[
                    "uneven_boxes_may_be_listed",
                    "a_grid_that_is_listed_has_one_square_of_ones_on_every_rank",
                ]),
            ),
            (
                "on which device",
                By(&[
                    "operations_of_the_table_can_be_called_by_name",
                    "meta_shards_have_a_shape_and_no_values",
                ]),
            ),
            (
                "a grid, with references",
                By(&[
                    "a_grid_that_is_listed_has_one_square_of_ones_on_every_rank",
                    "every_rank_fetches_what_the_others_have_in_their_order",
                ]),
            ),
            ("ones", By(&["a_grid_that_is_listed_has_one_square_of_ones_on_every_rank"])),
            ("gathered, even", By(&["every_spec_gathers_on_every_destination"])),
            ("gathered, uneven", By(&["every_spec_gathers_on_every_destination"])),
            ("to the CPU", By(&["moving_and_casting_keep_boxes_and_values"])),
            (
                "to devices that are not here",
                By(&[
                    "moving_and_casting_keep_boxes_and_values",
                    "every_device_of_the_peer_parses_and_only_two_are_here",
                ]),
            ),
            (
                "to a device and a dtype",
                By(&[
                    "moving_and_casting_keep_boxes_and_values",
                    "parameters_in_any_cut_can_be_cast",
                ]),
            ),
            ("uneven boxes", By(&["uneven_boxes_may_be_listed"])),
            (
                "on some ranks, with references",
                By(&[
                    "every_spec_gathers_on_every_destination",
                    "every_rank_fetches_what_the_others_have_in_their_order",
                ]),
            ),
            (
                "on a group, with references",
                By(&["ranks_outside_of_the_group_have_references_too"]),
            ),
            (
                "several per rank, with references",
                By(&[
                    "every_spec_gathers_on_every_destination",
                    "every_rank_fetches_what_the_others_have_in_their_order",
                ]),
            ),
            ("by names of workers", By(&["workers_by_name_own_shards_wherever_ranks_can"])),
        ],
    ),
    (
        SHARDED_TENSOR,
        "from one local tensor",
        &[
            ("made", By(&["one_local_tensor_is_every_shard_of_its_rank"])),
            ("refused", By(&["one_local_tensor_is_every_shard_of_its_rank"])),
        ],
    ),
    (
        SHARDED_TENSOR,
        "from local shards",
        &[
            (
                "a shard by its offsets",
                By(&["a_shard_has_the_size_and_the_device_of_its_metadata"]),
            ),
            (
                "of all ranks, with references",
                By(&[
                    "local_shards_become_a_tensor_whose_spec_is_found",
                    "every_way_to_a_tensor_gives_references_if_they_are_wanted",
                ]),
            ),
            ("rows that are counted anew", By(&["rows_are_counted_anew"])),
            ("a size that is not theirs", By(&["shards_that_overlap_or_leave_gaps_are_refused"])),
            (
                "rows of whatever offsets",
                By(&["rows_are_one_shard_of_some_dims_wherever_it_says_that_it_is"]),
            ),
            ("without a group", By(&["shards_need_no_group_until_one_is_added"])),
            (
                "metadata of nothing",
                By(&["metadata_of_nothing_and_metadata_that_know_of_one_rank_only_are_taken"]),
            ),
            (
                "metadata that know of one rank only",
                By(&["metadata_of_nothing_and_metadata_that_know_of_one_rank_only_are_taken"]),
            ),
            (
                "with metadata, and with references",
                By(&[
                    "metadata_and_local_shards_make_a_tensor_without_a_word",
                    "every_way_to_a_tensor_gives_references_if_they_are_wanted",
                ]),
            ),
            ("of a group", By(&["a_sub_group_puts_its_own_tensor_together"])),
            ("wrong on one rank", By(&["what_is_wrong_on_one_rank_is_the_same_error_on_all"])),
            (
                "different on ranks",
                By(&["what_the_ranks_say_differently_is_the_same_error_on_all"]),
            ),
            (
                "pinned memory",
                By(&[
                    "what_is_wrong_on_one_rank_is_the_same_error_on_all",
                    "what_the_ranks_say_differently_is_the_same_error_on_all",
                ]),
            ),
            ("overlaps", By(&["shards_that_overlap_or_leave_gaps_are_refused"])),
            ("gaps", By(&["shards_that_overlap_or_leave_gaps_are_refused"])),
            ("other shards than the metadata", By(&["local_shards_must_be_those_of_the_metadata"])),
        ],
    ),
    (
        SHARDED_TENSOR,
        "operations of users",
        &[
            ("registered", By(&["own_operations_come_first_then_those_of_a_spec_then_the_table"])),
            ("instead of what is there", By(&["an_operation_of_the_table_can_be_replaced"])),
            (
                "with other parameters than a handler has",
                Not("the compiler refuses a function of another signature"),
            ),
        ],
    ),
    (
        SHARDED_TENSOR,
        "metadata of a shard",
        &[
            (
                "with a placement",
                By(&[
                    "offsets_and_sizes_have_one_entry_per_dim",
                    "metadata_are_equal_by_their_fields",
                ]),
            ),
            (
                "without a placement",
                By(&["metadata_are_equal_by_their_fields", "metadata_survive_storing"]),
            ),
        ],
    ),
    (
        SHARDED_TENSOR,
        "on a group that each rank makes for itself",
        &[
            (
                "shards without values",
                By(&["a_part_of_the_world_may_hold_a_tensor_without_values"]),
            ),
            (
                "placements outside of the group",
                By(&["a_part_of_the_world_may_hold_a_tensor_without_values"]),
            ),
        ],
    ),
    (
        SHARDED_TENSOR,
        "without a group",
        &[
            ("shards of any rank", By(&["shards_need_no_group_until_one_is_added"])),
            (
                "shards that are not contiguous",
                By(&["shards_without_a_group_are_held_to_the_metadata_when_one_is_added"]),
            ),
        ],
    ),
    (
        "sharding_spec/test_sharding_spec.py",
        "specs",
        &[
            (
                "placements and devices as texts",
                By(&["ranks_workers_and_devices_are_told_apart", "what_is_no_placement_says_so"]),
            ),
            (
                "chunks, and what they need",
                By(&["a_dim_that_is_not_there_is_refused", "chunks_need_placements_that_parse"]),
            ),
            (
                "lists, and what they need",
                By(&[
                    "a_list_of_shards_is_not_empty_and_of_one_number_of_dims",
                    "a_list_covers_the_tensor_or_is_refused",
                ]),
            ),
            (
                "the longest chunk of a length",
                By(&["the_arithmetic_of_chunks_is_there_for_others"]),
            ),
            (
                "the length of a chunk",
                By(&[
                    "the_arithmetic_of_chunks_is_there_for_others",
                    "chunks_are_those_of_torch_chunk_but_always_as_many_as_placements",
                ]),
            ),
            ("the chunk of a rank", By(&["the_arithmetic_of_chunks_is_there_for_others"])),
            (
                "found from shards",
                By(&[
                    "a_spec_is_found_again_from_its_shards_in_any_order",
                    "what_is_no_chunk_is_a_list",
                ]),
            ),
            (
                "overlaps",
                By(&[
                    "overlaps_are_found_in_any_number_of_dims",
                    "overlaps_are_those_of_all_pairs",
                ]),
            ),
            ("a spec of a user", By(&["a_spec_of_a_user_cuts_tensors_and_is_held_to_its_word"])),
            (
                "a tensor made with a spec of a user",
                By(&["a_spec_of_a_user_cuts_tensors_and_is_held_to_its_word"]),
            ),
            (
                "a tensor cut by a spec of a user",
                By(&[
                    "a_spec_of_a_user_cuts_tensors_and_is_held_to_its_word",
                    "a_spec_of_a_user_that_overlaps_is_refused_wherever_it_is_used",
                ]),
            ),
        ],
    ),
    (
        "sharded_tensor/ops/test_tensor_ops.py",
        "copies",
        &[
            (
                "deep copies",
                By(&["a_clone_goes_its_own_way", "operations_of_the_table_can_be_called_by_name"]),
            ),
            (
                "copying elements",
                By(&["a_copy_takes_the_elements_and_keeps_what_the_tensor_wants"]),
            ),
            (
                "clones",
                By(&["a_clone_goes_its_own_way", "operations_of_the_table_can_be_called_by_name"]),
            ),
            (
                "detached",
                By(&[
                    "operations_of_the_table_can_be_called_by_name",
                    "tensors_with_empty_chunks_can_be_used_like_any_other",
                ]),
            ),
            (
                "wanting gradients",
                By(&[
                    "operations_of_the_table_can_be_called_by_name",
                    "gradients_come_back_in_the_cut_of_the_tensor",
                ]),
            ),
        ],
    ),
    (
        "sharded_tensor/ops/test_binary_cmp.py",
        "comparison",
        &[
            ("equal", By(&["tensors_on_cpus_are_compared"])),
            (
                "equal, of other specs, sizes and groups",
                By(&[
                    "tensors_on_cpus_are_compared",
                    "operands_and_results_of_another_kind_are_refused",
                ]),
            ),
            (
                "close",
                By(&[
                    "tensors_on_cpus_are_compared",
                    "operations_of_the_table_can_be_called_by_name",
                ]),
            ),
            (
                "close, of other specs, sizes and groups",
                By(&[
                    "tensors_on_cpus_are_compared",
                    "operands_and_results_of_another_kind_are_refused",
                ]),
            ),
        ],
    ),
    (
        "sharded_tensor/ops/test_init.py",
        "filling as a whole tensor of that seed",
        &[
            ("evenly", By(&["filling_in_place_gives_the_values_of_a_whole_tensor_with_that_seed"])),
            (
                "normally",
                By(&["filling_in_place_gives_the_values_of_a_whole_tensor_with_that_seed"]),
            ),
            (
                "by the fan",
                By(&[
                    "filling_in_place_gives_the_values_of_a_whole_tensor_with_that_seed",
                    "filling_in_place_is_by_global_index_and_whole_fan",
                ]),
            ),
        ],
    ),
    (
        "sharding_plan/test_sharding_plan.py",
        "plans",
        &[
            (
                "that do not fit",
                By(&[
                    "plans_that_do_not_fit_change_nothing",
                    "a_spec_that_cannot_be_is_found_before_any_tensor_is_cut",
                ]),
            ),
            ("by a planner", By(&["a_planner_makes_the_plan_and_the_plan_cuts_the_module"])),
            ("on a group", By(&["a_plan_works_on_a_sub_group_and_not_outside"])),
        ],
    ),
    (
        "sharded_tensor/ops/test_embedding.py",
        "rows of tables",
        &[
            (
                "cut by columns, with padding and a longest norm",
                By(&[
                    "every_rank_gets_the_rows_it_asks_for_from_any_cut",
                    "looking_up_with_a_longest_norm_is_a_renorm_and_a_lookup_and_tells_ids_once",
                ]),
            ),
            (
                "cut by rows, with padding and a longest norm",
                By(&[
                    "every_rank_gets_the_rows_it_asks_for_from_any_cut",
                    "what_is_looked_up_after_a_renorm_are_shortened_rows",
                    "gradients_of_rows_are_summed_over_ranks",
                ]),
            ),
        ],
    ),
    (
        "sharded_tensor/ops/test_embedding_bag.py",
        "bags of rows",
        &[
            (
                "cut by columns, of every kind",
                By(&["bags_of_every_kind_are_those_of_plain_loops", "rows_of_ids_are_bags"]),
            ),
            (
                "cut by rows, of every kind",
                By(&[
                    "bags_of_every_kind_are_those_of_plain_loops",
                    "a_mean_does_not_count_padding_and_an_empty_bag_is_zeros",
                    "looking_up_with_a_longest_norm_is_a_renorm_and_a_lookup_and_tells_ids_once",
                ]),
            ),
        ],
    ),
    (
        "sharded_tensor/test_sharded_tensor_reshard.py",
        "resharding",
        &[
            (
                "from every dim to every dim",
                By(&[
                    "every_spec_becomes_every_other",
                    "sizes_and_dims_of_all_kinds_are_resharded",
                ]),
            ),
            (
                "refused",
                By(&[
                    "a_spec_that_does_not_fit_changes_nothing",
                    "ranks_that_mean_different_specs_are_told_so_and_nothing_moves",
                ]),
            ),
        ],
    ),
    (
        "sharded_optim/test_sharded_optim.py",
        "optimizers",
        &[
            (
                "learning what a whole parameter does",
                By(&[
                    "a_sharded_weight_learns_what_a_whole_one_does",
                    "sharded_optimizers_are_those_of_whole_parameters",
                ]),
            ),
            (
                "parameters by name, sharded ones among them",
                By(&["sharded_parameters_have_the_names_and_the_order_of_whole_ones"]),
            ),
        ],
    ),
    (
        "test_sharder.py",
        "sharders of modules",
        &[
            (
                "a collection of bags that computes what it did",
                By(&[
                    "a_collection_of_tables_cut_by_its_own_sharder_computes_what_it_did",
                    "what_a_sharder_makes_takes_the_place_of_its_module",
                ]),
            ),
            (
                "without a path, and around what is cut otherwise",
                By(&[
                    "plans_that_do_not_fit_change_nothing",
                    "a_sharder_within_what_another_cuts_is_a_conflict",
                ]),
            ),
        ],
    ),
    (
        "sharded_tensor/test_logger.py",
        "the logger",
        &[(
            "it has a handler that does nothing",
            Not(
                "libraries here do not log to handlers of their own: workers give `tracing` events, \
 which go nowhere unless a program listens",
            ),
        )],
    ),
];

#[test]
fn every_case_of_pytorchs_tests_is_accounted_for() {
    let mut cases: BTreeMap<&str, usize> = BTreeMap::new();
    for (file, subject, rows) in LEDGER {
        *cases.entry(file).or_default() += rows.len();
        let names: BTreeSet<&str> = rows.iter().map(|(what, _)| *what).collect();
        assert_eq!(names.len(), rows.len(), "{file}, {subject}: two rows say the same");
    }
    assert_eq!(cases, BTreeMap::from(FILES));
    assert_eq!(cases.values().sum::<usize>(), 111);
    let classes = LEDGER.iter().filter(|part| part.0 == SHARDED_TENSOR).map(|part| part.2.len());
    assert_eq!(classes.collect::<Vec<_>>(), CLASSES);
}

#[test]
fn every_test_that_stands_for_one_of_pytorchs_is_there() {
    let tests = tests_of_this_suite();
    for (file, subject, rows) in LEDGER {
        for (what, covered) in *rows {
            let case = format!("{file}, {subject}, {what}");
            match covered {
                By(names) => {
                    assert!(!names.is_empty(), "{case}: no test");
                    for name in *names {
                        assert!(tests.contains(*name), "{case}: there is no test {name}");
                    }
                }
                Not(why) => assert!(!why.is_empty(), "{case}: no reason"),
            }
        }
    }
}

/// The names of all functions that are run as tests: those right after `#[test]`.
fn tests_of_this_suite() -> BTreeSet<String> {
    let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/suite");
    let mut tests = BTreeSet::new();
    for entry in std::fs::read_dir(folder).unwrap() {
        let source = std::fs::read_to_string(entry.unwrap().path()).unwrap();
        let lines: Vec<&str> = source.lines().map(str::trim).collect();
        for pair in lines.windows(2).filter(|pair| pair[0] == "#[test]") {
            let name = pair[1].strip_prefix("fn ").and_then(|rest| rest.split_once('('));
            tests.extend(name.map(|(name, _)| name.to_string()));
        }
    }
    tests
}
