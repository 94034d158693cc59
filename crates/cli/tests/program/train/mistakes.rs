//! What is wrong, and when it is found.

use std::{fs, path::Path};

use super::support::{Scratch, TINY, steps, tiny, told};
use crate::support::{dtensor, json_lines};

#[test]
fn mistakes_are_found_before_anything_is_started() {
    let scratch = Scratch::new();
    let out = scratch.join("never");
    let refused = |line: &str| {
        let args = format!("train --json --out {out} {line}");
        dtensor(&args.split_whitespace().collect::<Vec<_>>()).error(2)
    };
    for (line, text) in [
        ("--dim 16 --heads 3", "--dim 16 cannot be divided into 3 heads"),
        ("--dim 6 --heads 2 --model llama", "heads of 3 features have no pairs to turn"),
        ("--mesh dp=2,pp=2", "there is no axis `pp`"),
        ("--mesh dp=x", "--mesh"),
        ("--parallel zero", "there is no strategy `zero`"),
        ("--parallel tp --mesh dp=2", "--parallel tp needs axes that the mesh does not have"),
        ("--parallel fsdp+tp", "needs a mesh"),
        ("--data no/such/file", "--data no/such/file"),
        ("--config no/such/file", "no/such/file"),
        ("--batch 4 --accumulate 3", "cannot be computed in 3 equal parts"),
        ("--batch 18446744073709551615", "is more than 268435456 positions per step"),
        ("--seq 18446744073709551615", "is more than 268435456 positions per step"),
        ("--save-every 0", "--save-every is 0"),
        ("--layers 0", "--layers is 0"),
        ("--batch 0", "--batch is 0"),
        ("--lr 0", "--lr is 0"),
        ("--lr nan", "--lr is NaN"),
        ("--clip=-1", "--clip is -1"),
        ("--weight-decay inf", "--weight-decay is inf"),
        ("--dropout 1", "--dropout is 1"),
        ("--model gtp", "gtp"),
        ("--resume no/such/directory", "--resume: no checkpoint at `no/such/directory/checkpoint`"),
    ] {
        let error = refused(line);
        assert!(error.contains(text), "{line}: {error}");
    }
    let golden = |line: &str| {
        let args = format!("train --golden no/such/directory {line}");
        dtensor(&args.split_whitespace().collect::<Vec<_>>()).error(2)
    };
    assert!(golden("").contains("no/such/directory/run.json"), "{}", golden(""));
    for option in ["--lr 9", "--model llama", "--resume x", "--weight-decay 1", "--profile x"] {
        let name = option.split(' ').next().unwrap();
        let error = golden(option);
        assert!(error.contains(&format!("{name} has no meaning with --golden")), "{error}");
    }
    assert!(!Path::new(&out).exists());
    fs::create_dir(scratch.0.join("empty")).unwrap();
    let error = refused(&format!("--resume {}", scratch.join("empty")));
    assert!(error.contains("no checkpoint at"), "{error}");
}

#[test]
fn what_cannot_be_written_is_found_before_the_first_step() {
    let scratch = Scratch::new();
    fs::write(scratch.join("file"), "").unwrap();
    for out in ["file", "file/below"] {
        let error = tiny(&scratch.join(out), "--mesh dp=1").error(2);
        assert!(error.contains(&format!("--out {}", scratch.join(out))), "{error}");
    }
    let profile = scratch.join("no/such/trace.json");
    let error = tiny(&scratch.join("a"), &format!("--mesh dp=1 --profile {profile}")).error(2);
    assert!(error.contains(&format!("--profile {profile}")), "{error}");
    // What a run will replace is said before it begins.
    steps(&scratch.join("b"), "--steps 2 --mesh dp=1");
    let (text, _) = told(&scratch.join("b"), "--steps 1 --mesh dp=1");
    assert!(text.contains("has a checkpoint of step 2, which this run will replace"), "{text}");
}

#[test]
fn a_mesh_of_another_size_than_the_world_is_refused_with_both() {
    let scratch = Scratch::new();
    let args = format!("{TINY} {} --mesh dp=2", scratch.join("a"));
    let child = std::process::Command::new(env!("CARGO_BIN_EXE_dtensor"))
        .args(args.split(' '))
        .env("DTENSOR_RANKS", "3")
        .output()
        .unwrap();
    let error = String::from_utf8(child.stderr).unwrap();
    assert_eq!(child.status.code(), Some(1), "{error}");
    let want =
        "error: the mesh dp=2 is for 2 ranks, and there are 3\n  hint: give a --mesh of 3 ranks\n";
    assert_eq!(error, want);
}

#[test]
fn a_loss_that_is_no_number_ends_the_run_and_its_cause_is_named() {
    let scratch = Scratch::new();
    let out = scratch.join("a");
    let more = "--steps 9 --mesh dp=2 --lr 1e30 --warmup 0";
    let ran = tiny(&out, more);
    assert_eq!(ran.code, 1);
    ran.no_bug();
    let (first, hint) = ran.stderr.split_once('\n').unwrap();
    assert!(first.starts_with("error: the "), "{first}");
    assert!(first.contains(" of step 1 is ") && first.contains("learning rate"), "{first}");
    assert!(hint.contains("--detect-anomaly"), "{hint}");
    assert!(!Path::new(&out).join("checkpoint").exists(), "what is broken is not kept");
    // The steps before it are there.
    assert_eq!(json_lines(&ran.stdout).len(), 1);
    let ran = tiny(&out, &format!("{more} --detect-anomaly"));
    assert_eq!(ran.code, 1);
    ran.no_bug();
    let said = &ran.stderr;
    assert!(said.starts_with("error: step 1: "), "{said}");
    assert!(said.contains("is NaN or infinite, in module layers.0."), "{said}");
    // Where a step makes parameters infinite there is no operation to blame.
    let ran = tiny(&out, &format!("{} --detect-anomaly", more.replace("1e30", "1e39")));
    let said = &ran.stderr;
    assert_eq!(ran.code, 1, "{said}");
    assert!(said.starts_with("error: before step 1 parameter `"), "{said}");
    assert!(said.contains("a lower --lr may help"), "{said}");
}
