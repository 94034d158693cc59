//! Golden files cut off everywhere and changed at random: an error or a catalog, and never anything else.
//!
//! Files in memory panic if a byte outside of them is asked for.

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    process::Command,
};

use dtensor_checkpoint::Catalog;

use crate::{
    formats_support::{Memory, bytes_of, refusal},
    hostile_pickle::bombs,
    hostile_support::saved,
};

/// Every kind of file that is parsed.
const GOLDEN: [&str; 13] = [
    "four_ranks/dcp",
    "four_ranks/hf",
    "four_ranks/full.safetensors",
    "hf_index",
    "distcp_nested",
    "distcp_files",
    "torch_save/training.pt",
    "torch_save/views.bin",
    "torch_save/values.pt",
    "torch_save/protocol4.pt",
    "torch_save/dtypes.pth",
    "torch_save/without_crc.pt",
    "sharded_tensors",
];

/// Opens what may be broken, and reads all of it if it is not.
fn open(memory: &Memory, what: impl Fn() -> String) -> bool {
    let result = catch_unwind(AssertUnwindSafe(|| {
        let Ok(catalog) = Catalog::open(memory) else { return false };
        let total: u64 = catalog.tensors.values().map(|entry| entry.bytes()).sum();
        assert!(total < 64 << 20, "{total} bytes of tensors");
        if total < 1 << 20 {
            for entry in catalog.tensors.values() {
                bytes_of(memory, &catalog, entry);
            }
        }
        true
    }));
    result.unwrap_or_else(|_| panic!("{}", what()))
}

/// Random numbers that are the same in every run.
pub struct Random(pub u64);

impl Random {
    pub fn below(&mut self, limit: usize) -> usize {
        self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        ((self.0 >> 33) as usize) % limit
    }
}

/// Some bytes changed, doubled, removed, or overwritten by numbers that are often wrong.
pub fn mutated(bytes: &[u8], random: &mut Random) -> Vec<u8> {
    let mut bytes = bytes.to_vec();
    for _ in 0..=random.below(3) {
        if bytes.is_empty() {
            break;
        }
        let at = random.below(bytes.len());
        match random.below(6) {
            0 => bytes[at] ^= 1 << random.below(8),
            1 => bytes[at] = random.below(256) as u8,
            2 => bytes[at] = [0, 1, 0x7f, 0x80, 0xff][random.below(5)],
            3 => {
                let end = (at + 1 + random.below(8)).min(bytes.len());
                bytes[at..end].fill([0, 0xff][random.below(2)]);
            }
            4 => {
                let end = (at + 1 + random.below(32)).min(bytes.len());
                bytes.drain(at..end);
            }
            _ => {
                let end = (at + 1 + random.below(32)).min(bytes.len());
                let part = bytes[at..end].to_vec();
                let to = random.below(bytes.len());
                bytes.splice(to..to, part);
            }
        }
    }
    bytes
}

#[test]
fn a_file_that_is_cut_off_anywhere_is_an_error() {
    for name in GOLDEN {
        let memory = Memory::golden(name);
        for (file, bytes) in &memory.0 {
            // The metadata know the lengths of archives, so that all cuts of them are the same.
            let step = if file.ends_with(".distcp") { 61 } else { 1 };
            for length in (0..bytes.len()).step_by(step) {
                let cut = memory.clone().with(file, bytes[..length].to_vec());
                let opened = open(&cut, || format!("{name}/{file} cut off at {length}"));
                assert!(!opened, "{name}/{file} was opened with {length} of {} bytes", bytes.len());
            }
        }
    }
}

/// All that is changed at random, so many times each.
fn mutate_everything(rounds: usize) {
    let mut random = Random(1);
    for name in GOLDEN {
        let memory = Memory::golden(name);
        for (file, bytes) in &memory.0 {
            for round in 0..rounds {
                let changed = memory.clone().with(file, mutated(bytes, &mut random));
                open(&changed, || format!("{name}/{file}, round {round}"));
            }
        }
    }
    // Checksums guard the pickles of archives; here they are right.
    for name in ["training.pt", "values.pt", "protocol4.pt", "views.bin"] {
        let memory = Memory::golden(&format!("torch_save/{name}"));
        let (pickle, storages) = unpacked(&memory.0[name]);
        let storages: Vec<(&str, Vec<u8>)> =
            storages.iter().map(|(key, data)| (key.as_str(), data.clone())).collect();
        let mut opened = 0;
        for round in 0..5 * rounds {
            let file = saved(mutated(&pickle, &mut random), &storages);
            let changed = Memory::of([("x.pt", file)]);
            opened += usize::from(open(&changed, || format!("pickle of {name}, round {round}")));
        }
        assert!(opened > 0, "no change of {name} was harmless: these tests test nothing");
    }
}

/// The pickle and the storages of a file of `torch.save`, by its local headers.
fn unpacked(bytes: &[u8]) -> (Vec<u8>, Vec<(String, Vec<u8>)>) {
    let (mut pickle, mut storages) = (Vec::new(), Vec::new());
    let mut at = 0;
    while bytes[at..].starts_with(b"PK\x03\x04") {
        let number = |from: usize| usize::from(u16::from_le_bytes([bytes[from], bytes[from + 1]]));
        let (name_length, extra) = (number(at + 26), number(at + 28));
        let name = std::str::from_utf8(&bytes[at + 30..at + 30 + name_length]).unwrap();
        let start = at + 30 + name_length + extra;
        // The descriptor after the data says how long they were.
        let end = (start..).find(|&end| {
            let length = bytes[end + 8..end + 12].try_into().map(u32::from_le_bytes).unwrap();
            bytes[end..].starts_with(b"PK\x07\x08") && length as usize == end - start
        });
        let end = end.unwrap();
        let data = bytes[start..end].to_vec();
        match name.split_once('/').unwrap().1 {
            "data.pkl" => pickle = data,
            name => {
                storages.extend(name.strip_prefix("data/").map(|key| (key.to_owned(), data)));
            }
        }
        at = end + 16;
    }
    assert!(!pickle.is_empty());
    (pickle, storages)
}

#[test]
fn random_changes_are_an_error_or_a_catalog() {
    mutate_everything(150);
}

#[cfg(target_os = "linux")]
#[test]
fn hostile_files_take_little_memory() {
    const CHILD: &str = "DTENSOR_TEST_HOSTILE_CHILD";
    if std::env::var_os(CHILD).is_some() {
        mutate_everything(20);
        for bomb in bombs() {
            refusal(&bomb);
        }
        return println!("peak {}", peak_memory());
    }
    // In a process of its own, where no other test takes memory.
    let this = "hostile_mutations::hostile_files_take_little_memory";
    let mut child = Command::new(std::env::current_exe().unwrap());
    let output = child.args(["--exact", this, "--nocapture"]).env(CHILD, "1").output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    let peak = text.lines().find_map(|line| line.split_once("peak ")?.1.trim().parse::<u64>().ok());
    let peak = peak.unwrap_or_else(|| panic!("{output:?}"));
    assert!(peak < 64 << 20, "{peak} bytes");
}

/// The most memory that this process has ever held, in bytes.
#[cfg(target_os = "linux")]
fn peak_memory() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    line.trim().strip_suffix(" kB").unwrap().trim().parse::<u64>().unwrap() * 1024
}
