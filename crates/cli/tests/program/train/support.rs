//! Runs of tiny models.

use std::{
    fs,
    path::PathBuf,
    sync::atomic::{AtomicUsize, Ordering},
};

use serde_json::Value;

use crate::support::{Ran, dtensor, json_lines};

/// A directory that goes with it.
pub struct Scratch(pub PathBuf);

impl Scratch {
    pub fn new() -> Scratch {
        static NEXT: AtomicUsize = AtomicUsize::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let path =
            std::env::temp_dir().join(format!("dtensor-train-{}-{number}", std::process::id()));
        fs::create_dir_all(&path).unwrap();
        Scratch(path)
    }

    pub fn join(&self, name: &str) -> String {
        self.0.join(name).to_str().unwrap().to_owned()
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

pub const TINY: &str = "train --json --layers 1 --dim 16 --heads 2 --seq 16 --batch 4 --out";

/// A run of a tiny model into a directory.
pub fn tiny(out: &str, more: &str) -> Ran {
    let mut args: Vec<&str> = TINY.split(' ').collect();
    args.push(out);
    args.extend(more.split_whitespace());
    dtensor(&args)
}

/// A run of a tiny model that is for people: what it says at the end, and on the way.
pub fn told(out: &str, more: &str) -> (String, String) {
    let line = TINY.replace(" --json", "");
    let ran = dtensor(&line.split(' ').chain([out]).chain(more.split(' ')).collect::<Vec<_>>());
    assert_eq!(ran.code, 0, "{}", ran.stderr);
    (ran.stdout, ran.stderr)
}

/// Its steps.
pub fn steps(out: &str, more: &str) -> Vec<Value> {
    json_lines(&tiny(out, more).ok())
}

pub fn losses(lines: &[Value]) -> Vec<f64> {
    lines.iter().map(|line| line["loss"].as_f64().unwrap()).collect()
}

#[track_caller]
pub fn assert_close(got: &[f64], want: &[f64], part: f64) {
    assert_eq!(got.len(), want.len());
    for (got, want) in got.iter().zip(want) {
        assert!(((got - want) / want).abs() <= part, "{got} {want}");
    }
}
