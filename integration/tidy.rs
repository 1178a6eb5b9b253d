//! Rules that the tree itself has to keep: every file says why it exists, imports point one way, decisions are pure, tests
//! stand in folders, and licenses allow anybody to ship the binary.

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

/// Every part may use these, and they use nothing of the crate.
const LEAVES: [&str; 7] = ["clock", "complaints", "flag_value", "measure", "pem_file", "proto", "secret"];
/// Each part may use those before it, and the leaves.
const ORDER: [&str; 11] =
    ["request", "rules", "engine", "regional", "global", "sources", "observe", "server", "settings", "cli", "main"];
/// The simulator, the last part that it may use, and the only part that may use it besides tests. It runs the parts that decide
/// under virtual time, so it has no place in the order.
const SIMULATOR: (&str, &str, &str) = ("simulate", "global", "cli");
/// These parts get the time as an argument, and talk to nobody.
const PURE: [&str; 6] = ["engine", "global", "regional", "request", "rules", "simulate"];
/// The files that connect pure folders to clocks, servers and logs, by the beginning of their paths.
const DRIVERS: [&str; 6] =
    ["global/driver", "global/metrics.rs", "global/mysql", "regional/driver", "regional/metrics.rs", "regional/redis"];
/// Code that reads a clock, waits, talks to somebody or depends on chance.
const IMPURE: [&str; 13] = [
    "tokio::",
    "tracing::",
    "Instant::now",
    "SystemTime::now",
    "Moment::now",
    "wall_ms()",
    "std::fs",
    "std::net",
    "std::env",
    "std::thread",
    "rand::",
    ".await",
    "async ",
];

/// A line of the program that people run, without tests and comments.
struct Line {
    /// The path below `src/`.
    file: String,
    number: usize,
    text: String,
}

impl Line {
    /// The folder, or the file beside `lib.rs`, that the line is in.
    fn part(&self) -> &str {
        self.file.split(['/', '.']).next().unwrap()
    }

    /// The other parts of the crate that the line names.
    fn named_parts(&self) -> Vec<&str> {
        let after = ["crate::", "tidegate::"].into_iter().flat_map(|root| self.text.split(root).skip(1));
        let name = |rest: &'_ str| rest.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(rest.len());
        after.map(|rest| &rest[..name(rest)]).filter(|part| *part != self.part()).collect()
    }

    fn says(&self, what: &str) -> String {
        format!("\n  src/{}:{}: {what}: {}", self.file, self.number, self.text.trim())
    }
}

/// Whether only tests have a file: `tests.rs`, files in folders called `tests`, and modules declared under `#[cfg(test)]`.
fn is_test_file(file: &str, declared: &[String]) -> bool {
    file.ends_with("/tests.rs")
        || file.contains("/tests/")
        || declared.iter().any(|module| file == format!("{module}.rs") || file.starts_with(&format!("{module}/")))
}

/// The modules that a file declares under `#[cfg(test)]`, as paths without an ending.
fn test_modules(file: &str, text: &str) -> Vec<String> {
    let below = match file.rsplit_once('/') {
        Some((folder, "mod.rs")) => format!("{folder}/"),
        _ if file == "lib.rs" => String::new(),
        _ => format!("{}/", file.trim_end_matches(".rs")),
    };
    let lines: Vec<&str> = text.lines().map(str::trim).collect();
    let declared = lines.windows(2).filter(|pair| pair[0] == "#[cfg(test)]");
    let name = |pair: &[&str]| Some(pair[1].split_once("mod ")?.1.strip_suffix(';')?.to_owned());
    declared.filter_map(name).map(|name| format!("{below}{name}")).collect()
}

/// The lines of a file without comments and without items under `#[cfg(test)]`. rustfmt puts the end of an item under its
/// beginning, so the indentation shows where it is.
fn lines_of(file: &str, text: &str) -> Vec<Line> {
    let mut lines = (1..).zip(text.lines());
    let mut kept = Vec::new();
    while let Some((number, text)) = lines.next() {
        if text.trim() == "#[cfg(test)]" {
            let indent = &text[..text.len() - text.trim_start().len()];
            let ends = |line: &str| {
                let is_whole = line.ends_with([';', ',']) || line.ends_with("{}");
                line.strip_prefix(indent)
                    .is_some_and(|rest| rest.starts_with(['}', ')']) || (is_whole && !rest.starts_with(' ')))
            };
            let _ = lines.find(|(_, line)| ends(line));
        } else if !text.trim_start().starts_with("//") {
            kept.push(Line { file: file.to_owned(), number, text: text.to_owned() });
        }
    }
    kept
}

/// Every line of the program.
fn program() -> Vec<Line> {
    let root = Path::new(ROOT).join("src");
    let name = |path: &PathBuf| path.strip_prefix(&root).unwrap().to_str().unwrap().to_owned();
    let sources = files_below(&root).into_iter().filter(|path| has_ending(path, "rs"));
    let files: Vec<(String, String)> =
        sources.map(|path| (name(&path), std::fs::read_to_string(&path).unwrap())).collect();
    let declared: Vec<String> = files.iter().flat_map(|(file, text)| test_modules(file, text)).collect();
    // proto.rs is generated: its modules name each other as they like.
    let is_written = |file: &str| file != "proto.rs" && !is_test_file(file, &declared);
    let program = files.iter().filter(|(file, _)| is_written(file));
    program.flat_map(|(file, text)| lines_of(file, text)).collect()
}

/// Why a part may not use another; `None` if it may.
fn objection(part: &str, other: &str) -> Option<String> {
    let place = |name: &str| ORDER.iter().position(|part| *part == name);
    let (simulator, last, user) = SIMULATOR;
    if part == "lib" || LEAVES.contains(&other) && !LEAVES.contains(&part) {
        return None;
    }
    if LEAVES.contains(&part) {
        return Some(format!("{part} is a leaf and uses nothing of the crate"));
    }
    if other == simulator {
        return (part != user).then(|| format!("only {user} and tests use {simulator}"));
    }
    let Some(needed) = place(other) else { return Some(format!("{other} has no place in ORDER: give it one here")) };
    let (own, is_itself_allowed) = if part == simulator { (place(last)?, true) } else { (place(part)?, false) };
    let is_allowed = needed < own || (is_itself_allowed && needed == own);
    (!is_allowed).then(|| format!("{other} comes after {part}: move what is needed to {part}, or to what both may use"))
}

#[test]
fn dependencies_point_one_way() {
    let program = program();
    assert!(program.len() > 20_000, "only {} lines were found", program.len());
    let mut wrong = String::new();
    for line in &program {
        let known = [&LEAVES[..], &ORDER, &["lib", SIMULATOR.0]].concat();
        assert!(known.contains(&line.part()), "{} has no place in ORDER or LEAVES: give it one", line.part());
        for other in line.named_parts() {
            if other.is_empty() {
                wrong += &line.says("write one import for each part, so that they can be told apart");
            } else if let Some(why) = objection(line.part(), other) {
                wrong += &line.says(&why);
            }
        }
        let depth = line.file.trim_end_matches("/mod.rs").matches('/').count();
        if line.text.contains(&"super::".repeat(depth + 1)) {
            wrong += &line.says("this leaves the part unseen: write crate::");
        }
    }
    assert!(wrong.is_empty(), "imports against the order of src/lib.rs:{wrong}");
}

#[test]
fn pure_folders_read_no_clock_and_do_no_io() {
    let is_pure =
        |line: &&Line| PURE.contains(&line.part()) && !DRIVERS.iter().any(|driver| line.file.starts_with(driver));
    let mut wrong = String::new();
    for line in program().iter().filter(is_pure) {
        for word in IMPURE.iter().filter(|word| line.text.contains(*word)) {
            wrong += &line.says(&format!("{word} belongs to a driver, give the time or the answer as an argument"));
        }
        if line.text.contains("crate::clock") && !line.text.contains("crate::clock::Now;") {
            wrong += &line.says("only Now is a value, the rest of clock.rs reads clocks");
        }
    }
    assert!(wrong.is_empty(), "a decision has to be the same for the same arguments:{wrong}");
}

#[test]
fn tests_and_comments_are_no_part_of_the_program() {
    let text = "use a;\n// use b;\n#[cfg(test)]\nuse c;\n#[cfg(test)]\npub mod tested;\nfn d() {}\n\n#[cfg(test)]\nmod tests {\n    use e;\n}\nuse f;\n";
    let kept: Vec<String> = lines_of("x/mod.rs", text).into_iter().map(|line| line.text).collect();
    assert_eq!(kept, ["use a;", "fn d() {}", "", "use f;"]);
    assert_eq!(test_modules("x/mod.rs", text), ["x/tested"]);
    assert_eq!(test_modules("x/y.rs", text), ["x/y/tested"]);
    assert!(
        is_test_file("x/tested.rs", &["x/tested".to_owned()]) && !is_test_file("x/other.rs", &["x/tested".to_owned()])
    );
    let line = |text: &str| Line { file: "rules/limit.rs".into(), number: 1, text: text.into() };
    assert_eq!(line("use crate::engine::Engine;").named_parts(), ["engine"]);
    assert_eq!(line("use crate::{engine, rules};").named_parts(), [""]);
    assert_eq!(line("use crate::rules::lint;").named_parts(), [""; 0]);
}

#[test]
fn the_order_allows_what_comes_before_and_nothing_else() {
    for (part, other) in
        [("engine", "rules"), ("rules", "measure"), ("simulate", "global"), ("cli", "simulate"), ("main", "cli")]
    {
        assert_eq!(objection(part, other), None, "{part} uses {other}");
    }
    for (part, other) in
        [("rules", "engine"), ("secret", "measure"), ("simulate", "server"), ("server", "simulate"), ("cli", "attic")]
    {
        assert!(objection(part, other).is_some(), "{part} uses {other}");
    }
}

/// The pages say the same about the bytes of a key as the program, where the constants are.
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

/// The licenses that `deny.toml` allows: the quoted texts in its list.
fn allowed_licenses() -> Vec<String> {
    let text = std::fs::read_to_string(Path::new(ROOT).join("deny.toml")).unwrap();
    let list = text.split_once("allow = [").expect("a list of licenses").1.split_once(']').expect("its end").0;
    list.lines().filter_map(|line| Some(line.trim().strip_prefix('"')?.split_once('"')?.0.to_owned())).collect()
}

/// Whether the allowed licenses are enough for this expression. Old manifests write `/` for OR.
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

/// Checks the same as `cargo deny check licenses sources`, which takes ten minutes to compile; `make deny` runs the real one.
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

/// If no test names an invariant, nobody holds it.
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

/// Readers see a doc comment where its item is used, far from the comment before it.
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
