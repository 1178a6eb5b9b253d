//! Commands whose reader has gone: `tidegate check | head -1` in a script that looks at exit codes.

use std::process::{Command, Stdio};

use crate::support::harness::{free_port, rule_file, tidegate};

/// How a command ends when nobody reads its standard output.
fn code(mut command: Command) -> Option<i32> {
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    command.stdout(writer).stderr(Stdio::null()).status().unwrap().code()
}

#[test]
fn a_closed_pipe_does_not_turn_a_failure_into_success() {
    let (_directory, bad) = rule_file("domain: d\nshade: 1\n");
    let (_directory, good) = rule_file("domain: d\ndescriptors: []\n");
    let nowhere = format!("127.0.0.1:{}", free_port());
    for (args, expected) in [
        (vec!["check", "--rules", &bad], 1),
        (vec!["check", "--rules", &bad, "--output", "json"], 1),
        (vec!["check", "--rules", &good], 0),
        (vec!["status", "--addr", &nowhere, "--output", "json"], 2),
        (vec!["call", "--addr", &nowhere, "--domain", "d", "--output", "json", "a=b"], 1),
        (vec!["call", "--addr", &nowhere, "--domain", "d", "--repeat", "2", "a=b"], 1),
    ] {
        assert_eq!(code(tidegate(&args)), Some(expected), "{args:?}");
    }
}
