//! `dtensor ckpt`: every task on files of PyTorch and on its own.

use std::{
    env, fs,
    path::{Path, PathBuf},
    process::Command,
};

use serde_json::{Value, json};
use tempfile::TempDir;

use crate::support::{Ran, dtensor, json_lines, run};

/// A directory with checkpoints in it.
struct Place(TempDir);

impl Place {
    /// With `checkpoint`: what four ranks of PyTorch saved.
    fn new() -> Place {
        let place = Place(tempfile::tempdir().unwrap());
        fs::create_dir(place.path("checkpoint")).unwrap();
        for entry in fs::read_dir(golden("four_ranks/dcp")).unwrap() {
            let entry = entry.unwrap();
            fs::copy(entry.path(), place.path("checkpoint").join(entry.file_name())).unwrap();
        }
        place
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    /// Runs `dtensor ckpt` in it.
    fn ckpt(&self, args: &str) -> Ran {
        let mut command = Command::new(env!("CARGO_BIN_EXE_dtensor"));
        command.arg("ckpt").args(args.split(' ')).current_dir(self.0.path());
        run(&mut command, b"")
    }

    fn json(&self, args: &str) -> Value {
        let output = self.ckpt(&format!("{args} --json")).ok();
        let mut lines = json_lines(&output);
        assert_eq!(lines.len(), 1, "{output}");
        lines.remove(0)
    }

    /// The names of everything in it, hidden or not.
    fn names(&self) -> Vec<String> {
        let mut names: Vec<String> = fs::read_dir(self.0.path())
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        names
    }
}

fn golden(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../checkpoint/tests/golden").join(name)
}

/// A safetensors file with one tensor of `f32` per name.
fn write_safetensors(path: &Path, tensors: &[(&str, &[f32])]) {
    let (mut header, mut data) = (serde_json::Map::new(), Vec::new());
    for (name, numbers) in tensors {
        let start = data.len();
        data.extend(numbers.iter().flat_map(|number| number.to_le_bytes()));
        let about =
            json!({"dtype": "F32", "shape": [numbers.len()], "data_offsets": [start, data.len()]});
        header.insert((*name).into(), about);
    }
    let header = Value::Object(header).to_string();
    let length = (header.len() as u64).to_le_bytes();
    fs::write(path, [&length[..], header.as_bytes(), &data].concat()).unwrap();
}

#[test]
fn inspect_lists_tensors_with_their_shapes_and_sizes() {
    let place = Place::new();
    let output = place.ckpt("inspect checkpoint").ok();
    let lines: Vec<&str> = output.lines().collect();
    assert!(lines[0].starts_with("distcp (PyTorch), 4 files, "), "{output}");
    assert_eq!(lines[2], "name                     dtype  shape     size  shards  saved from");
    assert_eq!(lines[3], "buffers.double           f64    [3, 3]    72 B       2");
    assert!(
        lines
            .iter()
            .any(|line| line.starts_with("embed.weight             f32    [13, 8]  416 B       4"))
    );
    assert_eq!(*lines.last().unwrap(), "7 tensors, 263 elements, 1.04 KiB; 0 values");
}

#[test]
fn inspect_shows_a_tree_with_totals() {
    let place = Place::new();
    let output = place.ckpt("inspect checkpoint --tree").ok();
    let lines: Vec<&str> = output.lines().skip(2).collect();
    assert_eq!(
        lines[..11],
        [
            "name                tensors   size  dtype  shape",
            "├─ buffers                2  160 B",
            "│  ├─ double              1   72 B  f64    [3, 3]",
            "│  └─ steps               1   88 B  i64    [11]",
            "├─ embed.weight           1  416 B  f32    [13, 8]",
            "├─ head.weight            1   70 B  bf16   [5, 7]",
            "└─ layers.0               3  416 B",
            "   ├─ attn                2  384 B",
            "   │  ├─ wo.weight        1  192 B  f32    [6, 8]",
            "   │  └─ wq.weight        1  192 B  f32    [8, 6]",
            "   └─ norm.weight         1   32 B  f32    [8]",
        ],
        "{output}"
    );
    let shallow = place.ckpt("inspect checkpoint --tree --depth 1 --only *.weight").ok();
    assert!(shallow.contains("└─ layers        3  416 B\n"), "{shallow}");
    assert!(!shallow.contains("wq"), "{shallow}");
}

#[test]
fn inspect_tells_programs_where_everything_lies() {
    let place = Place::new();
    let answer = place.json("inspect checkpoint --only embed.*");
    assert_eq!(answer["total"], json!({"tensors": 1, "elements": 104, "bytes": 416}));
    let tensor = &answer["tensors"][0];
    assert_eq!((&tensor["dtype"], &tensor["shape"]), (&json!("f32"), &json!([13, 8])));
    let shards = tensor["shards"].as_array().unwrap();
    assert_eq!(shards.len(), 4);
    assert!(
        shards.iter().any(|shard| shard["offset"] == json!([7, 4]) && shard["checksum"] == "crc32")
    );
    let training = golden("torch_save/training.pt");
    let values =
        &json_lines(&dtensor(&["ckpt", "inspect", training.to_str().unwrap(), "--json"]).ok())[0];
    assert!(!values["values"].as_object().unwrap().is_empty());
}

#[test]
fn numbers_in_names_are_in_order_and_names_do_not_steer_the_terminal() {
    let place = Place::new();
    write_safetensors(
        &place.path("x.safetensors"),
        &[("l.10", &[1.0]), ("l.9", &[1.0]), ("\x1b[2J", &[1.0])],
    );
    let output = place.ckpt("inspect x.safetensors").ok();
    assert!(output.find("l.9").unwrap() < output.find("l.10").unwrap(), "{output}");
    assert!(!output.contains('\x1b') && output.contains("\\u{1b}[2J"), "{output}");
}

#[test]
fn verify_finds_a_flipped_bit_and_exits_with_one() {
    let place = Place::new();
    assert!(place.ckpt("verify checkpoint").ok().starts_with("whole: "));
    place.ckpt("convert checkpoint native --format native").ok();
    assert_eq!(place.json("verify native")["unverified_bytes"], 0);
    let shard = place.path("native/shard-00001-model-00001-of-00001.safetensors");
    let mut bytes = fs::read(&shard).unwrap();
    *bytes.last_mut().unwrap() ^= 1;
    fs::write(&shard, bytes).unwrap();
    let ran = place.ckpt("verify native");
    assert_eq!((ran.code, ran.stderr.as_str()), (1, ""));
    assert!(ran.stdout.contains("is damaged: `head.weight`"), "{}", ran.stdout);
    assert!(ran.stdout.contains("DAMAGED in 1 place"), "{}", ran.stdout);
    let ran = place.ckpt("verify native --json");
    assert_eq!((ran.code, &json_lines(&ran.stdout)[0]["whole"]), (1, &json!(false)));
    // What is damaged is not converted either.
    let message = place.ckpt("convert native whole.safetensors").error(1);
    assert!(message.contains("is damaged"), "{message}");
    assert_eq!(place.names(), ["checkpoint", "native"]);
    place.ckpt("convert native whole.safetensors --no-verify").ok();
}

#[test]
fn verify_reports_headers_and_manifests_that_are_damaged() {
    let place = Place::new();
    place.ckpt("reshard checkpoint native --mesh dp=3").ok();
    let flip = |name: &str, at: usize| {
        let path = place.path("native").join(name);
        let mut bytes = fs::read(&path).unwrap();
        bytes[at] ^= 1;
        fs::write(&path, bytes).unwrap();
    };
    let shard = |rank: usize| format!("shard-{rank:05}-model-00001-of-00001.safetensors");
    let verify = || {
        let ran = place.ckpt("verify native --json");
        assert_eq!((ran.code, ran.stderr.as_str()), (1, ""), "{}", ran.stdout);
        let report = json_lines(&ran.stdout).remove(0);
        assert_eq!(report["whole"], json!(false));
        let damage = report["damage"].as_array().unwrap().iter();
        damage.map(|text| text.as_str().unwrap().to_owned()).collect::<Vec<_>>()
    };
    // All headers that are damaged, and not only the first.
    flip(&shard(1), 20);
    flip(&shard(3), 20);
    let damage = verify();
    assert_eq!(damage.len(), 2, "{damage:?}");
    assert!(damage[0].contains(&shard(1)) && damage[1].contains(&shard(3)), "{damage:?}");
    let ran = place.ckpt("verify native");
    assert!(ran.stdout.contains("DAMAGED in 2 places"), "{}", ran.stdout);
    flip("dtensor.manifest.json", 100);
    let damage = verify();
    assert_eq!(damage.len(), 1, "{damage:?}");
    assert!(damage[0].contains("`dtensor.manifest.json` is damaged"), "{damage:?}");
    // What is not there at all is no damage.
    place.ckpt("verify nowhere --json").error(1);
    // Nor need it be one of ours.
    let mut bytes = fs::read(place.path("checkpoint/.metadata")).unwrap();
    bytes.truncate(50);
    fs::write(place.path("checkpoint/.metadata"), bytes).unwrap();
    let ran = place.ckpt("verify checkpoint");
    assert_eq!((ran.code, ran.stderr.as_str()), (1, ""));
    assert!(ran.stdout.contains("DAMAGED in 1 place"), "{}", ran.stdout);
}

#[test]
fn the_work_is_shared_by_as_many_as_are_asked_for_and_the_answer_is_the_same() {
    let place = Place::new();
    let mut answers = Vec::new();
    for ranks in ["--ranks 1", "--ranks 3", "--threads 7"] {
        place.ckpt(&format!("reshard checkpoint native --mesh dp=3 --force {ranks}")).ok();
        place.ckpt(&format!("convert native whole.safetensors --force {ranks}")).ok();
        let file = fs::read(place.path("whole.safetensors")).unwrap();
        let verified = place.json(&format!("verify native {ranks}"));
        let diff = place.json(&format!("diff native whole.safetensors --all {ranks}"));
        answers.push((file, verified, diff));
    }
    assert!(answers.iter().all(|answer| *answer == answers[0]));
    assert_eq!(answers[0].1["whole"], json!(true));
    let help = place.ckpt("verify --help").ok();
    assert!(help.contains("--ranks") && help.contains("mpirun"), "{help}");
}

#[test]
fn convert_writes_files_that_are_equal_to_what_they_come_from() {
    let place = Place::new();
    let said = place.ckpt("convert checkpoint model.safetensors").ok();
    assert_eq!(said, "model.safetensors: 7 tensors, 0 values, 1.04 KiB in 1 file\n");
    let said = place.json("consolidate checkpoint again.safetensors");
    assert_eq!(said["files"][0]["name"], "again.safetensors");
    fs::remove_file(place.path("again.safetensors")).unwrap();
    assert_eq!(place.ckpt("diff checkpoint model.safetensors").ok(), "equal: 7 tensors\n");
    let truth = golden("four_ranks/full.safetensors");
    let again = format!("diff model.safetensors {}", truth.display());
    assert_eq!(place.ckpt(&again).ok(), "equal: 7 tensors\n");
    let hub = place.json("convert checkpoint hub --max-shard-size 500 --dtype bf16 --threads 2");
    assert_eq!((&hub["bytes"], &hub["files"].as_array().unwrap().len()), (&json!(592), &2));
    assert!(place.path("hub/model.safetensors.index.json").exists());
    let types = place.json("inspect hub");
    let is = |name: &str| {
        let tensors = types["tensors"].as_array().unwrap();
        tensors.iter().find(|tensor| tensor["name"] == name).unwrap()["dtype"].clone()
    };
    assert_eq!((is("embed.weight"), is("buffers.steps")), (json!("bf16"), json!("i64")));
    assert_eq!(place.names(), ["checkpoint", "hub", "model.safetensors"]);
}

#[test]
fn names_are_selected_and_changed() {
    let place = Place::new();
    let args = "convert checkpoint w.safetensors --only layers.* --exclude *norm* --rename layers.*.attn.*=h.*.*";
    place.ckpt(args).ok();
    let tensors = place.json("inspect w.safetensors")["tensors"].clone();
    let names: Vec<&str> =
        tensors.as_array().unwrap().iter().map(|one| one["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["h.0.wo.weight", "h.0.wq.weight"]);
}

#[test]
fn consolidate_and_reshard_lead_there_and_back() {
    let place = Place::new();
    let said = place.ckpt("reshard checkpoint eight --mesh dp=4,tp=2").ok();
    assert_eq!(said, "eight: 7 tensors, 0 values, 1.04 KiB in 8 files\n");
    let layout = place.json("inspect eight")["tensors"][0]["layout"].clone();
    assert_eq!(layout, "[S(0), R] on dp=4,tp=2");
    place.ckpt("consolidate eight whole.safetensors").ok();
    assert_eq!(place.ckpt("diff checkpoint whole.safetensors").ok(), "equal: 7 tensors\n");
    fs::write(place.path("plan.toml"), "\"*.w?.weight\" = \"[R, S(1)]\" # no\n").unwrap();
    let message = place.ckpt("reshard checkpoint x --mesh dp=2,tp=2 --plan plan.toml").error(2);
    assert!(message.contains("no name matches `*.w?.weight`"), "{message}");
    fs::write(place.path("plan.toml"), "\"*.attn.*\" = \"[R, S(1)]\"\n").unwrap();
    place.ckpt("reshard checkpoint x --mesh dp=2,tp=2 --plan plan.toml").ok();
    assert_eq!(place.ckpt("diff x eight").ok(), "equal: 7 tensors\n");
}

#[test]
fn diff_tells_what_differs_and_exits_with_one() {
    let place = Place::new();
    write_safetensors(
        &place.path("a.safetensors"),
        &[("w", &[1.0, 2.0]), ("a", &[1.0]), ("s", &[1.0])],
    );
    write_safetensors(
        &place.path("b.safetensors"),
        &[("w", &[1.0, 2.5]), ("b", &[1.0]), ("s", &[1.0, 2.0])],
    );
    let ran = place.ckpt("diff a.safetensors b.safetensors");
    assert_eq!((ran.code, ran.stderr.as_str()), (1, ""));
    assert_eq!(
        ran.stdout,
        "\
name                       max abs   max rel  beyond  NaN in one
a     only in the first
b     only in the second
s     [1] / [2]
w     elements differ     5.000e-1  2.000e-1       1           0
4 of 4 tensors and 0 values differ
"
    );
    let ran = place.ckpt("diff a.safetensors b.safetensors --json --only w");
    let answer = &json_lines(&ran.stdout)[0];
    assert_eq!(
        (ran.code, &answer["equal"], &answer["tensors"][0]["max_abs"]),
        (1, &json!(false), &json!(0.5))
    );
    assert_eq!(
        place.ckpt("diff a.safetensors b.safetensors --only w --rtol 0.2").ok(),
        "equal: 1 tensor\n"
    );
    assert_eq!(
        place.ckpt("diff a.safetensors b.safetensors --only w --atol 0.5").ok(),
        "equal: 1 tensor\n"
    );
    place.ckpt("convert a.safetensors h.safetensors --dtype f16").ok();
    assert_eq!(place.ckpt("diff a.safetensors h.safetensors").code, 1);
    assert_eq!(
        place.ckpt("diff a.safetensors h.safetensors --ignore-dtype").ok(),
        "equal: 3 tensors\n"
    );
}

#[test]
fn mistakes_are_one_block_with_the_way_out() {
    let place = Place::new();
    write_safetensors(&place.path("x.safetensors"), &[("w", &[1.0])]);
    write_safetensors(&place.path("y.safetensors"), &[("w", &[2.0])]);
    let before = place.names();
    let wrong = |args: &str, code: i32, want: &str| {
        let message = place.ckpt(args).error(code);
        assert!(message.contains(want), "{args}: {message}");
        assert_eq!(place.names(), before, "{args}");
    };
    wrong("inspect nowhere", 1, "nowhere");
    wrong("inspect .", 1, "remove what is stale");
    wrong("inspect x.safetensors --only v", 2, "no name matches `v`; there are `w`");
    wrong("inspect x.safetensors --depth 2", 2, "--tree");
    wrong("convert x.safetensors y.safetensors", 1, "hint: --force replaces it");
    wrong("convert x.safetensors x.safetensors --force", 2, "choose another place");
    wrong("convert x.safetensors z --dtype i8", 2, "give one of f8_e4m3");
    wrong("convert x.safetensors z --rename w", 2, "write old=new");
    wrong("convert x.safetensors z --rename w=a.*", 2, "the old name has 0 `*`");
    wrong(
        "convert x.safetensors z --format native --max-shard-size 1GB",
        2,
        "hint: dtensor ckpt reshard",
    );
    wrong("convert x.safetensors z.safetensors --max-shard-size lots", 2, "not a number of bytes");
    wrong("convert x.safetensors no/such/z", 1, "no/such");
    wrong("convert x.safetensors s3://bucket/z", 1, "s3://bucket/z");
    wrong("reshard x.safetensors z", 2, "--mesh");
    wrong("reshard x.safetensors z --mesh dp=0", 2, "--mesh");
    wrong("reshard x.safetensors z --mesh dp=2 --plan nowhere", 1, "--plan nowhere");
    wrong("reshard x.safetensors checkpoint --mesh dp=2 --force", 1, "would be lost");
    wrong("diff x.safetensors y.safetensors --atol x", 2, "--atol");
    wrong("diff x.safetensors", 2, "<B>");
    wrong("nonsense", 2, "nonsense");
    fs::write(place.path("checkpoint/.metadata"), "garbage").unwrap();
    wrong("inspect checkpoint", 1, ".metadata");
}

#[test]
fn every_example_in_the_help_runs() {
    let place = Place::new();
    let program = Path::new(env!("CARGO_BIN_EXE_dtensor"));
    let mut path = vec![program.parent().unwrap().to_path_buf()];
    path.extend(env::split_paths(&env::var_os("PATH").unwrap()));
    let path = env::join_paths(path).unwrap();
    let mut n_examples = 0;
    place.ckpt("convert checkpoint half.safetensors --dtype bf16").ok();
    for task in ["convert", "consolidate", "reshard", "inspect", "verify", "diff"] {
        let help = dtensor(&["ckpt", task, "--help"]).ok();
        let (_, examples) = help.split_once("Examples:").unwrap();
        for example in examples.lines().filter_map(|line| line.strip_prefix("    ")) {
            assert!(
                example.starts_with("dtensor ") || example.starts_with("echo "),
                "wrapped: {example}"
            );
            let mut shell = Command::new("sh");
            shell.args(["-c", example]).current_dir(place.path("")).env("PATH", &path);
            let ran = run(&mut shell, b"");
            assert_eq!((ran.code, ran.stderr.as_str()), (0, ""), "{example}: {}", ran.stdout);
            n_examples += 1;
        }
    }
    assert_eq!(n_examples, 5 + 1 + 3 + 3 + 1 + 3);
}
