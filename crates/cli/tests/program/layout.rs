//! `dtensor layout`: pictures, single answers, streams and mistakes.

use std::{
    io::{BufRead, BufReader, Write},
    process::{Command, Stdio},
};

use crate::support::{dtensor, dtensor_with_input, json_lines};

/// The picture must be exactly this, but for the empty line at the start of `want`.
#[track_caller]
fn picture(args: &str, want: &str) {
    // Arguments have no spaces of their own here.
    let args: Vec<&str> = ["layout"].into_iter().chain(args.split(' ')).collect();
    let got = dtensor(&args).ok();
    assert!(got == want[1..], "{args:?} gave\n{got}\nand not{want}");
}

#[test]
fn a_matrix_on_a_square_mesh() {
    picture(
        "--shape 13,8 --mesh dp=2,tp=2 --placements S(0),S(1)",
        "
f32[13, 8] on dp=2,tp=2: [S(0), S(1)]
416 B in all; 96 B to 112 B on each of 4 ranks

dim 0 (13) down, dim 1 (8) across

        0..4         4..8
       ┌────────────┬────────────┐
  0..7 │            │            │
       │            │            │
       │            │            │
       │     0      │     1      │
       │            │            │
       │            │            │
       │            │            │
       ├────────────┼────────────┤
 7..13 │            │            │
       │            │            │
       │     2      │     3      │
       │            │            │
       │            │            │
       │            │            │
       └────────────┴────────────┘

dp=2  S(0)  every rank has a chunk of dim 0
tp=2  S(1)  every rank has a chunk of dim 1
rank = 2*dp + tp
",
    );
}

#[test]
fn a_vector_with_an_empty_shard() {
    picture(
        "--shape 5 --mesh 4 --placements S(0)",
        "
f32[5] on axis0=4: [S(0)]
20 B in all; 0 B to 8 B on each of 4 ranks

dim 0 (5) across

 0..2   2..4   4..5
┌──────┬──────┬──────┐
│  0   │  1   │  2   │
└──────┴──────┴──────┘

1 rank holds nothing: 3

axis0=4  S(0)  every rank has a chunk of dim 0
rank = axis0
",
    );
}

#[test]
fn copies_and_contributions_share_a_block() {
    picture(
        "--shape 6 --mesh dp=2,tp=3 --placements R,P(sum) --ascii --dtype bf16",
        "
bf16[6] on dp=2,tp=3: [R, P(sum)]
12 B in all; 12 B on each of 6 ranks

dim 0 (6) across

 0..6
+---------------------+
| sum(0-2) | sum(3-5) |
+---------------------+

dp=2  R       every rank has the same values
tp=3  P(sum)  every rank has a contribution, the value is their sum
rank = 3*dp + tp
",
    );
}

#[test]
fn a_scalar_is_one_block() {
    picture(
        "--shape [] --mesh 4,2 --placements R,R",
        "
f32[] on axis0=4,axis1=2: [R, R]
4 B in all; 4 B on each of 8 ranks

one element

┌─────┐
│ 0-7 │
└─────┘

axis0=4  R  every rank has the same values
axis1=2  R  every rank has the same values
rank = 2*axis0 + axis1
",
    );
}

#[test]
fn a_tensor_without_elements_is_said_to_be_one() {
    picture(
        "--shape 3,0 --mesh 2 --placements S(0)",
        "
f32[3, 0] on axis0=2: [S(0)]
0 B in all; 0 B on each of 2 ranks

the tensor has no elements: no rank holds anything

axis0=2  S(0)  every rank has a chunk of dim 0
rank = axis0
",
    );
}

#[test]
fn three_cut_dims_are_slices_and_whole_dims_are_not_drawn() {
    picture(
        "--shape 4,3,6,8 --mesh 2x2x2 --placements S(0),S(2),S(3)",
        "
f32[4, 3, 6, 8] on axis0=2,axis1=2,axis2=2: [S(0), S(2), S(3)]
2.25 KiB in all; 288 B on each of 8 ranks

dim 2 (6) down, dim 3 (8) across, dim 0 (4) in slices, dim 1 (3) whole

[0..2, :, :, :]
       0..4         4..8
      ┌────────────┬────────────┐
 0..3 │            │            │
      │     0      │     1      │
      │            │            │
      ├────────────┼────────────┤
 3..6 │            │            │
      │     2      │     3      │
      │            │            │
      └────────────┴────────────┘

[2..4, :, :, :]
       0..4         4..8
      ┌────────────┬────────────┐
 0..3 │            │            │
      │     4      │     5      │
      │            │            │
      ├────────────┼────────────┤
 3..6 │            │            │
      │     6      │     7      │
      │            │            │
      └────────────┴────────────┘

axis0=2  S(0)  every rank has a chunk of dim 0
axis1=2  S(2)  every rank has a chunk of dim 2
axis2=2  S(3)  every rank has a chunk of dim 3
rank = 4*axis0 + 2*axis1 + axis2
",
    );
}

#[test]
fn millions_of_ranks_are_a_few_lines() {
    picture(
        "--shape 100000000,3 --mesh dp=4000000 --placements S(0) --width 60",
        "
f32[100000000, 3] on dp=4000000: [S(0)]
1.12 GiB in all; 300 B on each of 4,000,000 ranks

dim 0 (100000000) down, dim 1 (3) across

                      0..3
                     ┌─────────┐
               0..25 │    0    │
                     ├─────────┤
              25..50 │    1    │
                     ├─────────┤
              50..75 │    2    │
                     ├─────────┤
             75..100 │    3    │
                     ├─────────┤
            100..125 │    4    │
                     ├─────────┤
            125..150 │    5    │
                     ├─────────┤
            150..175 │    6    │
                     ├─────────┤
            175..200 │    7    │
                     ├─────────┤
            200..225 │    8    │
                     ├─────────┤
            225..250 │    9    │
                     ├─────────┤
                   ⋮ │    ⋮    │
                     ├─────────┤
 99999975..100000000 │ 3999999 │
                     └─────────┘

11 of 4,000,000 bands of dim 0 are drawn

dp=4000000  S(0)  every rank has a chunk of dim 0
rank = dp
",
    );
}

#[test]
fn pictures_keep_to_the_width() {
    for width in ["40", "80", "200"] {
        let args = "layout --shape 64,640 --mesh dp=4,tp=32 --placements S(0),S(1) --width";
        let args: Vec<&str> = args.split(' ').chain([width]).collect();
        let picture = dtensor(&args).ok();
        let grid = picture.lines().filter(|line| line.contains(['│', '─']));
        let widest = grid.map(|line| line.chars().count()).max().unwrap();
        assert!(widest <= width.parse().unwrap(), "{width}:\n{picture}");
    }
}

#[test]
fn colour_is_for_terminals_unless_asked_for() {
    let args = ["layout", "--shape", "4", "--mesh", "2", "--placements", "S(0)"];
    assert!(!dtensor(&args).ok().contains('\x1b'));
    let coloured = dtensor(&[&args[..], &["--color", "always"]].concat()).ok();
    assert!(coloured.contains("\x1b[48;5;"), "{coloured}");
}

#[test]
fn single_ranks_are_a_table() {
    let args = "layout --shape 9 --mesh a=4,b=2 --placements _S(0,2),S(0) --coord 0,1 --coord 3,1";
    let args: Vec<&str> = args.split(' ').collect();
    assert_eq!(
        dtensor(&args).ok(),
        "\
f32[9] on a=4,b=2: [_S(0, 2), S(0)]

rank  coordinate  shape  offset  bytes  holds
   1  a=0,b=1     [1]    [5]       4 B  [5..6]
   7  a=3,b=1     [0]    [9]       0 B  nothing
"
    );
}

#[test]
fn one_json_line_has_the_keys_of_the_question_and_the_locals() {
    let args = "layout --shape 3,2 --mesh dp=2,tp=1 --placements S(0),R --json";
    assert_eq!(
        dtensor(&args.split(' ').collect::<Vec<_>>()).ok(),
        "{\"shape\":[3,2],\"mesh\":{\"dp\":2,\"tp\":1},\"placements\":[\"S(0)\",\"R\"],\"local\":[\
         {\"coord\":[0,0],\"shape\":[2,2],\"offset\":[0,0]},\
         {\"coord\":[1,0],\"shape\":[1,2],\"offset\":[2,0]}]}\n"
    );
    // Sizes alone stay sizes.
    let args = "layout --shape 3,2 --mesh 2x1 --placements S(0),R --json --coord 1,0";
    let line = &json_lines(&dtensor(&args.split(' ').collect::<Vec<_>>()).ok())[0];
    assert_eq!(line["mesh"], serde_json::json!([2, 1]));
    assert_eq!(line["local"].as_array().unwrap().len(), 1);
}

#[test]
fn what_a_notation_cannot_say_is_null_with_a_reason() {
    let args = "layout --shape 8 --mesh x=2,y=2 --placements P(max),S(0) --json --interchange";
    let line = &json_lines(&dtensor(&args.split(' ').collect::<Vec<_>>()).ok())[0];
    assert!(line["spec"].is_null() && line["hlo"].is_null());
    assert!(line["why"]["hlo"].as_str().unwrap().contains("P(max)"), "{line}");
    assert_eq!(line["sdy"], r#"#sdy.sharding<@mesh, [{"y"}], unreduced=max{"x"}>"#);
}

#[test]
fn a_svg_file_is_written_beside_the_answer() {
    let file = std::env::temp_dir().join(format!("dtensor-{}.svg", std::process::id()));
    let args = "layout --shape 4 --mesh 2 --placements S(0) --json --svg";
    let path = file.to_str().unwrap();
    let args: Vec<&str> = args.split(' ').chain([path]).collect();
    assert_eq!(json_lines(&dtensor(&args).ok()).len(), 1);
    let drawing = std::fs::read_to_string(&file).unwrap();
    std::fs::remove_file(&file).unwrap();
    let to_stdout = "layout --shape 4 --mesh 2 --placements S(0) --svg -";
    assert_eq!(dtensor(&to_stdout.split(' ').collect::<Vec<_>>()).ok(), drawing);
    assert!(roxmltree::Document::parse(&drawing).is_ok());
}

#[test]
fn a_bad_line_is_answered_too_and_the_next_one_as_well() {
    let input = "\
{\"shape\":[4],\"mesh\":[2],\"placements\":[\"S(0)\"]}
not json

{\"shape\":[4],\"mesh\":[2],\"placements\":[\"S(7)\"]}
{\"shape\":[4],\"mesh\":{\"x\":100000},\"placements\":[\"R\"]}
{\"shape\":[4],\"mesh\":{\"x\":100000},\"placements\":[\"S(0)\"],\"coord\":[3]}";
    let ran = dtensor_with_input(&["layout", "--stdin"], input);
    assert_eq!((ran.code, ran.stderr.as_str()), (1, ""));
    let answers = json_lines(&ran.stdout);
    assert_eq!(answers.len(), 5);
    let error = |index: usize| answers[index]["error"].as_str().unwrap();
    assert!(answers[0]["local"].is_array());
    assert!(error(1).starts_with("not a JSON line"), "{}", error(1));
    assert_eq!(answers[1]["line"], 2);
    assert_eq!(error(2), "dim 7 is out of range for a tensor of 1 dims; give -1..1");
    assert!(error(3).contains("100,000 ranks"), "{}", error(3));
    assert_eq!(answers[4]["local"][0]["offset"], serde_json::json!([3]));
}

#[test]
fn bytes_that_are_no_text_are_one_bad_line() {
    let mut input = vec![0xff, 0xfe, b'\n'];
    input.extend_from_slice(b"{\"shape\":[],\"mesh\":[1],\"placements\":\"R\"}\n");
    let ran = dtensor_with_input(&["layout", "--stdin"], input);
    assert_eq!(ran.code, 1);
    assert_eq!(json_lines(&ran.stdout)[1]["placements"], serde_json::json!(["R"]));
}

#[test]
fn answers_come_before_the_next_question() {
    let mut child = Command::new(env!("CARGO_BIN_EXE_dtensor"))
        .args(["layout", "--stdin"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut questions = child.stdin.take().unwrap();
    let mut answers = BufReader::new(child.stdout.take().unwrap());
    for size in 0..3 {
        writeln!(questions, r#"{{"shape":[{size}],"mesh":[1],"placements":["R"]}}"#).unwrap();
        let mut answer = String::new();
        answers.read_line(&mut answer).unwrap();
        assert!(answer.starts_with(&format!("{{\"shape\":[{size}]")), "{answer}");
    }
    drop(questions);
    assert!(child.wait().unwrap().success());
}

#[test]
fn a_reader_that_goes_away_is_no_failure() {
    let mut child = Command::new(env!("CARGO_BIN_EXE_dtensor"))
        .args("layout --shape 4 --mesh 65536 --placements S(0) --json".split(' '))
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    drop(child.stdout.take());
    let output = child.wait_with_output().unwrap();
    assert_eq!((output.status.code(), output.stderr.len()), (Some(0), 0));
}

#[test]
fn mistakes_are_one_block_with_the_way_out() {
    let wrong = |args: &str| dtensor(&args.split(' ').collect::<Vec<_>>()).error(2);
    assert_eq!(
        wrong("layout --shape 4 --mesh 2,2 --placements S(0)"),
        "error: 1 placements for a mesh of 2 axes (axis0=2,axis1=2); give one per axis\n"
    );
    assert_eq!(
        wrong("layout --shape 4 --mesh dp=2,dp=2 --placements R,R"),
        "error: --mesh: mesh axis name `dp` is given twice; names must differ\n"
    );
    assert_eq!(
        wrong("layout --shape 4 --mesh 1000,1000 --placements R,R --json"),
        "error: mesh axis0=1000,axis1=1000 has 1,000,000 ranks, above the limit of 65,536 in one line\n  \
         hint: ask for one with --coord 0,0, or raise --limit\n"
    );
    assert!(wrong("layout --shape 4;4 --mesh 2 --placements R").contains("is not a size"));
    assert!(wrong("layout --shape 4 --mesh 2 --placements R --interchange").contains("--json"));
    assert!(wrong("layout --shape 4 --mesh 2 --placements R --coord 2").contains("not on mesh"));
    assert!(wrong("layout --shape 4 --mesh 2 --placements R --dtype f8").contains("bf16"));
    assert!(
        wrong("layout --shape 4 --mesh 2 --placements R --spec P()").contains("cannot be used")
    );
    assert!(wrong("layout --mesh 2 --placements R").contains("--shape"));
    assert!(wrong("layout --stdin --shape 4").contains("--stdin"));
    assert!(wrong("nonsense").contains("nonsense"));
    let failed = "layout --shape 4 --mesh 2 --placements R --svg /nonexistent/picture.svg";
    let message = dtensor(&failed.split(' ').collect::<Vec<_>>()).error(1);
    assert!(message.contains("/nonexistent/picture.svg"), "{message}");
}

#[test]
fn the_largest_numbers_do_not_break_anything() {
    for args in [
        "layout --shape 18446744073709551615 --mesh 2 --placements S(0)",
        "layout --shape 4611686018427387903,2 --mesh 2 --placements S(0)",
        "layout --shape 2305843009213693951 --mesh 4294967296,2147483648 --placements S(0),R",
        "layout --shape 5 --mesh 9223372036854775807 --placements S(0)",
        "layout --shape 5 --mesh 9223372036854775807,3 --placements S(0),R",
        "layout --shape 5 --mesh 9223372036854775807 --placements S(0) --json --coord 4",
        "layout --shape 5,0,18446744073709551615 --mesh 3 --placements S(2)",
        "layout --shape 18446744073709551615,3,0 --mesh 3 --placements R --coord 1",
        "layout --shape 1000000000000 --mesh 2 --placements _S(0,1000000000)",
        "plan --shape 5 --mesh 9223372036854775807 --from S(0) --to R",
        "plan --shape 1152921504606846975 --mesh 1048576,1048576 --from S(0),S(0) --to R,S(0)",
    ] {
        dtensor(&args.split(' ').collect::<Vec<_>>()).no_bug();
    }
}
