//! How much memory the process may use, by its control group. Every container has one.
//!
//! Both versions of control groups are read. A group's limit holds for all groups below it, so the smallest one on the way
//! up counts. Inside a container the path may be the host's, and only the root of the hierarchy is visible.

use std::fs;
use std::path::{Path, PathBuf};

/// Version 1 writes a number close to 2^63 for no limit. No machine has a thousandth of that.
const NO_LIMIT_BYTES: u64 = 1 << 53;

/// The limit in bytes; `None` if there is none, or none that can be read.
pub(crate) fn memory_limit() -> Option<u64> {
    memory_limit_below(Path::new("/"))
}

fn memory_limit_below(root: &Path) -> Option<u64> {
    let groups = fs::read_to_string(root.join("proc/self/cgroup")).ok()?;
    let mounted = root.join("sys/fs/cgroup");
    // number:controllers:path
    let of_line = |line: &str| {
        let mut fields = line.splitn(3, ':').skip(1);
        let (controllers, path) = (fields.next()?, fields.next()?);
        match controllers {
            // Version 2, alone or beside version 1.
            "" => ["", "unified"].iter().filter_map(|at| smallest(&mounted.join(at), path, "memory.max")).min(),
            names if names.split(',').any(|name| name == "memory") => {
                smallest(&mounted.join("memory"), path, "memory.limit_in_bytes")
            }
            _ => None,
        }
    };
    groups.lines().filter_map(of_line).min()
}

/// The smallest limit of a group and of those above it.
fn smallest(mounted: &Path, path: &str, file: &str) -> Option<u64> {
    let group: PathBuf = mounted.join(path.trim_start_matches('/'));
    let limit = |directory: &Path| fs::read_to_string(directory.join(file)).ok()?.trim().parse::<u64>().ok();
    let up = group.ancestors().take_while(|directory| directory.starts_with(mounted));
    up.filter_map(limit).filter(|bytes| *bytes < NO_LIMIT_BYTES).min()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn limit(files: &[(&str, &str)]) -> Option<u64> {
        let root = tempfile::tempdir().unwrap();
        for (name, text) in files {
            let path = root.path().join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        memory_limit_below(root.path())
    }

    #[test]
    fn the_smallest_limit_on_the_way_up_counts() {
        let own = ("proc/self/cgroup", "0::/kubepods/pod1/tidegate\n");
        assert_eq!(limit(&[own]), None);
        let files = [
            own,
            ("sys/fs/cgroup/kubepods/memory.max", "4294967296\n"),
            ("sys/fs/cgroup/kubepods/pod1/memory.max", "268435456\n"),
            ("sys/fs/cgroup/kubepods/pod1/tidegate/memory.max", "max\n"),
        ];
        assert_eq!(limit(&files), Some(268_435_456));
    }

    #[test]
    fn a_container_sees_its_own_group_as_the_root() {
        let files = [("proc/self/cgroup", "0::/\n"), ("sys/fs/cgroup/memory.max", "134217728\n")];
        assert_eq!(limit(&files), Some(134_217_728));
        // The host's path does not exist in the container.
        let of_host = "4:memory:/docker/abc\n1:cpu,cpuacct:/docker/abc\n0::/\n";
        let files = [("proc/self/cgroup", of_host), ("sys/fs/cgroup/memory/memory.limit_in_bytes", "536870912\n")];
        assert_eq!(limit(&files), Some(536_870_912));
    }

    #[test]
    fn what_is_no_limit_is_none() {
        let first = ("proc/self/cgroup", "4:memory:/\n");
        assert_eq!(limit(&[first, ("sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n")]), None);
        let second = ("proc/self/cgroup", "0::/\n");
        assert_eq!(limit(&[second, ("sys/fs/cgroup/memory.max", "max\n")]), None);
        assert_eq!(limit(&[]), None);
    }
}
