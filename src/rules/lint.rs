//! The warnings of `tidegate check` and of the start: rules that load but probably do not do what they seem to.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use crate::request::Bounds;
use crate::rules::file::{WrittenDescriptor, WrittenDomain};
use crate::rules::problem::Problems;

/// Warns of what the documents as written show.
pub(crate) fn lint(documents: &[WrittenDomain], problems: &mut Problems) {
    // A limit is replaced only in its own domain, but a merged domain may be spread over files.
    let mut names_of: HashMap<&str, HashSet<&str>> = HashMap::new();
    for document in documents {
        names_of.entry(&document.domain.value).or_default().extend(document.descriptors.iter().flat_map(names));
    }
    // Names may be missing only because their limits are broken.
    let is_complete = !problems.has_errors();
    for document in documents {
        let names = names_of.get(document.domain.value.as_str()).filter(|_| is_complete);
        for descriptor in &document.descriptors {
            descriptor_lint(&document.file, descriptor, 1, names, problems);
        }
    }
}

fn names(descriptor: &WrittenDescriptor) -> Vec<&str> {
    let own = descriptor.limits.iter().filter_map(|limit| limit.name.as_ref()).map(|name| name.value.as_str());
    own.chain(descriptor.descriptors.iter().flat_map(names)).collect()
}

fn descriptor_lint(
    file: &Arc<str>,
    descriptor: &WrittenDescriptor,
    depth: usize,
    names: Option<&HashSet<&str>>,
    problems: &mut Problems,
) {
    let entries_max = Bounds::default().entries_max;
    if depth == entries_max + 1 {
        problems.warning(
            file,
            descriptor.at,
            format!("this descriptor is never reached: it is the {depth}th level, and descriptors have at most {entries_max} entries"),
            "nest less deeply, or raise --max-entries",
        );
    }
    if descriptor.is_bare && descriptor.value.is_none() {
        problems.warning(
            file,
            descriptor.at,
            format!(
                "the descriptor {} limits nothing: it has neither a rate_limit nor nested descriptors",
                descriptor.key.value
            ),
            "write a rate_limit, or remove the descriptor",
        );
    }
    for name in descriptor.limits.iter().flat_map(|limit| &limit.replaces) {
        if names.is_some_and(|names| !names.contains(name.value.as_str())) {
            problems.warning(
                file,
                name.at,
                format!("replaces '{}', but no limit of this domain has that name", name.value),
                "give the limit to replace a name: field, or correct the name here",
            );
        }
    }
    for child in &descriptor.descriptors {
        descriptor_lint(file, child, depth + 1, names, problems);
    }
}
