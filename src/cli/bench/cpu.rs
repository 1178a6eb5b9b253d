//! How much CPU a process has used, as the kernel counts it.

use std::time::Duration;

/// The unit of `/proc/PID/stat`: a hundredth of a second on every Linux there is today, whatever the kernel's own tick.
const TICK: Duration = Duration::from_millis(10);

/// User and system time of all threads, also of those that have ended. `None` if there is no such process to read.
pub fn used(pid: &str) -> Option<Duration> {
    parse(&std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?)
}

fn parse(stat: &str) -> Option<Duration> {
    // The name in parentheses may hold anything, also spaces and parentheses; numbers come after the last one.
    let (_, fields) = stat.rsplit_once(')')?;
    let mut fields = fields.split_whitespace().skip(11).map(str::parse::<u32>);
    let (user, system) = (fields.next()?.ok()?, fields.next()?.ok()?);
    Some(TICK * user.checked_add(system)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_name_of_a_process_may_hold_anything() {
        let stat = "42 (a) b (c) S 1 42 42 0 -1 4194304 100 0 0 0 250 50 3 4 20 0 1 0 12345 1000 100";
        assert_eq!(parse(stat), Some(Duration::from_secs(3)));
        assert_eq!(parse("42 (a) S 1 2"), None);
        assert!(used("self").is_some());
        assert!(used("0").is_none());
    }
}
