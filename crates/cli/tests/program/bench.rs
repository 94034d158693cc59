//! `dtensor bench`: that the lines are there and complete. How fast it is, no test says.

use std::process::Command;

use crate::support::{dtensor, json_lines, run};

#[test]
fn comm_has_a_line_for_every_case_and_shape() {
    let args = "bench comm --ranks 3 --bytes 10KiB --repeat 2 --json";
    let lines = json_lines(&dtensor(&args.split(' ').collect::<Vec<_>>()).ok());
    let cases =
        ["all_gather", "all_to_all", "all_reduce", "reduce_scatter", "memcpy", "memcpy_piece"];
    for case in cases {
        for shape in ["even", "uneven"] {
            let found = lines.iter().find(|line| line["case"] == case && line["shape"] == shape);
            let line = found.unwrap_or_else(|| panic!("no {shape} {case}"));
            assert_eq!((&line["bench"], &line["world"]), (&"comm".into(), &3.into()), "{line}");
            assert_eq!((&line["kind"], &line["n"]), (&"threads".into(), &2.into()), "{line}");
            assert!(line["bytes"].as_u64().unwrap() > 9000, "{line}");
            let (min, median) = (&line["min_us"], &line["median_us"]);
            assert!(min.as_f64().unwrap() <= median.as_f64().unwrap(), "{line}");
            assert_eq!(line["over_memcpy"].is_number(), !case.starts_with("memcpy"), "{line}");
        }
    }
    let latency = lines.last().unwrap();
    assert_eq!((&latency["case"], &latency["bytes"]), (&"all_reduce_latency".into(), &8.into()));
    assert_eq!(lines.len(), 2 * cases.len() + 1);
}

#[test]
fn comm_without_json_is_a_table() {
    let args = "bench comm --ranks 1 --bytes 1KiB --repeat 1";
    let table = dtensor(&args.split(' ').collect::<Vec<_>>()).ok();
    assert!(table.starts_with("1 rank (threads)\n"), "{table}");
    assert!(table.contains("all_reduce_latency"), "{table}");
}

#[test]
fn ranks_that_are_not_the_worlds_are_refused() {
    let mut command = Command::new(env!("CARGO_BIN_EXE_dtensor"));
    command.args("bench comm --ranks 3 --bytes 1KiB".split(' ')).env("DTENSOR_RANKS", "2");
    // `run` removes the variable, which is what this test is about.
    let output = command.output().unwrap();
    let message = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(message.starts_with("error: --ranks 3, but the world has 2"), "{message}");
    let ran = run(command.args(["--repeat", "1"]), b"");
    assert_eq!(ran.code, 0, "{}", ran.stderr);
}

#[test]
fn more_memory_than_there_is_is_refused_before_it_is_taken() {
    let args = "bench comm --ranks 4 --bytes 4000TiB";
    let message = dtensor(&args.split(' ').collect::<Vec<_>>()).error(1);
    assert!(message.contains("lower --bytes"), "{message}");
}

#[test]
fn scale_has_three_sizes_of_mesh() {
    let lines = json_lines(&dtensor(&["bench", "scale", "--repeat", "2", "--json"]).ok());
    for world in [8, 4096, 262_144] {
        for case in ["mesh", "layout", "plan_S_to_R", "plan_P_to_R", "total"] {
            let found = lines.iter().find(|line| line["world"] == world && line["case"] == case);
            let line = found.unwrap_or_else(|| panic!("no {case} for {world}"));
            assert_eq!(line["bench"], "scale");
            assert!(line["min_us"].is_number() && line["median_us"].is_number(), "{line}");
        }
    }
}

#[test]
fn kernels_has_a_line_for_every_case_and_number_of_threads() {
    let args = "bench kernels --only add_8x8 --threads 1,2 --repeat 2 --json";
    let lines = json_lines(&dtensor(&args.split(' ').collect::<Vec<_>>()).ok());
    let threads: Vec<_> = lines.iter().map(|line| line["threads"].as_u64().unwrap()).collect();
    assert_eq!(threads, [1, 2]);
    for line in &lines {
        assert_eq!((&line["bench"], &line["case"]), (&"kernels".into(), &"add_8x8".into()));
        assert_eq!((&line["n"], &line["unit"]), (&2.into(), &"GB/s".into()), "{line}");
        assert!(0.0 < line["min_ms"].as_f64().unwrap(), "{line}");
        assert!(line["min_ms"].as_f64().unwrap() <= line["median_ms"].as_f64().unwrap(), "{line}");
        assert!(0.0 < line["rate"].as_f64().unwrap(), "{line}");
    }
    let table = dtensor(&args.trim_end_matches(" --json").split(' ').collect::<Vec<_>>()).ok();
    assert_eq!(table.lines().filter(|line| line.starts_with("add_8x8")).count(), 2, "{table}");
}

#[test]
fn a_kernel_that_is_not_there_is_refused_with_the_ones_that_are() {
    let message = dtensor(&["bench", "kernels", "--only", "nonsense"]).error(2);
    assert!(message.starts_with("error: --only nonsense: no such case"), "{message}");
    assert!(message.contains("softmax_4096x1024"), "{message}");
}

#[test]
fn dispatch_has_a_line_for_every_operation_and_placement() {
    let args = "bench dispatch --ranks 1,2 --repeat 1 --iters 2 --json";
    let lines = json_lines(&dtensor(&args.split(' ').collect::<Vec<_>>()).ok());
    for world in [1, 2] {
        for placement in ["R", "S0", "S0S1"] {
            for op in ["add", "matmul", "sum", "view", "transpose", "from_local", "to_local"] {
                let found = lines.iter().find(|line| {
                    line["world"] == world && line["placement"] == placement && line["op"] == op
                });
                let line = found.unwrap_or_else(|| panic!("no {op} on {placement} of {world}"));
                assert_eq!((&line["bench"], &line["comms"]), (&"dispatch".into(), &0.into()));
                assert!(line["dtensor_us"]["min"].as_f64().unwrap() > 0.0, "{line}");
                assert_eq!(line["plain_us"].is_object(), !op.ends_with("local"), "{line}");
            }
        }
    }
    let sum = lines.iter().find(|line| line["op"] == "sum" && line["placement"] == "S0").unwrap();
    assert_eq!(sum["out"], "[P(sum)]");
}

#[test]
fn redistribute_has_a_line_for_every_case_and_shape() {
    let args = "bench redistribute --ranks 2 --size 16 --repeat 1 --json";
    let lines = json_lines(&dtensor(&args.split(' ').collect::<Vec<_>>()).ok());
    let calls = [
        ("S0->R", Some("all_gather")),
        ("R->S0", None),
        ("S0->S1", Some("exchange")),
        ("P->R", Some("all_reduce")),
        ("P->S0", Some("reduce_scatter")),
    ];
    for (shape, dims) in [("even", [16, 16]), ("uneven", [17, 15])] {
        for (case, call) in calls {
            let found = lines.iter().find(|line| line["case"] == case && line["shape"] == shape);
            let line = found.unwrap_or_else(|| panic!("no {shape} {case}"));
            assert_eq!((&line["world"], &line["kind"]), (&2.into(), &"threads".into()), "{line}");
            assert_eq!((&line["dims"], &line["ok"]), (&dims.to_vec().into(), &true.into()));
            let comms = line["comms"].as_object().unwrap();
            let names: Vec<&str> = comms.keys().map(String::as_str).collect();
            assert_eq!(names, call.into_iter().collect::<Vec<_>>(), "{line}");
            assert!(line["min_ms"].as_f64().unwrap() <= line["median_ms"].as_f64().unwrap());
        }
        assert!(lines.iter().any(|line| line["case"] == "memcpy_copy_all"));
    }
}

#[test]
fn sharded_has_a_line_for_every_case() {
    let args = "bench sharded --ranks 2,3 --size 17 --shards 30 --rounds 2 --json";
    let lines = json_lines(&dtensor(&args.split(' ').collect::<Vec<_>>()).ok());
    let moves = [
        ("gather_rows", 2),
        ("reshard_turned", 4),
        ("reshard_rows_to_columns", 2),
        ("gather_columns", 2),
        ("reshard_columns_to_rows", 2),
        ("memcpy", 2),
        ("remote_fetch", 2),
    ];
    for world in [2, 3] {
        for (case, n) in moves {
            let found = lines.iter().find(|line| line["case"] == case && line["world"] == world);
            let line = found.unwrap_or_else(|| panic!("no {case} of {world}"));
            assert_eq!((&line["bench"], &line["n"]), (&"sharded".into(), &n.into()), "{line}");
            assert_eq!((&line["dims"], &line["kind"]), (&vec![17, 17].into(), &"threads".into()));
            assert!(line["min_ms"].as_f64().unwrap() <= line["median_ms"].as_f64().unwrap());
        }
    }
    for case in ["metadata_chunks", "metadata_boxes", "overlap_rows", "overlap_grid", "overlap_3d"]
    {
        let found = lines.iter().find(|line| line["case"] == case);
        let line = found.unwrap_or_else(|| panic!("no {case}"));
        assert_eq!((&line["shards"], &line["n"]), (&30.into(), &2.into()), "{line}");
    }
    assert_eq!(lines.len(), 2 * moves.len() + 5);
}

#[test]
fn checkpoint_has_a_line_for_every_case_and_leaves_nothing() {
    let directory = tempfile::tempdir().unwrap();
    let place = directory.path().to_str().unwrap();
    // 33 rows on 3 ranks divide, and 34 do not.
    let args =
        format!("bench checkpoint --size 34 --small 20 --ranks 3 --rounds 1 --json --dir {place}");
    let lines = json_lines(&dtensor(&args.split(' ').collect::<Vec<_>>()).ok());
    assert_eq!(std::fs::read_dir(place).unwrap().count(), 0);
    let target = lines[0]["target"].as_str().unwrap();
    let caches: &[&str] = match target {
        "shm" => &["warm"],
        _ => &["cold", "warm"],
    };
    let kinds = ["raw", "hf_sharded"];
    let mut cases: Vec<(u64, String)> = Vec::new();
    for kind in kinds {
        for suffix in ["", "_nosync", " small_20", "_nosync small_20"] {
            cases.push((3, format!("save {kind}{suffix}")));
        }
        for cache in caches {
            cases.push((3, format!("load {kind} S0 {cache}")));
            cases.push((3, format!("load {kind} small_20 {cache}")));
            cases.push((1, format!("load {kind} world1 {cache}")));
        }
    }
    cases.push((3, "save hf_consolidated".to_owned()));
    for cache in caches {
        cases.push((3, format!("load hf_sharded S1 {cache}")));
        cases.extend(["S0", "S1"].map(|cut| (3, format!("load hf_consolidated {cut} {cache}"))));
        cases.push((1, format!("load hf_consolidated world1 {cache}")));
    }
    cases.extend(["save async_returns", "save async_written"].map(|case| (3, case.to_owned())));
    for (world, case) in &cases {
        let found = lines.iter().find(|line| line["case"] == **case);
        let line = found.unwrap_or_else(|| panic!("no {case}"));
        assert_eq!((&line["bench"], &line["world"]), (&"checkpoint".into(), &(*world).into()));
        assert_eq!((&line["target"], &line["n"]), (&target.into(), &1.into()), "{line}");
        assert!(line["min_s"].is_number() && line["median_s"].is_number(), "{line}");
        assert!(line["GBps"].is_number() && line["GBps_median"].is_number(), "{line}");
        for key in ["rss_before_mib", "peak_rss_mib", "extra_mib"] {
            // Ranks that are threads share a process.
            assert_eq!(line[key].as_array().unwrap().len(), 1, "{line}");
        }
        let bytes = if case.contains("small") { 20 * 16_384 * 4 } else { 16 * 34 * 34 * 4 };
        let written = case.starts_with("save") && case != "save async_returns";
        assert_eq!(line["file_bytes"].as_u64().is_some_and(|n| n >= bytes), written, "{line}");
    }
    assert_eq!(lines.len(), cases.len());
}

#[test]
fn checkpoint_loads_and_converts_what_pytorch_has_saved() {
    let directory = tempfile::tempdir().unwrap();
    let place = directory.path().to_str().unwrap();
    let classic = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/golden/bench/dcp");
    let args = format!(
        "bench checkpoint --size 6 --small 1 --ranks 3 --rounds 1 --json --dir {place} --classic {classic}"
    );
    let lines = json_lines(&dtensor(&args.split(' ').collect::<Vec<_>>()).ok());
    let mut cases = ["load dcp S0", "load dcp S1"].map(|case| (3, case)).to_vec();
    cases.extend(["load dcp world1", "convert raw", "convert dcp"].map(|case| (1, case)));
    for (world, case) in cases {
        let case = format!("{case} warm");
        let found = lines.iter().find(|line| line["case"] == *case);
        let line = found.unwrap_or_else(|| panic!("no {case}"));
        assert_eq!(line["world"], world, "{line}");
        assert!(line["min_s"].is_number() && line["GBps"].is_number(), "{line}");
        let written = line["file_bytes"].as_u64().is_some_and(|bytes| bytes >= 16 * 6 * 6 * 4);
        assert_eq!(written, case == "convert dcp warm", "{line}");
    }
    assert_eq!(std::fs::read_dir(place).unwrap().count(), 0);
}

#[test]
fn checkpoint_refuses_what_pytorch_has_saved_of_other_tensors() {
    let directory = tempfile::tempdir().unwrap();
    let place = directory.path().to_str().unwrap();
    let classic = concat!(env!("CARGO_MANIFEST_DIR"), "/../checkpoint/tests/golden/four_ranks/dcp");
    let args = format!(
        "bench checkpoint --size 8 --small 1 --ranks 1 --rounds 1 --dir {place} --classic {classic}"
    );
    let message = dtensor(&args.split(' ').collect::<Vec<_>>()).error(1);
    assert!(message.contains("`t0` is not in the checkpoint"), "{message}");
    assert_eq!(std::fs::read_dir(place).unwrap().count(), 0);
}

#[test]
fn mistakes_are_refused() {
    let refused = |args: &str| dtensor(&args.split(' ').collect::<Vec<_>>()).error(2);
    refused("bench comm --ranks 0");
    refused("bench comm --repeat 0");
    refused("bench comm --bytes many");
    refused("bench kernels --threads 0");
    refused("bench dispatch --iters 0");
    refused("bench redistribute --ranks 0");
    refused("bench scale --mesh 2,2");
    refused("bench sharded --rounds 0");
    refused("bench checkpoint --small 0");
    refused("bench nonsense");
}
