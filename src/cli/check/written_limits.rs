//! What a limit says itself. Compiled rules hold the resolved policy; only the files tell whether it was written or
//! comes from the class.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::sync::Arc;

use anyhow::Context;

use crate::rules::file::{self, DescriptorFile};
use crate::rules::problem::{FilePosition, Problems, Strictness};
use crate::rules::{Domain, Ruleset};

/// Which fields stand in the file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct WrittenFields {
    /// The limit names a scope, so that it is not its class's.
    pub scope: bool,
    /// The limit names an outage policy, so that it is not its class's.
    pub on_outage: bool,
}

/// The fields of every limit, by the place of its rule and its window, which no other limit of the rule has.
#[derive(Debug, Default)]
pub(super) struct WrittenLimits(BTreeMap<(FilePosition, u64), WrittenFields>);

impl WrittenLimits {
    /// Reads the files that the rules are from.
    pub(super) fn read(ruleset: &Ruleset, strictness: Strictness) -> anyhow::Result<WrittenLimits> {
        let files: BTreeSet<&Arc<str>> = ruleset.domains().flat_map(Domain::rules).map(|rule| &rule.at.file).collect();
        let mut written = WrittenLimits::default();
        for name in files {
            let text = fs::read_to_string(&**name).with_context(|| format!("{name} can't be read any more"))?;
            written.gather_file(name, &text, strictness);
        }
        Ok(written)
    }

    pub(super) fn gather_file(&mut self, name: &Arc<str>, text: &str, strictness: Strictness) {
        // They have been reported when the rules were loaded.
        let mut problems = Problems::new(strictness);
        for domain in file::read(name, text, &mut problems) {
            domain.descriptors.iter().for_each(|descriptor| self.gather(name, descriptor));
        }
    }

    fn gather(&mut self, name: &Arc<str>, descriptor: &DescriptorFile) {
        for terms in descriptor.limits.iter().filter_map(|limit| limit.terms.as_ref()) {
            let place = FilePosition { file: name.clone(), position: descriptor.at };
            let fields = WrittenFields { scope: terms.scope.is_some(), on_outage: terms.on_outage.is_some() };
            self.0.insert((place, terms.window_ms), fields);
        }
        descriptor.descriptors.iter().for_each(|child| self.gather(name, child));
    }

    pub(super) fn fields(&self, place: &FilePosition, window_ms: u64) -> WrittenFields {
        self.0.get(&(place.clone(), window_ms)).copied().unwrap_or_default()
    }
}
