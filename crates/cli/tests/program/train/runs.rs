//! Runs from the beginning to the end.

use std::{fs, path::Path};

use serde_json::Value;

use super::support::{Scratch, assert_close, losses, steps, tiny, told};

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
    let (text, on_the_way) = told(&out, "--steps 2 --mesh fsdp=2");
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
    // There is no terminal: a line of the first step, and of the last.
    let lines: Vec<&str> = on_the_way.lines().collect();
    assert_eq!(lines.len(), 2, "{on_the_way}");
    for (line, step) in lines.iter().zip(["step 1/2  loss ", "step 2/2  loss "]) {
        assert!(line.starts_with(step), "{line}");
        for part in ["tokens/s", "/step sent", " used"] {
            assert!(line.contains(part), "{line}");
        }
    }
    // Without a step there is still a checkpoint, of the first values.
    assert!(steps(&scratch.join("b"), "--steps 0 --mesh dp=1").is_empty());
    assert!(scratch.0.join("b/checkpoint/dtensor.manifest.json").exists());
}

/// Also where positions lie on other ranks, and in another order: the next character is drawn by the same number.
#[test]
fn every_model_writes_the_same_text_on_every_mesh() {
    let scratch = Scratch::new();
    let out = scratch.join("a");
    let written = |model: &str, mesh: &str| -> String {
        let (text, _) = told(&out, &format!("--steps 2 --model {model} --mesh {mesh}"));
        let (_, written) = text.split_once("A text of the model:\nIn the morning, ").unwrap();
        // Not all of it: a character may be drawn from between two, once in a very long text.
        written.chars().take(60).collect()
    };
    for (model, meshes) in
        [("gpt", &["cp=2", "cp=3"][..]), ("llama", &["cp=2", "tp=2,cp=2", "fsdp=2"])]
    {
        let want = written(model, "dp=1");
        for mesh in meshes {
            assert_eq!(written(model, mesh), want, "{model} {mesh}");
        }
    }
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
}

/// Of llama, dropout was once taken and not used.
#[test]
fn dropout_changes_what_is_learnt_and_is_the_same_on_every_mesh() {
    let scratch = Scratch::new();
    for model in ["gpt", "llama"] {
        let run = |more: &str| {
            let more = format!("--steps 4 --model {model} {more}");
            losses(&steps(&scratch.join("dropout"), &more))
        };
        let want = run("--mesh dp=1 --dropout 0.3");
        let without = run("--mesh dp=1");
        assert!(want.iter().zip(&without).all(|(with, without)| with != without), "{model}");
        for mesh in [
            "dp=2",
            "fsdp=3",
            "tp=2",
            "tp=2 --parallel tp+sp",
            "cp=2",
            "cp=3",
            "fsdp=2,tp=2 --recompute",
            "cp=2,tp=2 --parallel cp+tp+sp",
            "dp=2,cp=2",
        ] {
            assert_close(&run(&format!("--dropout 0.3 --mesh {mesh}")), &want, 2e-5);
        }
    }
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
fn a_profile_has_what_every_rank_did() {
    let scratch = Scratch::new();
    let path = scratch.join("trace.json");
    let run = |more: &str| {
        steps(&scratch.join("a"), &format!("--mesh fsdp=2,tp=2 --profile {path} {more}"));
        let trace: Value = serde_json::from_str(&fs::read_to_string(&path).unwrap()).unwrap();
        trace["traceEvents"].as_array().unwrap().clone()
    };
    let events = run("--steps 3 --accumulate 2");
    for rank in 0..4 {
        let own: Vec<&Value> = events.iter().filter(|event| event["pid"] == rank).collect();
        let of = |name: &str| -> Vec<(f64, f64)> {
            let named = own.iter().filter(|event| event["name"] == name && event["ph"] == "X");
            let times = named.map(|event| {
                let time = |key: &str| event[key].as_f64().unwrap();
                (time("ts"), time("ts") + time("dur"))
            });
            times.collect()
        };
        assert!(own.iter().any(|event| event["args"]["name"] == format!("rank {rank}")));
        for (name, times) in [
            ("step 0", 1),
            ("step 2", 1),
            ("forward", 6),
            ("backward", 6),
            ("optimizer", 3),
            // There; the way back is in one span or in several.
            ("layers.0.attn.wq", 6),
        ] {
            assert!(of(name).len() >= times, "{name} of rank {rank}: {:?}", of(name));
        }
        for kind in ["all_gather", "reduce_scatter", "all_reduce"] {
            assert!(!of(kind).is_empty(), "{kind} of rank {rank}");
        }
        // Times of all parts are from one beginning.
        let (step, forward) = (of("step 1")[0], of("forward")[2]);
        assert!(step.0 <= forward.0 && forward.1 <= step.1, "{step:?} {forward:?}");
        let modules = of("layers.0.attn.wq");
        let within = modules.iter().filter(|time| forward.0 <= time.0 && time.1 <= forward.1);
        assert_eq!(within.count(), 1, "{modules:?} {forward:?}");
    }
    // Of many steps there are the last.
    let events = run("--steps 20");
    assert!(events.iter().any(|event| event["name"] == "step 19"));
    assert!(!events.iter().any(|event| event["name"] == "step 0"));
}

#[test]
fn a_run_without_a_step_has_no_profile_and_leaves_an_earlier_one() {
    let scratch = Scratch::new();
    let trace = scratch.join("trace.json");
    let more = format!("--steps 0 --mesh dp=2 --profile {trace}");
    steps(&scratch.join("a"), &more);
    assert!(!Path::new(&trace).exists());
    fs::write(&trace, "earlier").unwrap();
    steps(&scratch.join("a"), &more);
    assert_eq!(fs::read_to_string(&trace).unwrap(), "earlier");
}

/// Sums are in the same order every time, whoever comes first.
#[test]
fn a_run_is_the_same_to_the_last_bit_every_time() {
    let scratch = Scratch::new();
    for way in [
        "tp=2",
        "tp=2 --parallel tp+sp --dropout 0.2",
        "fsdp=2",
        "cp=2",
        "fsdp=2,tp=2 --dtype bf16",
        "cp=2,tp=2 --model llama",
    ] {
        let run = |out: &str| {
            let lines = steps(&scratch.join(out), &format!("--steps 8 --lr 0.01 --mesh {way}"));
            let both = |line: &Value| (line["loss"].clone(), line["grad_norm"].clone());
            lines.iter().map(both).collect::<Vec<_>>()
        };
        let first = run("a");
        for _ in 0..2 {
            assert_eq!(run("b"), first, "{way}");
        }
    }
}
