//! Runs whose losses are known.

use std::{fs, path::Path};

use serde_json::Value;

use super::support::Scratch;
use crate::support::{dtensor, json_lines};

#[test]
fn a_run_of_pytorch_is_replayed_on_every_mesh() {
    let golden = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/golden/train");
    for mesh in [
        "dp=1",
        "dp=2",
        "dp=3",
        "dp=4",
        "tp=2",
        "tp=3",
        "tp=4",
        "tp=2 --parallel tp+sp",
        "tp=3 --parallel tp+sp",
        "tp=4 --parallel tp+sp",
        "fsdp=2",
        "fsdp=3",
        "fsdp=4",
        "cp=2",
        "cp=3",
        "cp=4",
        "dp=2,tp=2",
        "dp=2,tp=2 --parallel fsdp+tp",
        "dp=2,tp=2 --parallel dp+tp+sp",
        "fsdp=2,tp=2",
        "fsdp=2,tp=2 --parallel fsdp+tp+sp",
        "dp=2,fsdp=2",
        "dp=2,fsdp=2 --recompute",
        "dp=2,cp=2",
        "fsdp=2,cp=2",
        "cp=2,tp=2",
        "cp=2,tp=2 --parallel cp+tp+sp",
        // The other axis first.
        "tp=2,dp=2",
        "tp=2,fsdp=2",
        "fsdp=2,dp=2",
        "cp=2,fsdp=2",
        "tp=2,cp=2 --parallel cp+tp+sp",
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
fn a_known_run_whose_files_do_not_fit_is_refused_by_name() {
    let golden = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/golden/train"));
    let scratch = Scratch::new();
    let copy = || {
        for entry in fs::read_dir(golden).unwrap() {
            let path = entry.unwrap().path();
            fs::copy(&path, scratch.0.join(path.file_name().unwrap())).unwrap();
        }
    };
    let replay =
        || dtensor(&["train", "--json", "--mesh", "tp=2", "--golden", scratch.0.to_str().unwrap()]);
    let edit = |file: &str, options: &str| {
        copy();
        let from = golden.join(file);
        let line =
            format!("ckpt convert {} {} --force {options}", from.display(), scratch.join(file));
        dtensor(&line.split(' ').collect::<Vec<_>>()).ok();
        replay().error(1)
    };
    for file in ["init.safetensors", "grads0.safetensors", "final.safetensors"] {
        let error = edit(file, "--exclude layers.1.w1.bias");
        assert!(error.contains(&format!("{file}: there is no `layers.1.w1.bias`")), "{error}");
        let error = edit(file, "--rename layers.1.w1.bias=layers.1.w1.extra");
        assert!(error.contains(file) && error.contains("`layers.1.w1.bias`"), "{error}");
    }
    // Of fewer layers, some weights are left over; of another width, they have other shapes.
    copy();
    let run = fs::read_to_string(golden.join("run.json")).unwrap();
    let mut json: Value = serde_json::from_str(&run).unwrap();
    json["layers"] = 1.into();
    fs::write(scratch.0.join("run.json"), json.to_string()).unwrap();
    let error = replay().error(1);
    assert!(error.contains("the model has no `layers.1."), "{error}");
    json["layers"] = 2.into();
    json["vocab"] = 3.into();
    fs::write(scratch.0.join("run.json"), json.to_string()).unwrap();
    let error = replay().error(1);
    assert!(error.contains("init.safetensors: `") && error.contains("the model wants"), "{error}");
}
