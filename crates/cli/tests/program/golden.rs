//! The program reproduces what PyTorch and JAX computed, line by line.

use crate::support::{dtensor_with_input, json_lines};
use dtensor_testing::golden::{LAYOUT_LINES, XLA_LINES};
use serde_json::{Map, Value};

/// Feeds lines with only these keys to the program, and wants every golden value in the answers.
#[track_caller]
fn check(golden: &str, question_keys: &[&str], args: &[&str]) -> Vec<Value> {
    let golden = json_lines(golden);
    let question = |case: &Value| {
        let kept = question_keys.iter().map(|key| (key.to_string(), case[key].clone()));
        Value::Object(kept.collect::<Map<_, _>>()).to_string() + "\n"
    };
    let input: String = golden.iter().map(question).collect();
    let answers = json_lines(&dtensor_with_input(args, input).ok());
    assert_eq!(answers.len(), golden.len());
    for (case, answer) in golden.iter().zip(&answers) {
        for (key, want) in case.as_object().unwrap() {
            assert_eq!(&answer[key], want, "{key} of {case}");
        }
    }
    answers
}

#[test]
fn all_600_layouts_of_pytorch_come_out_the_same() {
    let answers = check(LAYOUT_LINES, &["shape", "mesh", "placements"], &["layout", "--stdin"]);
    assert_eq!(answers.len(), 600);
}

#[test]
fn a_golden_line_given_as_it_is_comes_back_as_it_is() {
    let answers = dtensor_with_input(&["layout", "--stdin"], LAYOUT_LINES).ok();
    assert!(answers == LAYOUT_LINES, "not byte for byte the same");
}

#[test]
fn all_200_shardings_of_jax_come_out_the_same() {
    let args = ["layout", "--stdin", "--interchange"];
    let answers = check(XLA_LINES, &["shape", "mesh", "spec"], &args);
    assert_eq!(answers.len(), 200);
    // An answer is a question with the same answer.
    let again: String = answers.iter().map(|answer| answer.to_string() + "\n").collect();
    assert_eq!(json_lines(&dtensor_with_input(&args, again).ok()), answers);
}

#[test]
fn xlas_and_shardys_texts_lead_to_the_same_boxes() {
    for notation in ["hlo", "sdy"] {
        let golden = json_lines(XLA_LINES);
        let question = |case: &Value| {
            let mut question = case.clone();
            question["spec"] = case[notation].clone();
            question.to_string() + "\n"
        };
        let input: String = golden.iter().map(question).collect();
        let ran = dtensor_with_input(&["layout", "--stdin", "--interchange"], input);
        for (case, answer) in golden.iter().zip(json_lines(&ran.ok())) {
            assert_eq!(answer["boxes"], case["boxes"], "{notation} of {case}");
        }
    }
}
