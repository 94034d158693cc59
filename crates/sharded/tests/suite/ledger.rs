//! Which test here says what each of PyTorch's tests says: `test/distributed/_shard` of 2.15, 12 files with 111
//! cases, in our own words. Where PyTorch asks for four GPUs, there are thread ranks here.

/// A file of PyTorch's tests, a class or subject in it, and its cases.
type Part = (&'static str, &'static str, &'static [Row]);
/// What some of the cases are about, how many they are, and the tests that stand for them; or why there is none.
type Row = (&'static str, usize, Covered);

enum Covered {
    By(&'static [&'static str]),
    Not(&'static str),
}

use Covered::{By, Not};

const SHARDED_TENSOR: &str = "sharded_tensor/test_sharded_tensor.py";

const LEDGER: &[Part] = &[
    (
        SHARDED_TENSOR,
        "metadata",
        &[(
            "stored and read with every dtype, layout and memory format",
            1,
            By(&[
                "metadata_survive_storing",
                "properties_are_stored_as_six_fields_and_read_from_five",
            ]),
        )],
    ),
    (
        SHARDED_TENSOR,
        "a local tensor from properties",
        &[("empty", 1, By(&["every_rank_makes_its_chunk"]))],
    ),
    (
        SHARDED_TENSOR,
        "parameters",
        &[
            ("cut from one rank", 1, By(&["a_parameter_is_cut_from_one_rank"])),
            (
                "missing, not contiguous, or cut differently by ranks",
                1,
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
            ("by chunks", 1, By(&["a_tensor_is_cut_from_any_rank_by_any_spec"])),
            (
                "with an empty shard",
                1,
                By(&["tensors_with_empty_chunks_can_be_used_like_any_other"]),
            ),
            (
                "what is wrong with it",
                1,
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
        &[(
            "resharded, or the part of each rank",
            2,
            By(&[
                "outputs_are_resharded_and_given_as_local_parts",
                "a_plan_tells_modules_what_becomes_of_their_results",
            ]),
        )],
    ),
    (
        SHARDED_TENSOR,
        "the local tensor",
        &[
            ("of one shard", 1, By(&["every_rank_makes_its_chunk"])),
            ("of several", 1, By(&["placements_say_which_rank_has_which_chunk_and_how_many"])),
        ],
    ),
    (
        SHARDED_TENSOR,
        "chunks",
        &[
            (
                "what can be asked without elements",
                1,
                By(&[
                    "every_rank_makes_its_chunk",
                    "operations_of_the_table_can_be_called_by_name",
                ]),
            ),
            (
                "on all ranks, on some, on a group, several per rank, by columns, with references",
                5,
                By(&[
                    "every_rank_fetches_what_the_others_have_in_their_order",
                    "placements_say_which_rank_has_which_chunk_and_how_many",
                    "a_part_of_the_world_may_hold_the_tensor",
                    "ranks_outside_of_the_group_have_references_too",
                ]),
            ),
            (
                "fewer elements than ranks",
                1,
                By(&[
                    "empty_chunks_may_begin_at_the_end_or_beyond_it",
                    "tensors_with_empty_chunks_can_be_used_like_any_other",
                ]),
            ),
            (
                "ones, zeros, full, random values, and like another",
                5,
                By(&[
                    "every_rank_makes_its_chunk",
                    "random_values_do_not_depend_on_the_sharding",
                    "tensors_like_another_have_the_values_of_their_names",
                    "tensors_like_another_have_its_dtype_group_and_gradients",
                ]),
            ),
            ("gathered, even and uneven", 2, By(&["every_spec_gathers_on_every_destination"])),
            (
                "sizes of tensors of some dims",
                1,
                By(&["sizes_and_dims_of_all_kinds_are_resharded"]),
            ),
            (
                "what cannot be made",
                1,
                By(&[
                    "what_cannot_be_made_is_refused_on_every_rank",
                    "a_dim_that_is_not_there_is_refused",
                    "a_name_that_no_worker_has_is_an_error_on_all",
                ]),
            ),
            (
                "a worker that is another rank",
                1,
                By(&["a_worker_that_is_another_rank_is_an_error_on_all"]),
            ),
            (
                "state dicts: of all ranks, of a group, and without sharded tensors",
                3,
                By(&[
                    "a_state_dict_has_sharded_tensors_and_gives_them_back",
                    "a_state_dict_that_a_sub_group_has_stored_is_loaded_on_a_new_group",
                    "a_state_dict_that_does_not_fit_changes_nothing",
                ]),
            ),
            (
                "state dicts on other ranks",
                1,
                By(&[
                    "another_rank_or_world_is_refused_by_name",
                    "a_group_is_said_once_and_forgotten_afterwards",
                ]),
            ),
            (
                "nothing is left behind",
                1,
                By(&["a_shard_outlives_its_tensor_while_somebody_has_a_reference"]),
            ),
        ],
    ),
    (
        SHARDED_TENSOR,
        "lists of shards",
        &[
            (
                "what can be asked without elements, and devices",
                2,
                By(&[
                    "operations_of_the_table_can_be_called_by_name",
                    "uneven_boxes_may_be_listed",
                ]),
            ),
            (
                "to the CPU, to devices that are not here, and to dtypes",
                3,
                By(&[
                    "moving_and_casting_keep_boxes_and_values",
                    "every_device_of_the_peer_parses_and_only_two_are_here",
                ]),
            ),
            (
                "grids, uneven boxes, several per rank, some ranks, a group, with references",
                6,
                By(&[
                    "uneven_boxes_may_be_listed",
                    "every_rank_fetches_what_the_others_have_in_their_order",
                    "ranks_outside_of_the_group_have_references_too",
                    "a_spec_of_a_user_cuts_tensors_and_is_held_to_its_word",
                ]),
            ),
            ("by names of workers", 1, By(&["workers_by_name_own_shards_wherever_ranks_can"])),
            ("gathered, even and uneven", 2, By(&["every_spec_gathers_on_every_destination"])),
        ],
    ),
    (
        SHARDED_TENSOR,
        "from one local tensor",
        &[
            ("made", 1, By(&["one_local_tensor_is_every_shard_of_its_rank"])),
            ("refused", 1, By(&["one_local_tensor_is_every_shard_of_its_rank"])),
        ],
    ),
    (
        SHARDED_TENSOR,
        "from local shards",
        &[
            (
                "a shard by its offsets",
                1,
                By(&["a_shard_has_the_size_and_the_device_of_its_metadata"]),
            ),
            (
                "of all ranks, with references, and of a group",
                2,
                By(&[
                    "local_shards_become_a_tensor_whose_spec_is_found",
                    "every_way_to_a_tensor_gives_references_if_they_are_wanted",
                    "a_sub_group_puts_its_own_tensor_together",
                ]),
            ),
            (
                "rows that are counted anew, of whatever offsets, or with a wrong size",
                3,
                By(&[
                    "rows_are_counted_anew",
                    "rows_that_do_not_fit_are_refused",
                    "rows_are_one_shard_of_some_dims_wherever_it_says_that_it_is",
                ]),
            ),
            (
                "with metadata, and without a group",
                2,
                By(&[
                    "metadata_and_local_shards_make_a_tensor_without_a_word",
                    "shards_need_no_group_until_one_is_added",
                ]),
            ),
            (
                "metadata of nothing, or of one rank only",
                2,
                By(&["metadata_of_nothing_and_metadata_that_know_of_one_rank_only_are_taken"]),
            ),
            (
                "wrong on one rank, or different on ranks, pinned memory among it",
                3,
                By(&[
                    "what_is_wrong_on_one_rank_is_the_same_error_on_all",
                    "what_the_ranks_say_differently_is_the_same_error_on_all",
                ]),
            ),
            ("overlaps and gaps", 2, By(&["shards_that_overlap_or_leave_gaps_are_refused"])),
            (
                "other shards than the metadata",
                1,
                By(&["local_shards_must_be_those_of_the_metadata"]),
            ),
        ],
    ),
    (
        SHARDED_TENSOR,
        "operations of users",
        &[
            (
                "registered, and instead of what is there",
                2,
                By(&[
                    "own_operations_come_first_then_those_of_a_spec_then_the_table",
                    "an_operation_of_the_table_can_be_replaced",
                ]),
            ),
            (
                "with other parameters than a handler has",
                1,
                Not("the compiler refuses a function of another signature"),
            ),
        ],
    ),
    (
        SHARDED_TENSOR,
        "metadata of a shard",
        &[(
            "with and without a placement",
            2,
            By(&["offsets_and_sizes_have_one_entry_per_dim", "metadata_are_equal_by_their_fields"]),
        )],
    ),
    (
        SHARDED_TENSOR,
        "on a group that each rank makes for itself",
        &[(
            "shards without values, and placements outside of the group",
            2,
            By(&["a_part_of_the_world_may_hold_a_tensor_without_values"]),
        )],
    ),
    (
        SHARDED_TENSOR,
        "without a group",
        &[
            ("shards of any rank", 1, By(&["shards_need_no_group_until_one_is_added"])),
            (
                "shards that are not contiguous",
                1,
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
                1,
                By(&["ranks_workers_and_devices_are_told_apart", "what_is_no_placement_says_so"]),
            ),
            (
                "chunks, and what they need",
                2,
                By(&["a_dim_that_is_not_there_is_refused", "chunks_need_placements_that_parse"]),
            ),
            (
                "lists, and what they need",
                3,
                By(&[
                    "a_list_of_shards_is_not_empty_and_of_one_number_of_dims",
                    "a_list_covers_the_tensor_or_is_refused",
                    "overlaps_are_found_in_any_number_of_dims",
                ]),
            ),
            (
                "the lengths of chunks",
                2,
                By(&[
                    "chunks_are_those_of_torch_chunk_but_always_as_many_as_placements",
                    "the_arithmetic_of_chunks_is_there_for_others",
                ]),
            ),
            (
                "found from shards",
                1,
                By(&[
                    "a_spec_is_found_again_from_its_shards_in_any_order",
                    "what_is_no_chunk_is_a_list",
                ]),
            ),
            (
                "a spec of a user, alone and for a tensor",
                2,
                By(&["a_spec_of_a_user_cuts_tensors_and_is_held_to_its_word"]),
            ),
        ],
    ),
    (
        "sharded_tensor/ops/test_tensor_ops.py",
        "copies",
        &[
            (
                "deep copies, clones, detached",
                3,
                By(&["a_clone_goes_its_own_way", "operations_of_the_table_can_be_called_by_name"]),
            ),
            (
                "copying elements",
                1,
                By(&["a_copy_takes_the_elements_and_keeps_what_the_tensor_wants"]),
            ),
            ("wanting gradients", 1, By(&["operations_of_the_table_can_be_called_by_name"])),
        ],
    ),
    (
        "sharded_tensor/ops/test_binary_cmp.py",
        "comparison",
        &[(
            "equal and close, alike and not, and on different groups",
            4,
            By(&["tensors_on_cpus_are_compared"]),
        )],
    ),
    (
        "sharded_tensor/ops/test_init.py",
        "filling",
        &[(
            "evenly, normally, and by the fan, as a whole tensor of that seed",
            3,
            By(&["filling_in_place_gives_the_values_of_a_whole_tensor_with_that_seed"]),
        )],
    ),
    (
        "sharding_plan/test_sharding_plan.py",
        "plans",
        &[
            (
                "that do not fit",
                1,
                By(&[
                    "plans_that_do_not_fit_change_nothing",
                    "a_spec_that_cannot_be_is_found_before_any_tensor_is_cut",
                ]),
            ),
            ("by a planner", 1, By(&["a_planner_makes_the_plan_and_the_plan_cuts_the_module"])),
            ("on a group", 1, By(&["a_plan_works_on_a_sub_group_and_not_outside"])),
        ],
    ),
    (
        "sharded_tensor/ops/test_embedding.py",
        "rows of tables",
        &[(
            "by rows and by columns, with padding and a longest norm",
            2,
            By(&[
                "every_rank_gets_the_rows_it_asks_for_from_any_cut",
                "looking_up_with_a_longest_norm_is_a_renorm_and_a_lookup_and_tells_ids_once",
                "what_is_looked_up_after_a_renorm_are_shortened_rows",
                "gradients_of_rows_are_summed_over_ranks",
            ]),
        )],
    ),
    (
        "sharded_tensor/ops/test_embedding_bag.py",
        "bags of rows",
        &[(
            "by rows and by columns, of every kind",
            2,
            By(&[
                "bags_of_every_kind_are_those_of_plain_loops",
                "rows_of_ids_are_bags",
                "a_mean_does_not_count_padding_and_an_empty_bag_is_zeros",
                "looking_up_with_a_longest_norm_is_a_renorm_and_a_lookup_and_tells_ids_once",
            ]),
        )],
    ),
    (
        "sharded_tensor/test_sharded_tensor_reshard.py",
        "resharding",
        &[
            (
                "from every dim to every dim",
                1,
                By(&[
                    "every_spec_becomes_every_other",
                    "sizes_and_dims_of_all_kinds_are_resharded",
                ]),
            ),
            ("refused", 1, By(&["a_spec_that_does_not_fit_changes_nothing"])),
        ],
    ),
    (
        "sharded_optim/test_sharded_optim.py",
        "optimizers",
        &[
            (
                "learning what a whole parameter does",
                1,
                By(&[
                    "a_sharded_weight_learns_what_a_whole_one_does",
                    "sharded_optimizers_are_those_of_whole_parameters",
                ]),
            ),
            (
                "parameters by name, sharded ones among them",
                1,
                By(&["sharded_optimizers_are_those_of_whole_parameters"]),
            ),
        ],
    ),
    (
        "test_sharder.py",
        "sharders of modules",
        &[
            (
                "a collection of bags that computes what it did",
                1,
                By(&[
                    "a_collection_of_tables_cut_by_its_own_sharder_computes_what_it_did",
                    "what_a_sharder_makes_takes_the_place_of_its_module",
                ]),
            ),
            (
                "without a path, and around what is cut otherwise",
                1,
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
            1,
            Not(
                "libraries here do not log to handlers of their own: workers give `tracing` events, \
                 which go nowhere unless a program listens",
            ),
        )],
    ),
];

#[test]
fn every_case_of_pytorchs_tests_is_accounted_for() {
    let n_cases = |rows: &[Row]| rows.iter().map(|(_, n, _)| n).sum::<usize>();
    let of_file = |file: &str| -> usize {
        LEDGER.iter().filter(|part| part.0 == file).map(|part| n_cases(part.2)).sum()
    };
    let mut files: Vec<&str> = LEDGER.iter().map(|part| part.0).collect();
    files.dedup();
    assert_eq!((files.len(), files.iter().map(|file| of_file(file)).sum::<usize>()), (12, 111));
    assert_eq!(of_file(SHARDED_TENSOR), 74);
    let of_part =
        |name: &str| LEDGER.iter().find(|part| part.1 == name).map(|part| n_cases(part.2));
    let counted = ["chunks", "from local shards", "lists of shards"].map(of_part);
    assert_eq!(counted, [Some(22), Some(16), Some(14)]);
}

#[test]
fn every_test_that_stands_for_one_of_pytorchs_is_there() {
    let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/suite");
    let mut sources = String::new();
    for entry in std::fs::read_dir(folder).unwrap() {
        sources.push_str(&std::fs::read_to_string(entry.unwrap().path()).unwrap());
    }
    let rows = LEDGER.iter().flat_map(|part| part.2);
    let tests = rows.flat_map(|(what, _, covered)| match covered {
        By(tests) => tests.iter(),
        Not(why) => {
            assert!(!why.is_empty(), "{what}");
            [].iter()
        }
    });
    for test in tests {
        assert!(sources.contains(&format!("fn {test}(")), "there is no test {test}");
    }
}
