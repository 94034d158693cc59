//! Checkpoints of runs, and runs that go on from them.

use std::fs;

use dtensor_checkpoint::Catalog;
use serde_json::Value;

use super::support::{Scratch, TINY, assert_close, losses, steps, tiny};
use crate::support::{dtensor, json_lines};

#[test]
fn a_run_goes_on_on_another_mesh() {
    let scratch = Scratch::new();
    // Within the steps in which the rate grows, it does not depend on how many come.
    let whole = losses(&steps(&scratch.join("whole"), "--steps 9 --mesh dp=1 --dropout 0.2"));
    let first = steps(&scratch.join("part"), "--steps 4 --mesh dp=2 --dropout 0.2");
    assert_close(&losses(&first), &whole[..4], 1e-5);
    let from = scratch.join("part");
    let mut ends = Vec::new();
    for mesh in ["tp=2", "fsdp=3", "dp=2,tp=2"] {
        let out = scratch.join(&mesh.replace('=', "-"));
        let more = format!("--steps 9 --mesh {mesh} --dropout 0.2 --resume {from}");
        let lines = steps(&out, &more);
        assert_eq!((lines.len(), &lines[0]["step"]), (5, &Value::from(4)), "{mesh}");
        assert_close(&losses(&lines), &whole[4..], 1e-5);
        ends.push(out);
    }
    // A checkpoint knows the losses from the beginning, and is replaced where it is.
    let run = |out: &str| {
        let (_, catalog) = Catalog::open_path(format!("{out}/checkpoint")).unwrap();
        (catalog.values["step"].clone(), catalog.tensors["losses"].shape.clone())
    };
    assert_eq!(run(&ends[0]), (9_i64.into(), vec![9]));
    // On the mesh that it was on, a run goes on with the same bits.
    let same = steps(&scratch.join("same"), "--steps 9 --mesh dp=2 --dropout 0.2");
    let more = format!("--steps 9 --mesh dp=2 --dropout 0.2 --resume {from}");
    assert_eq!(losses(&steps(&scratch.join("again"), &more)), losses(&same)[4..]);
    let more = format!("--steps 5 --mesh dp=1 --dropout 0.2 --resume {from}");
    assert_eq!(steps(&from, &more).len(), 1);
    assert_eq!(run(&from).0, 5_i64.into());
    // Nothing is left to do.
    let ran = tiny(&from, &more);
    assert_eq!((ran.code, &*ran.stdout), (0, ""));
    assert_eq!(ran.stderr, "All 5 steps are done; give --steps for more.\n");
    // What a run has left that was killed while it replaced its checkpoint is found.
    let old = scratch.0.join("part/.checkpoint.old-0123456789abcdef");
    fs::rename(scratch.0.join("part/checkpoint"), old).unwrap();
    fs::create_dir(scratch.0.join("part/.checkpoint.partial-0123456789abcdef")).unwrap();
    let more = format!("--steps 6 --mesh tp=2 --dropout 0.2 --resume {from}");
    assert_close(&losses(&steps(&from, &more)), &whole[5..6], 1e-5);
    assert_eq!(run(&from).0, 6_i64.into());
    let names = fs::read_dir(&from).unwrap().map(|entry| entry.unwrap().file_name());
    let hidden = names.filter(|name| name.to_string_lossy().starts_with('.')).count();
    assert_eq!(hidden, 0, "nothing is left over");
}

#[test]
fn a_run_goes_on_with_the_settings_that_it_began_with() {
    let scratch = Scratch::new();
    let (from, text) = (scratch.join("a"), scratch.join("text.txt"));
    fs::write(&text, "a fox, a box, an ox. ".repeat(40)).unwrap();
    let settings = format!(
        "--model llama --mesh dp=1 --warmup 8 --lr 0.01 --seed 18446744073709551615 --data {text} --accumulate 2"
    );
    let whole = losses(&steps(&scratch.join("whole"), &format!("{settings} --steps 7")));
    steps(&from, &format!("{settings} --steps 4"));
    // Nothing but how far; the checkpoint is replaced where it is.
    let run = |line: &str| dtensor(&line.split(' ').collect::<Vec<_>>());
    let lines = run(&format!("train --json --resume {from} --mesh dp=2 --steps 6")).ok();
    assert_close(&losses(&json_lines(&lines)), &whole[4..6], 1e-5);
    let lines = run(&format!("train --json --resume {from} --mesh tp=2 --steps 7")).ok();
    assert_close(&losses(&json_lines(&lines)), &whole[6..], 1e-5);
    // What a model is does not change on the way.
    for (option, was) in [
        ("--model gpt", "llama"),
        ("--layers 2", "1"),
        ("--dim 32", "16"),
        ("--heads 4", "2"),
        ("--seq 8", "16"),
    ] {
        let (name, value) = option.split_once(' ').unwrap();
        let error = run(&format!("train --json --resume {from} {option}")).error(2);
        assert!(error.contains(&format!("{name} is {value}, but {was} in {from}")), "{error}");
    }
    // Nor what its tokens stand for, be there as many of them.
    fs::write(&text, "a fox, a bex, an ex. ".repeat(40)).unwrap();
    let error = run(&format!("train --json --resume {from} --mesh dp=1 --steps 9")).error(2);
    assert!(error.contains("'e' is new"), "{error}");
    fs::write(&text, "a fox, a fox, an ox. ".repeat(40)).unwrap();
    let error = run(&format!("train --json --resume {from} --mesh dp=1 --steps 9")).error(2);
    assert!(error.contains("'b' is missing"), "{error}");
    // A checkpoint of something else is none of a run.
    let golden = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/golden/train/init.safetensors");
    run(&format!("ckpt reshard {golden} {} --mesh dp=1", scratch.join("other"))).ok();
    let error = run(&format!("train --resume {}", scratch.join("other"))).error(2);
    assert!(error.contains("is no checkpoint of a run"), "{error}");
}

#[test]
fn a_run_that_goes_on_recomputes_and_saves_as_often_as_it_did() {
    let scratch = Scratch::new();
    let from = scratch.join("a");
    steps(&from, "--steps 2 --mesh dp=1 --recompute --save-every 2");
    let settings = |run: &str| -> Value {
        let (_, catalog) = Catalog::open_path(format!("{run}/checkpoint")).unwrap();
        let dtensor_checkpoint::Value::Text(text) = &catalog.values["run.settings"] else {
            panic!("no settings")
        };
        serde_json::from_str(text).unwrap()
    };
    let going_on = |out: &str, more: &str| {
        let line = format!("train --json --mesh dp=1 --steps 3 --resume {from} --out {out} {more}");
        dtensor(&line.split_whitespace().collect::<Vec<_>>()).ok();
        let settings = settings(out);
        (settings["recompute"].clone(), settings["save-every"].clone())
    };
    let b = scratch.join("b");
    assert_eq!(going_on(&b, ""), (true.into(), 2.into()));
    assert_eq!(going_on(&b, "--recompute=false --save-every 9"), (false.into(), 9.into()));
}

#[test]
fn checkpoints_are_written_on_the_way() {
    let scratch = Scratch::new();
    let out = scratch.join("a");
    let settings = "--mesh dp=2 --warmup 100 --lr 0.01";
    let whole = losses(&steps(&scratch.join("whole"), &format!("{settings} --steps 9")));
    // It is killed in step 8 at the earliest.
    let mut child = std::process::Command::new(env!("CARGO_BIN_EXE_dtensor"))
        .args(format!("{TINY} {out} {settings} --steps 1000000 --save-every 3").split(' '))
        .stdout(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    let lines = std::io::BufRead::lines(std::io::BufReader::new(child.stdout.take().unwrap()));
    assert_eq!(lines.take(8).filter(Result::is_ok).count(), 8);
    child.kill().unwrap();
    child.wait().unwrap();
    let (_, catalog) = Catalog::open_path(format!("{out}/checkpoint")).unwrap();
    let dtensor_checkpoint::Value::Int(step) = catalog.values["step"] else { panic!("no step") };
    assert!(step >= 6 && step % 3 == 0, "{step}");
    let lines = steps(&out, &format!("--mesh dp=2 --steps {} --resume {out}", step + 1));
    assert_eq!((lines.len(), &lines[0]["step"]), (1, &Value::from(step)));
    if step < 9 {
        assert_eq!(losses(&lines)[0], whole[step as usize]);
    }
}

#[test]
fn a_checkpoint_that_does_not_fit_is_refused() {
    let scratch = Scratch::new();
    let from = scratch.join("a");
    steps(&from, "--steps 1 --mesh dp=1");
    let again = || tiny(&scratch.join("b"), &format!("--mesh dp=2 --steps 2 --resume {from}"));
    // A weight that is missing, one too many, and one of another shape, each by its name.
    let edit = |options: &str| {
        let line = format!("ckpt convert {from}/checkpoint {}", scratch.join("edited.safetensors"));
        let line = format!("{line} --force {options}");
        dtensor(&line.split(' ').collect::<Vec<_>>()).ok();
        let line = format!(
            "ckpt reshard {} {} --force --mesh dp=1",
            scratch.join("edited.safetensors"),
            scratch.join("edited")
        );
        dtensor(&line.split(' ').collect::<Vec<_>>()).ok();
        tiny(
            &scratch.join("b"),
            &format!("--mesh dp=2 --steps 2 --resume {}", scratch.join("edited")),
        )
        .error(1)
    };
    let error = edit("--exclude model.head.weight");
    assert!(error.contains("`model.head.weight`"), "{error}");
    let error = edit("--rename model.head.weight=model.foot.weight");
    assert!(error.contains("`model.foot.weight`"), "{error}");
    let (up, down) = ("model.layers.0.mlp.w1.weight", "model.layers.0.mlp.w2.weight");
    let error = edit(&format!("--rename {up}={down} --rename {down}={up}"));
    assert!(error.contains(&format!("`{up}`")), "{error}");
    assert!(error.contains("[16, 64]") && error.contains("[64, 16]"), "{error}");
    let file = "shard-00001-model-00001-of-00001.safetensors";
    let path = scratch.0.join("a/checkpoint").join(file);
    let mut bytes = fs::read(&path).unwrap();
    *bytes.last_mut().unwrap() ^= 1;
    fs::write(&path, &bytes).unwrap();
    let error = again().error(1);
    assert!(error.contains(file) && error.contains("checksum"), "{error}");
    fs::write(&path, b"torn").unwrap();
    let error = again().error(2);
    assert!(error.contains(file), "{error}");
}

/// A run that is asked to stop finishes its step, writes a checkpoint, and can be gone on with.
#[cfg(unix)]
#[test]
fn ctrl_c_leaves_a_checkpoint() {
    use std::{
        io::{BufRead, BufReader, Read},
        process::{Command, Stdio},
    };
    let scratch = Scratch::new();
    let out = scratch.join("a");
    let line = format!("{TINY} {out} --steps 100000 --warmup 200000 --mesh fsdp=2");
    let mut child = Command::new(env!("CARGO_BIN_EXE_dtensor"))
        .args(line.split(' '))
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let mut done: Vec<String> = (&mut lines).take(3).map(Result::unwrap).collect();
    let asked = Command::new("kill").args(["-INT", &child.id().to_string()]).status().unwrap();
    assert!(asked.success());
    done.extend(lines.map(Result::unwrap));
    let status = child.wait().unwrap();
    let mut said = String::new();
    child.stderr.take().unwrap().read_to_string(&mut said).unwrap();
    assert!(status.success(), "{said}");
    let n = done.len();
    assert_eq!(said, format!("Stopped after step {n}; --resume {out} goes on.\n"));
    assert!(n < 100_000);
    let more = format!("--steps {} --warmup 200000 --mesh tp=2 --resume {out}", n + 1);
    let lines = steps(&scratch.join("b"), &more);
    assert_eq!((lines.len(), &lines[0]["step"]), (1, &Value::from(n)));
}
