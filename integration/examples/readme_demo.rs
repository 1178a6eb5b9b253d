//! `make demo` shows what the README says it does.

use std::path::Path;
use std::process::Command;

use crate::support::harness::run;

/// Times and counts are different each time, and so are paths of machines.
fn without_numbers(text: &str) -> Vec<String> {
    let replaced = |line: &str| {
        let words = line.split_inclusive(|c: char| !c.is_ascii_digit());
        let word = |word: &str| match word.trim_start_matches(|c: char| c.is_ascii_digit()) {
            rest if rest.len() < word.len() => format!("N{rest}"),
            rest => rest.to_owned(),
        };
        words.map(word).collect::<String>()
    };
    let is_time = |line: &str| line.contains("fits again in");
    text.lines().filter(|line| !is_time(line)).map(|line| replaced(line.trim_end())).collect()
}

#[test]
fn the_readme_has_the_real_output_of_the_demo() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut command = Command::new("python3");
    command.arg(root.join("demo/demo.py")).env("TIDEGATE", env!("CARGO_BIN_EXE_tidegate"));
    let ran = run(&mut command);
    assert_eq!(ran.code, Some(0), "{ran:?}");
    let (_, shown) = ran.stdout.split_once("...\n\n").expect("it says what it starts");
    let readme = std::fs::read_to_string(root.join("README.md")).unwrap();
    let (_, after) = readme.split_once("make demo\n").expect("the README names the command");
    let block = after.split("```").find(|block| block.contains("Ten orders")).expect("and has its output");
    assert_eq!(without_numbers(shown), without_numbers(block.trim_start_matches('\n')));
    let passed = |region: &str| {
        let line = shown.lines().find(|line| line.starts_with(&format!("  {region}: "))).expect("a line");
        line.split(' ').nth(3).and_then(|word| word.parse::<u32>().ok()).expect("a number")
    };
    assert_eq!(passed("eu"), 60);
    // Both together a hundred, and one more for each 0.6 s that a busy machine takes.
    assert!((38..=60).contains(&passed("us")), "{shown}");
}
