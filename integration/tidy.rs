//! What the tree itself has to keep: every file says why it exists, tests stand in folders, and whoever ships the binary may.

use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;
use tidegate::engine::key::IDENTIFIER_BYTES_MAX;
use tidegate::engine::table::weight::{KEY_BYTES, SHARED_KEY_BYTES};

const ROOT: &str = env!("CARGO_MANIFEST_DIR");
const CRATES_IO: &str = "registry+https://github.com/rust-lang/crates.io-index";

/// All files below a folder.
fn files_below(folder: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
    let mut files = Vec::new();
    for path in entries.map(|entry| entry.unwrap().path()) {
        match path.is_dir() {
            true => files.extend(files_below(&path)),
            false => files.push(path),
        }
    }
    files.sort();
    files
}

fn has_ending(path: &Path, ending: &str) -> bool {
    path.extension().is_some_and(|extension| extension == ending)
}

#[test]
fn every_file_begins_with_why_it_exists() {
    let folders = ["src", "integration", "benches", "proto/src"].map(|folder| Path::new(ROOT).join(folder));
    let files: Vec<PathBuf> = folders.iter().flat_map(|folder| files_below(folder)).collect();
    let sources: Vec<&PathBuf> = files.iter().filter(|path| has_ending(path, "rs")).collect();
    assert!(sources.len() > 300, "only {} sources were found", sources.len());
    let says_why = |path: &&&PathBuf| std::fs::read_to_string(path).unwrap().starts_with("//! ");
    let silent: Vec<&&PathBuf> = sources.iter().filter(|path| !says_why(path)).collect();
    assert!(silent.is_empty(), "they do not begin with //! and what they are for: {silent:?}");
}

#[test]
fn tests_stand_in_folders_and_rule_directories_hold_rules() {
    let flat = std::fs::read_dir(Path::new(ROOT).join("integration")).unwrap().map(|entry| entry.unwrap().path());
    let flat: Vec<PathBuf> = flat.filter(|path| path.is_file()).collect();
    let may_be_flat = |path: &PathBuf| ["main.rs", "tidy.rs"].contains(&path.file_name().unwrap().to_str().unwrap());
    assert!(flat.iter().all(may_be_flat), "give them a folder: {flat:?}");
    for path in files_below(&Path::new(ROOT).join("config")) {
        assert!(has_ending(&path, "yaml"), "{}: operators copy config/, which holds rules", path.display());
    }
}

/// One place says what a key takes, and the program goes by it.
#[test]
fn what_a_key_takes_is_said_as_the_cap_counts_it() {
    let page = |name: &str| std::fs::read_to_string(Path::new(ROOT).join(name)).unwrap();
    let table = page("docs/operations.md");
    for row in [
        format!("| of this process alone | {KEY_BYTES} |"),
        format!("| shared through Redis or MySQL | {SHARED_KEY_BYTES} |"),
        format!("come to 39 to {IDENTIFIER_BYTES_MAX} bytes |"),
    ] {
        assert!(table.contains(&row), "docs/operations.md lacks: {row}");
    }
    let short = format!("about {KEY_BYTES} bytes each, {SHARED_KEY_BYTES} with Redis or MySQL");
    let places = ["README.md", "docs/settings.md", "k8s/base/deployment.yaml", "k8s/overlays/sidecar/deployment.yaml"];
    for place in places {
        assert!(page(place).contains(&short), "{place} lacks: {short}");
    }
}

/// The licenses that `deny.toml` allows: the texts in quotes of its list.
fn allowed_licenses() -> Vec<String> {
    let text = std::fs::read_to_string(Path::new(ROOT).join("deny.toml")).unwrap();
    let list = text.split_once("allow = [").expect("a list of licenses").1.split_once(']').expect("its end").0;
    list.lines().filter_map(|line| Some(line.trim().strip_prefix('"')?.split_once('"')?.0.to_owned())).collect()
}

/// Whether somebody who keeps the allowed licenses keeps this expression. Old manifests write `/` for OR.
fn is_allowed(expression: &str, allowed: &[String]) -> bool {
    let spaced = expression.replace('/', " OR ").replace('(', " ( ").replace(')', " ) ");
    let mut words = spaced.split_whitespace().peekable();
    let is_kept = any_of(&mut words, allowed);
    assert!(words.peek().is_none(), "{expression}: what is {:?}?", words.peek());
    is_kept
}

type Words<'a> = std::iter::Peekable<std::str::SplitWhitespace<'a>>;

fn any_of(words: &mut Words<'_>, allowed: &[String]) -> bool {
    let mut is_kept = all_of(words, allowed);
    while words.next_if_eq(&"OR").is_some() {
        is_kept |= all_of(words, allowed);
    }
    is_kept
}

fn all_of(words: &mut Words<'_>, allowed: &[String]) -> bool {
    let mut is_kept = one(words, allowed);
    while words.next_if_eq(&"AND").is_some() {
        is_kept &= one(words, allowed);
    }
    is_kept
}

fn one(words: &mut Words<'_>, allowed: &[String]) -> bool {
    let mut name = words.next().expect("a license").to_owned();
    if name == "(" {
        let is_kept = any_of(words, allowed);
        assert_eq!(words.next(), Some(")"));
        return is_kept;
    }
    if words.next_if_eq(&"WITH").is_some() {
        name = format!("{name} WITH {}", words.next().expect("an exception"));
    }
    allowed.contains(&name)
}

#[test]
fn expressions_of_licenses_are_understood() {
    let allowed = ["MIT", "ISC", "Apache-2.0 WITH LLVM-exception"].map(str::to_owned);
    for good in ["MIT", "GPL-3.0 OR MIT", "MIT/Apache-2.0", "(MIT OR X) AND ISC", "X OR Apache-2.0 WITH LLVM-exception"]
    {
        assert!(is_allowed(good, &allowed), "{good}");
    }
    for bad in ["GPL-3.0", "MIT AND GPL-3.0", "Apache-2.0", "(X OR Y) AND MIT", "X OR ISC AND Y"] {
        assert!(!is_allowed(bad, &allowed), "{bad}");
    }
}

/// What `cargo deny check licenses sources` says, without ten minutes of compiling it first; `make deny` runs the real one.
#[test]
fn dependencies_come_from_crates_io_under_licenses_that_anybody_may_ship() {
    let arguments = ["metadata", "--locked", "--format-version=1", "--filter-platform=x86_64-unknown-linux-gnu"];
    let output = Command::new(env!("CARGO")).args(arguments).current_dir(ROOT).output().expect("cargo runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let metadata: Value = serde_json::from_slice(&output.stdout).unwrap();
    let text = |package: &Value, field: &str| package[field].as_str().unwrap_or_default().to_owned();
    let (packages, allowed) = (metadata["packages"].as_array().unwrap(), allowed_licenses());
    assert!(packages.len() > 200 && allowed.len() > 5, "{} packages, {allowed:?}", packages.len());
    for package in packages.iter().filter(|package| package["name"] != "tidegate") {
        let name = format!("{} {}", text(package, "name"), text(package, "version"));
        assert_eq!(text(package, "source"), CRATES_IO, "{name}");
        let license = text(package, "license");
        assert!(!license.is_empty() && is_allowed(&license, &allowed), "{name} has '{license}', see deny.toml");
    }
    let own = packages.iter().find(|package| package["name"] == "tidegate").unwrap();
    for dependency in own["dependencies"].as_array().unwrap() {
        assert_ne!(dependency["req"], "*", "{}: which version?", dependency["name"]);
    }
}

/// An invariant that no test names is one that nobody holds.
#[test]
fn every_invariant_is_held_by_a_test() {
    let page = std::fs::read_to_string(Path::new(ROOT).join("docs/develop.md")).unwrap();
    let ids: Vec<&str> = page.lines().filter_map(|line| line.strip_prefix("| INV-")?.split(' ').next()).collect();
    assert_eq!(ids.len(), 10, "docs/develop.md has a table of invariants");
    let folders = ["src", "integration"].map(|folder| Path::new(ROOT).join(folder));
    let sources = folders.iter().flat_map(|folder| files_below(folder)).filter(|path| has_ending(path, "rs"));
    let texts: Vec<String> = sources.map(|path| std::fs::read_to_string(path).unwrap()).collect();
    let is_named = |id: &str, text: &str| {
        text.split(&format!("INV-{id}")).skip(1).any(|rest| !rest.starts_with(|next: char| next.is_ascii_digit()))
    };
    for id in ids {
        assert!(texts.iter().any(|text| is_named(id, text)), "no test says that it holds INV-{id}");
    }
}

/// A doc comment is read where its item is used, far from the one before it.
#[test]
fn no_doc_comment_says_the_same() {
    let folders = ["src", "integration", "benches"].map(|folder| Path::new(ROOT).join(folder));
    for path in folders.iter().flat_map(|folder| files_below(folder)).filter(|path| has_ending(path, "rs")) {
        let text = std::fs::read_to_string(&path).unwrap();
        let vague = text.lines().position(|line| line.trim_start().starts_with("/// The same"));
        let line = vague.map(|line| line + 1);
        assert!(line.is_none(), "{}:{}: say what it is, not that it is the same", path.display(), line.unwrap_or(0));
    }
}
