//! `dtensor train`: known runs, runs that go on, and mistakes. The models are tiny.

use std::{
    fs,
    path::{Path, PathBuf},
    sync::atomic::{AtomicUsize, Ordering},
};

use dtensor_checkpoint::Catalog;
use serde_json::Value;

use crate::support::{Ran, dtensor, json_lines};

/// A directory that goes with it.
struct Scratch(PathBuf);

impl Scratch {
    fn new() -> Scratch {
        static NEXT: AtomicUsize = AtomicUsize::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let path =
            std::env::temp_dir().join(format!("dtensor-train-{}-{number}", std::process::id()));
        fs::create_dir_all(&path).unwrap();
        Scratch(path)
    }

    fn join(&self, name: &str) -> String {
        self.0.join(name).to_str().unwrap().to_owned()
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

const TINY: &str = "train --json --layers 1 --dim 16 --heads 2 --seq 16 --batch 4 --out";

/// A run of a tiny model into a directory.
fn tiny(out: &str, more: &str) -> Ran {
    let mut args: Vec<&str> = TINY.split(' ').collect();
    args.push(out);
    args.extend(more.split_whitespace());
    dtensor(&args)
}

/// Its steps.
fn steps(out: &str, more: &str) -> Vec<Value> {
    json_lines(&tiny(out, more).ok())
}

fn losses(lines: &[Value]) -> Vec<f64> {
    lines.iter().map(|line| line["loss"].as_f64().unwrap()).collect()
}

#[track_caller]
fn assert_close(got: &[f64], want: &[f64], part: f64) {
    assert_eq!(got.len(), want.len());
    for (got, want) in got.iter().zip(want) {
        assert!(((got - want) / want).abs() <= part, "{got} {want}");
    }
}

#[test]
fn a_run_of_pytorch_is_replayed_on_every_mesh() {
    let golden = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/golden/train");
    for mesh in [
        "dp=1",
        "dp=2",
        "tp=2",
        "fsdp=3",
        "dp=2,tp=2",
        "fsdp=2,tp=2",
        "tp=2 --parallel tp+sp",
        "dp=2,fsdp=2 --recompute",
    ] {
        let line = format!("train --json --mesh {mesh} --golden");
        let args: Vec<&str> = line.split(' ').chain([golden]).collect();
        let lines = json_lines(&dtensor(&args).ok());
        assert_eq!(lines.len(), 21);
        let last = lines.last().unwrap();
        for (key, most) in [
            ("loss_rel_diff", 1e-4),
            ("grad_norm_rel_diff", 1e-4),
            ("grads0_rel_diff", 1e-4),
            ("final_rel_diff", 1e-3),
        ] {
            let off = last[key].as_f64().unwrap_or_else(|| panic!("{key} on {mesh}: {last}"));
            assert!(off <= most, "{key} on {mesh}: {off}");
        }
        assert_eq!(last["left_out"].as_array().unwrap().len(), 2, "{last}");
    }
    let text = dtensor(&["train", "--golden", golden, "--mesh", "dp=2"]).ok();
    assert!(text.contains("largest relative differences: losses "), "{text}");
}

#[test]
fn a_run_says_what_it_does_and_is_the_same_every_time() {
    let scratch = Scratch::new();
    let out = scratch.join("a");
    let settings = "--steps 30 --mesh dp=2 --lr 0.01 --warmup 5";
    let lines = steps(&out, settings);
    assert_eq!(lines.len(), 30);
    for (number, line) in lines.iter().enumerate() {
        assert_eq!(line["step"], number);
        for key in ["loss", "grad_norm", "lr", "ms", "tokens_per_s", "comm_bytes", "memory_bytes"] {
            assert!(line[key].as_f64().is_some_and(|value| value >= 0.0), "{key}: {line}");
        }
        assert!(line["comm_calls"].as_u64().unwrap() > 0);
    }
    let own = losses(&lines);
    let mean = |part: &[f64]| part.iter().sum::<f64>() / part.len() as f64;
    assert!(mean(&own[25..]) < mean(&own[..5]) - 0.3, "{own:?}");
    assert!(lines[0]["lr"].as_f64() < lines[5]["lr"].as_f64());
    assert!(lines[29]["lr"].as_f64() < lines[5]["lr"].as_f64());
    // Bit by bit.
    assert_eq!(losses(&steps(&scratch.join("b"), settings)), own);
    // What it leaves.
    let mut names: Vec<_> =
        fs::read_dir(&out).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    names.sort();
    assert_eq!(names, ["checkpoint", "loss.svg"]);
    let svg = fs::read_to_string(Path::new(&out).join("loss.svg")).unwrap();
    assert!(roxmltree::Document::parse(&svg).is_ok());
    // And with another seed it is another run.
    assert!(losses(&steps(&scratch.join("c"), "--steps 1 --mesh dp=2 --seed 2"))[0] != own[0]);
}

#[test]
fn a_run_for_people_has_a_table_a_curve_and_a_text() {
    let scratch = Scratch::new();
    let out = scratch.join("a");
    let line = TINY.replace(" --json", "") + &format!(" {out} --steps 2 --mesh fsdp=2");
    let text = dtensor(&line.split(' ').collect::<Vec<_>>()).ok();
    for part in [
        "1 layers of 16 features, 2 heads",
        "fsdp=2 on 2 ranks",
        "fully sharded",
        "step    loss",
        "A text of the model:\nIn the morning, ",
        "parameters, of which rank 0 holds",
        &out,
    ] {
        assert!(text.contains(part), "{part}: {text}");
    }
    // Without a step there is still a checkpoint, of the first values.
    assert!(steps(&scratch.join("b"), "--steps 0 --mesh dp=1").is_empty());
    assert!(scratch.0.join("b/checkpoint/dtensor.manifest.json").exists());
}

#[test]
fn every_way_to_cut_learns_the_same() {
    let scratch = Scratch::new();
    let want = losses(&steps(&scratch.join("want"), "--steps 4 --mesh dp=1"));
    for more in [
        "--mesh tp=2",
        "--mesh tp=2 --parallel tp+sp",
        "--mesh fsdp=3",
        "--mesh dp=2 --parallel fsdp",
        "--mesh dp=2,fsdp=2 --parallel hsdp",
        "--mesh fsdp=2,tp=2 --recompute",
        // The same rows in parts.
        "--mesh dp=1 --accumulate 2",
        "--mesh dp=2 --accumulate 4",
        "--mesh fsdp=2 --accumulate 2",
    ] {
        let got = losses(&steps(&scratch.join("got"), &format!("--steps 4 {more}")));
        assert_close(&got, &want, 2e-5);
    }
    // Rounded, but near.
    for mesh in ["dp=2", "tp=2", "fsdp=2", "fsdp=2,tp=2"] {
        let more = format!("--steps 4 --mesh {mesh} --dtype bf16");
        let got = losses(&steps(&scratch.join("bf16"), &more));
        assert!(got != want);
        assert_close(&got, &want, 0.02);
    }
    let dropped = |mesh: &str| {
        losses(&steps(&scratch.join("dropout"), &format!("--steps 4 --dropout 0.3 --mesh {mesh}")))
    };
    let with_copies = dropped("dp=2");
    assert_close(&dropped("tp=2"), &with_copies, 2e-5);
    assert!(with_copies != want);
}

#[test]
fn llama_learns_the_same_on_every_mesh() {
    let scratch = Scratch::new();
    let run = |more: &str| {
        let more = format!("--steps 4 --model llama {more}");
        losses(&steps(&scratch.join("llama"), &more))
    };
    let want = run("--mesh dp=1");
    for mesh in ["fsdp=2,tp=2", "tp=2 --parallel tp+sp", "dp=3"] {
        assert_close(&run(&format!("--mesh {mesh}")), &want, 2e-5);
    }
}

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
    assert!(steps(&from, &more).is_empty());
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
fn settings_come_from_a_file_and_arguments_come_first() {
    let scratch = Scratch::new();
    let path = scratch.join("train.toml");
    fs::write(&path, "steps = 3\nmesh = \"tp=2\"\nweight-decay = 0.0\nrecompute = true\n").unwrap();
    assert_eq!(steps(&scratch.join("a"), &format!("--config {path}")).len(), 3);
    assert_eq!(steps(&scratch.join("b"), &format!("--config {path} --steps 1")).len(), 1);
    fs::write(&path, "stepz = 3\n").unwrap();
    let error = tiny(&scratch.join("c"), &format!("--config {path}")).error(2);
    assert!(error.contains("unknown field `stepz`") && error.contains(&path), "{error}");
    fs::write(&path, "steps = \"many\"\n").unwrap();
    let error = tiny(&scratch.join("c"), &format!("--config {path}")).error(2);
    assert!(error.contains("steps"), "{error}");
    assert!(!scratch.0.join("c").exists());
}

#[test]
fn a_text_of_ones_own_is_learnt() {
    let scratch = Scratch::new();
    let path = scratch.join("text.txt");
    fs::write(&path, "abcdefg ".repeat(40)).unwrap();
    let lines = steps(&scratch.join("a"), &format!("--steps 2 --mesh dp=1 --data {path}"));
    // Eight characters, of which nothing is known yet.
    assert!((losses(&lines)[0] - 8.0_f64.ln()).abs() < 0.1, "{lines:?}");
    fs::write(&path, "short").unwrap();
    let error = tiny(&scratch.join("a"), &format!("--data {path}")).error(2);
    assert!(error.contains("a text of 5 characters is too short"), "{error}");
}

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
        ("--golden no/such/directory", "no/such/directory"),
        ("--batch 4 --accumulate 3", "cannot be computed in 3 equal parts"),
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
    assert!(!Path::new(&out).exists());
    fs::create_dir(scratch.0.join("empty")).unwrap();
    let error = refused(&format!("--resume {}", scratch.join("empty")));
    assert!(error.contains("no checkpoint at"), "{error}");
}

#[test]
fn a_checkpoint_of_another_model_is_refused() {
    let scratch = Scratch::new();
    let from = scratch.join("a");
    steps(&from, "--steps 1 --mesh dp=1");
    let args = format!("train --json --layers 1 --dim 32 --seq 16 --mesh dp=2 --resume {from}");
    let args = format!("{args} --out {}", scratch.join("b"));
    let error = dtensor(&args.split(' ').collect::<Vec<_>>()).error(1);
    assert!(error.contains("has shape") && error.lines().count() == 1, "{error}");
    let file = "shard-00001-model-00001-of-00001.safetensors";
    let path = scratch.0.join("a/checkpoint").join(file);
    let mut bytes = fs::read(&path).unwrap();
    *bytes.last_mut().unwrap() ^= 1;
    fs::write(&path, &bytes).unwrap();
    let error = tiny(&scratch.join("b"), &format!("--mesh dp=2 --resume {from}")).error(1);
    assert!(error.contains(file) && error.contains("checksum"), "{error}");
    fs::write(&path, b"torn").unwrap();
    let error = tiny(&scratch.join("b"), &format!("--mesh dp=2 --resume {from}")).error(2);
    assert!(error.contains(file), "{error}");
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
    let ran = tiny(&out, &format!("{more} --detect-anomaly"));
    assert_eq!(ran.code, 1);
    ran.no_bug();
    let said = &ran.stderr;
    assert!(said.contains("is NaN or infinite, in module layers.0."), "{said}");
}

#[test]
fn a_profile_is_a_trace() {
    let scratch = Scratch::new();
    let trace = scratch.join("trace.json");
    steps(&scratch.join("a"), &format!("--steps 2 --mesh fsdp=2 --profile {trace}"));
    let trace: Value = serde_json::from_str(&fs::read_to_string(trace).unwrap()).unwrap();
    let events = trace["traceEvents"].as_array().or(trace.as_array()).unwrap();
    assert!(events.iter().any(|event| event["name"] == "all_gather"), "{events:?}");
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
