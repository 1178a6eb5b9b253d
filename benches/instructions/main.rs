//! Has anything on the way of a request become slower? Counted in instructions, which are the same on a busy machine.
//!
//! `make instructions` counts every case with valgrind and compares it with `baseline.txt`; `make instructions-accept`
//! writes a new baseline. The preparation of a case is not counted, see [`cases`]. The program is built like a release, so
//! the same code is counted that people run.
//!
//! Instructions do not show how long a program waits for memory or for other threads: `cargo bench` does.

mod cases;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::{Command, ExitCode, Stdio};

use cases::{CASES, Case};

/// In percent: a count that is higher than the baseline by more than this fails, and one that is lower by more asks for a new
/// baseline. Compilers of the same version give the same code, and random hash keys change a count by less than one percent.
const MARGIN_PERCENT: f64 = 8.0;

/// How often a case that seems slower is counted again: once in some hundred runs, the hash keys put two keys of a request into
/// one shard, which is decided in another way.
const AGAIN: usize = 2;

/// How often a case is run: often enough that it does not matter where keys fall in their table.
const TIMES: usize = 2000;

/// The C library picks functions to copy and compare by the processor. This makes it take those that every processor has.
const TUNABLES: &str = "glibc.cpu.hwcaps=-AVX512F,-AVX512VL,-AVX512BW,-AVX2,-AVX,-AVX2_Usable,-ERMS,-FSRM,-SSE4_2";

/// The function that is counted, however the compiler writes its name.
const COUNTED: &str = "--toggle-collect=*cases*counted*";

fn baseline_path() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("benches/instructions/baseline.txt")
}

fn compiler() -> String {
    let version = Command::new("rustc").arg("--version").output();
    version.map(|output| String::from_utf8_lossy(&output.stdout).trim().to_owned()).unwrap_or_default()
}

/// Instructions of one run of a case.
fn measure(case: &Case) -> Result<f64, String> {
    let program = std::env::current_exe().map_err(|error| error.to_string())?;
    let output = Command::new("valgrind")
        .args(["--tool=callgrind", "--callgrind-out-file=/dev/null", COUNTED])
        .arg(program)
        .args(["--run", case.name, &TIMES.to_string()])
        .env("GLIBC_TUNABLES", TUNABLES)
        .stdin(Stdio::null())
        .output()
        .map_err(|error| format!("valgrind does not start ({error}): make instructions installs it"))?;
    let said = String::from_utf8_lossy(&output.stderr);
    let collected = said.lines().find_map(|line| line.split_once("Collected :")?.1.trim().parse::<u64>().ok());
    match collected.filter(|collected| output.status.success() && *collected > 0) {
        Some(collected) => Ok(collected as f64 / TIMES as f64),
        None => Err(format!("{} failed:\n{said}", case.name)),
    }
}

/// Reads a line for each case: its name and its count. Lines that begin with `#` are for people.
fn read_baseline() -> BTreeMap<String, f64> {
    let text = std::fs::read_to_string(baseline_path()).unwrap_or_default();
    let lines = text.lines().filter(|line| !line.starts_with('#'));
    lines
        .filter_map(|line| line.split_once(' '))
        .filter_map(|(name, count)| Some((name.into(), count.trim().parse().ok()?)))
        .collect()
}

fn accept() -> Result<(), String> {
    let mut text = format!("# Instructions of each case, each time, by {}.\n", compiler());
    text.push_str("# Written by make instructions-accept, compared by make instructions.\n");
    for case in CASES {
        let count = measure(case)?;
        println!("{:<24} {count:>8.0}", case.name);
        text.push_str(&format!("{} {count:.0}\n", case.name));
    }
    std::fs::write(baseline_path(), text).map_err(|error| format!("{}: {error}", baseline_path().display()))
}

/// Whether no case has become slower.
fn compare() -> Result<bool, String> {
    let baseline = read_baseline();
    let mut slower = Vec::new();
    let mut faster = Vec::new();
    println!("{:<24} {:>8} {:>8} {:>8}", "instructions of", "baseline", "now", "change");
    for case in CASES {
        let mut now = measure(case)?;
        let Some(before) = baseline.get(case.name) else {
            println!("{:<24} {:>8} {now:>8.0}", case.name, "none");
            slower.push(format!("{} has no baseline", case.name));
            continue;
        };
        let change_of = |count: f64| 100.0 * (count / before - 1.0);
        for _ in 0..AGAIN {
            if change_of(now) > MARGIN_PERCENT {
                now = now.min(measure(case)?);
            }
        }
        let change = change_of(now);
        println!("{:<24} {before:>8.0} {now:>8.0} {change:>+7.1}%", case.name);
        if change > MARGIN_PERCENT {
            slower.push(format!("{} takes {change:.1} % more instructions than its baseline", case.name));
        } else if change < -MARGIN_PERCENT {
            faster.push(case.name);
        }
    }
    if !faster.is_empty() {
        println!(
            "\nFaster by more than {MARGIN_PERCENT} %: {}. Keep the gain: make instructions-accept.",
            faster.join(", ")
        );
    }
    if slower.is_empty() {
        return Ok(true);
    }
    println!("\nSlower by more than {MARGIN_PERCENT} %:");
    slower.iter().for_each(|line| println!("- {line}"));
    println!("{}", advice());
    Ok(false)
}

fn advice() -> String {
    let program = std::env::current_exe().unwrap_or_default();
    let by = std::fs::read_to_string(baseline_path()).unwrap_or_default();
    let by =
        by.lines().next().and_then(|line| line.split_once(", by ")).map(|(_, by)| by.trim_end_matches('.').to_owned());
    let (by, now) = (by.unwrap_or_default(), compiler());
    let compilers = if by == now { String::new() } else { format!("The baseline is by {by}, this is {now}.\n") };
    format!(
        "{compilers}To see where they go, run this before and after the change and compare:\n  \
         valgrind --tool=callgrind --callgrind-out-file=out '{COUNTED}' {} --run CASE 20000 && callgrind_annotate out | head -50\n\
         If it is worth it, make instructions-accept writes a new baseline, to be committed with the reason.",
        program.display()
    )
}

fn main() -> ExitCode {
    // `cargo bench` gives this argument to every bench.
    let arguments: Vec<String> = std::env::args().skip(1).filter(|argument| argument != "--bench").collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let outcome = match arguments[..] {
        ["--run", name, times] => match (CASES.iter().find(|case| case.name == name), times.parse()) {
            (Some(case), Ok(times)) => {
                (case.run)(times);
                Ok(true)
            }
            _ => Err(format!(
                "--run CASE TIMES, where CASE is one of {:?}",
                CASES.iter().map(|it| it.name).collect::<Vec<_>>()
            )),
        },
        ["--accept"] => accept().map(|()| true),
        _ => compare(),
    };
    match outcome {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(message) => {
            eprintln!("{message}");
            ExitCode::FAILURE
        }
    }
}
