//! What a process takes of the machine, as the kernel counts it: our own process for metrics, a server for `bench`.

use std::fs;
use std::time::Duration;

/// What the kernel has counted for one process when it was asked.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ProcessFigures {
    /// User and system time of all threads, including those that have ended.
    pub cpu: Duration,
    /// Memory that is in RAM now, shared pages included.
    pub resident_bytes: u64,
    /// Threads that exist now, idle ones included.
    pub threads: u64,
    /// 0 for a process whose files we may not see.
    pub open_files: u64,
}

/// The unit of `/proc/PID/stat`: a hundredth of a second on every Linux there is today, whatever the kernel's own tick.
const TICK: Duration = Duration::from_millis(10);
/// The size of a page on all architectures that we build for.
const PAGE_BYTES: u64 = 4096;

impl ProcessFigures {
    /// The figures of a process by its number, or of this one as `self`. `None` if there is no such process to read.
    pub fn of(pid: &str) -> Option<ProcessFigures> {
        let mut figures = parse(&fs::read_to_string(format!("/proc/{pid}/stat")).ok()?)?;
        figures.open_files = fs::read_dir(format!("/proc/{pid}/fd")).map_or(0, |files| files.count() as u64);
        Some(figures)
    }
}

fn parse(stat: &str) -> Option<ProcessFigures> {
    // The name in parentheses may hold anything, also spaces and parentheses; numbers come after the last one.
    let (_, fields) = stat.rsplit_once(')')?;
    let fields: Vec<&str> = fields.split_whitespace().collect();
    // The manual numbers fields from 1, and `fields` lacks the first two.
    let field = |number: usize| fields.get(number - 3)?.parse::<u64>().ok();
    let ticks = u32::try_from(field(14)?.checked_add(field(15)?)?).ok()?;
    Some(ProcessFigures {
        cpu: TICK * ticks,
        resident_bytes: field(24)? * PAGE_BYTES,
        threads: field(20)?,
        open_files: 0,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_name_of_a_process_may_hold_anything() {
        let stat = "42 (a) b (c) S 1 42 42 0 -1 4194304 100 0 0 0 250 50 3 4 20 0 7 0 12345 1000 100";
        let figures = parse(stat).unwrap();
        assert_eq!(figures.cpu, Duration::from_secs(3));
        assert_eq!((figures.threads, figures.resident_bytes), (7, 409_600));
        assert_eq!(parse("42 (a) S 1 2"), None);
    }

    #[test]
    fn a_process_has_memory_threads_and_files() {
        let figures = ProcessFigures::of("self").unwrap();
        assert!(figures.resident_bytes > 1_000_000 && figures.threads >= 1 && figures.open_files >= 3, "{figures:?}");
        assert_eq!(ProcessFigures::of("0"), None);
    }
}
