//! `dtensor plan`: tables, JSON and mistakes.

use crate::support::{dtensor, json_lines};
use dtensor_layout::plan::Plan;

fn args(line: &str) -> Vec<&str> {
    line.split(' ').collect()
}

#[test]
fn a_plan_is_a_table_with_totals_and_a_comparison() {
    let plan = "plan --shape 13,8 --mesh dp=2,tp=2 --from S(0),P(sum) --to S(0),S(0)";
    assert_eq!(
        dtensor(&args(plan)).ok(),
        "\
f32[13, 8] on dp=2,tp=2: [S(0), P(sum)] -> [S(0), S(0)]

   step            over    gives         sent per rank  sent in all  peak memory     time
1  reduce_scatter  tp      [S(0), S(0)]          104 B        416 B        352 B  7.20 us
   total           1 call                        104 B        416 B        352 B  7.20 us

PyTorch's greedy plan: the same
"
    );
}

#[test]
fn equal_layouts_need_nothing() {
    let plan = "plan --shape 4 --mesh 2 --from S(0) --to S(0)";
    assert_eq!(
        dtensor(&args(plan)).ok(),
        "\
f32[4] on axis0=2: [S(0)] -> [S(0)]

nothing to do: the layouts are equal

PyTorch's greedy plan: the same
"
    );
}

#[test]
fn pytorchs_plan_is_shown_when_asked_for() {
    let plan = "plan --shape 16,16 --mesh 2,2,2 --from S(0),S(0),S(1) --to S(1),R,S(0)";
    let ours = dtensor(&args(plan)).ok();
    assert!(
        ours.contains("PyTorch's greedy plan: 4 steps, 3 calls, 640 B sent per rank"),
        "{ours}"
    );
    let greedy = dtensor(&args(&format!("{plan} --greedy"))).ok();
    assert_eq!(greedy.lines().filter(|line| line.contains("all_gather")).count(), 2, "{greedy}");
    assert!(greedy.contains("needs more memory than both ends"), "{greedy}");
}

#[test]
fn another_mesh_has_no_greedy_plan() {
    let plan = "plan --shape 12,8 --mesh dp=2,tp=4 --from S(0),S(1) --to-mesh x=8 --to S(0)";
    let text = dtensor(&args(plan)).ok();
    assert!(text.contains("PyTorch's greedy plan: none, "), "{text}");
    assert!(text.contains("[S(0)] on x=8"), "{text}");
}

#[test]
fn the_json_plan_parses_back_and_its_steps_add_up() {
    let plan = "plan --shape 16,17 --mesh dp=2,cp=3,tp=2 --from S(0),P(sum),S(1) --to S(1),R,S(0) \
                --dtype bf16 --json";
    let answer = &json_lines(&dtensor(&args(plan)).ok())[0];
    let parsed: Plan = answer["plan"].as_str().unwrap().parse().unwrap();
    let steps = answer["steps"].as_array().unwrap();
    assert_eq!(parsed.steps().len(), steps.len());
    let sent: u64 = steps.iter().map(|step| step["bytes_sent"].as_u64().unwrap()).sum();
    assert_eq!(answer["total"]["bytes_sent"], sent);
    assert_eq!(answer["dtype"], "bf16");
    assert_eq!(answer["from"]["mesh"], serde_json::json!({"dp": 2, "cp": 3, "tp": 2}));
    assert_eq!(steps.last().unwrap()["placements"], answer["to"]["placements"]);
    for key in ["bytes_sent", "bytes_per_rank", "calls", "peak_bytes", "time_us"] {
        assert!(answer["total"][key].is_number(), "{key}");
        assert!(answer["greedy"][key].is_number(), "{key}");
    }
}

#[test]
fn hosts_and_links_change_the_time() {
    let time = |more: &str| {
        let plan = "plan --shape 1024,1024 --mesh dp=4,tp=8 --from S(0),R --to R,R --json";
        let answer = &json_lines(&dtensor(&args(&format!("{plan}{more}"))).ok())[0];
        answer["total"]["time_us"].as_f64().unwrap()
    };
    assert!(time(" --hosts 4") > time(""));
    assert_eq!(time(" --hosts 4"), time(" --ranks-per-host 8"));
    assert!(time(" --bandwidth 1") > time(" --bandwidth 10"));
    assert!(time(" --hosts 4 --latency 1,100") > time(" --hosts 4 --latency 1,10"));
    assert!(time(" --launch 1000") > 1000.0);
}

#[test]
fn any_mesh_up_to_millions_of_ranks_has_a_plan() {
    for mesh in ["2,2,2", "64,64,64", "256,256,64"] {
        let plan = format!(
            "plan --shape 65536,65536 --mesh {mesh} --from S(0),S(1),P(sum) --to S(1),S(0),R --json"
        );
        let answer = &json_lines(&dtensor(&args(&plan)).ok())[0];
        assert!(answer["total"]["calls"].as_u64().unwrap() >= 1, "{answer}");
    }
}

#[test]
fn mistakes_say_which_argument_is_wrong() {
    let plan = |rest: &str| format!("plan --shape 4 --mesh 2 {rest}");
    let usage = dtensor(&args(&plan("--from S(0) --to S(1)"))).error(2);
    assert_eq!(usage, "error: --to: dim 1 is out of range for a tensor of 1 dims; give -1..1\n");
    let refused = dtensor(&args(&plan("--from P(sum) --to P(max)"))).error(1);
    assert!(refused.contains("redistribute to R first"), "{refused}");
    dtensor(&args(&plan("--from R --to R --hosts 0"))).error(2);
    dtensor(&args(&plan("--from R --to R --hosts 1 --ranks-per-host 1"))).error(2);
    dtensor(&args(&plan("--from R --to R --bandwidth 0"))).error(2);
    dtensor(&args(&plan("--from R"))).error(2);
}
