//! What the process takes of the machine, under the names that dashboards for Prometheus know.

use std::fs;

/// Figures of this process; zero where the system does not tell.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct ProcessFigures {
    pub cpu_s: f64,
    pub resident_bytes: u64,
    pub open_files: u64,
    pub threads: u64,
}

impl ProcessFigures {
    pub fn read() -> ProcessFigures {
        // The command's name is in parentheses and may hold anything, so count from the last one.
        let stat = fs::read_to_string("/proc/self/stat").unwrap_or_default();
        let fields: Vec<&str> = stat.rsplit(')').next().unwrap_or_default().split_whitespace().collect();
        let field = |number: usize| fields.get(number - 3).and_then(|field| field.parse::<u64>().ok()).unwrap_or(0);
        ProcessFigures {
            cpu_s: (field(14) + field(15)) as f64 / TICKS_PER_S,
            resident_bytes: field(24) * PAGE_BYTES,
            threads: field(20),
            open_files: fs::read_dir("/proc/self/fd").map_or(0, |files| files.count() as u64),
        }
    }
}

/// Linux counts CPU time for user space in hundredths of a second on every architecture.
const TICKS_PER_S: f64 = 100.0;
/// Of the architectures that are built for.
const PAGE_BYTES: u64 = 4096;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_has_memory_threads_and_files() {
        let figures = ProcessFigures::read();
        assert!(figures.resident_bytes > 1_000_000 && figures.threads >= 1 && figures.open_files >= 3, "{figures:?}");
    }
}
