//! The documents at the root say what is so: their links lead somewhere, and the table of
//! dependencies is that of the manifests.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "so a test fails")]

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
};

fn workspace() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().to_path_buf()
}

fn read(path: impl AsRef<Path>) -> String {
    let path = workspace().join(path);
    fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

fn names_in(dir: &str) -> Vec<String> {
    let entries = fs::read_dir(workspace().join(dir)).unwrap();
    entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
}

/// The dependencies, of every kind, that a manifest names.
fn dependencies(manifest: &str) -> BTreeSet<String> {
    let mut in_dependencies = false;
    let mut names = BTreeSet::new();
    for line in manifest.lines().map(str::trim) {
        if let Some(section) = line.strip_prefix('[') {
            in_dependencies = section.trim_end_matches(']').ends_with("dependencies");
        } else if in_dependencies && !line.starts_with('#') {
            let name = line.split(['.', '=', ' ']).next().unwrap();
            names.extend((!name.is_empty()).then(|| name.to_string()));
        }
    }
    names
}

#[test]
fn dependencies_are_read_from_every_kind_of_section() {
    let manifest = "[package]\nname = \"x\"\n[dependencies]\n# Why.\na.workspace = true\n\n\
                    b = \"1\"\n[features]\nm = [\"dep:a\"]\n[target.x.dev-dependencies]\nc = { path = \"c\" }\n";
    let names: Vec<String> = dependencies(manifest).into_iter().collect();
    assert_eq!(names, ["a", "b", "c"]);
}

#[test]
fn every_dependency_has_its_reason_in_the_table() {
    let mut used = BTreeSet::new();
    for name in names_in("crates") {
        let manifest = Path::new("crates").join(name).join("Cargo.toml");
        used.extend(dependencies(&read(manifest)));
    }
    used.retain(|name| !name.starts_with("dtensor"));

    let page = read("ARCHITECTURE.md");
    let (_, section) = page.split_once("## Dependencies").expect("the section of dependencies");
    let (section, _) = section.split_once("\n## ").unwrap_or((section, ""));
    let explained: BTreeSet<String> = section
        .lines()
        .filter_map(|line| Some(line.strip_prefix("| `")?.split_once('`')?.0.to_string()))
        .collect();

    assert_eq!(used, explained, "left: the manifests, right: the table in ARCHITECTURE.md");
}

#[test]
fn xtask_depends_on_nothing() {
    assert_eq!(dependencies(&read("xtask/Cargo.toml")), BTreeSet::new());
}

#[test]
fn every_link_to_a_file_leads_to_one() {
    let pages: Vec<String> =
        names_in(".").into_iter().filter(|name| name.ends_with(".md")).collect();
    assert!(!pages.is_empty());
    for page in pages {
        let text = read(&page);
        for link in text.split("](").skip(1).filter_map(|rest| Some(rest.split_once(')')?.0)) {
            let file = link.split('#').next().unwrap();
            if file.contains("://") || file.is_empty() {
                continue;
            }
            assert!(workspace().join(file).exists(), "{page} links to {file}, which is not there");
        }
    }
}

#[test]
fn the_programs_of_the_readme_are_the_examples_that_are_compiled() {
    let readme = read("README.md");
    let programs: Vec<&str> = readme
        .split("```rust\n")
        .skip(1)
        .map(|rest| rest.split_once("```").expect("its end").0)
        .collect();
    let examples =
        ["hello", "model", "sharded"].map(|name| read(format!("crates/cli/examples/{name}.rs")));
    // An example has a header that the README does not need.
    let examples = examples.each_ref().map(|text| text.split_once("\n\n").expect("a header").1);
    assert_eq!(programs, examples);
}
