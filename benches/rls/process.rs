//! Processes that end when they are dropped, and what they say when they start.

use std::io::{BufRead, BufReader, Read};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};

const STARTS_WITHIN: Duration = Duration::from_secs(60);

pub struct Process(Child);

impl Process {
    pub fn start(command: &mut Command) -> anyhow::Result<Process> {
        let name = command.get_program().to_owned();
        Ok(Process(command.stdin(Stdio::null()).spawn().with_context(|| format!("can't start {}", name.display()))?))
    }

    pub fn pid(&self) -> u32 {
        self.0.id()
    }

    /// Reads standard output until `find` finds something in a line.
    pub fn first_on_stdout<T>(&mut self, find: impl Fn(&str) -> Option<T>) -> anyhow::Result<T> {
        first(self.0.stdout.take().context("its output is not read")?, find)
    }

    pub fn first_on_stderr<T>(&mut self, find: impl Fn(&str) -> Option<T>) -> anyhow::Result<T> {
        first(self.0.stderr.take().context("its log is not read")?, find)
    }

    /// Waits for a sign of life.
    pub fn wait_until(&mut self, what: &str, is_so: impl Fn() -> bool) -> anyhow::Result<()> {
        let began = Instant::now();
        while !is_so() {
            ensure!(!self.has_ended() && began.elapsed() < STARTS_WITHIN, "waited in vain: {what}");
            std::thread::sleep(Duration::from_millis(20));
        }
        Ok(())
    }

    fn has_ended(&mut self) -> bool {
        !matches!(self.0.try_wait(), Ok(None))
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // Both fail for a process that has ended, which does not matter.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn first<T>(stream: impl Read + Send + 'static, find: impl Fn(&str) -> Option<T>) -> anyhow::Result<T> {
    let mut lines = BufReader::new(stream).lines().map_while(Result::ok);
    let mut said = String::new();
    for line in lines.by_ref() {
        if let Some(found) = find(&line) {
            // The rest is read and dropped, because a full pipe would stop the process.
            std::thread::spawn(move || lines.for_each(drop));
            return Ok(found);
        }
        said += &line;
        said.push('\n');
    }
    anyhow::bail!("it ended before it served\n{said}")
}
