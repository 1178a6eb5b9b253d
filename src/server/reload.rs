//! Puts rules into force: they are read as a whole, checked as a whole, and taken or refused as a whole.
//!
//! Refused rules change nothing: the old ones stay in force, and the log, the metrics and `/config/status` say which file is
//! wrong and where.

use std::sync::Arc;
use std::time::Instant;

use tokio::sync::watch;

use crate::rules::problem::{Problem, Severity};
use crate::rules::{LoadResult, Options, RuleText, Ruleset};
use crate::server::in_force::InForce;
use crate::server::service::Service;
use crate::sources::files::{self, Location};
use crate::sources::load_status::ConfigStatus;
use crate::sources::surroundings::Surroundings;
use crate::sources::xds::stream::Taker;

/// How many problems are logged one by one; `/config/status` has more of them.
const LOGGED_MAX: usize = 20;
/// How many errors a management server is told.
const REFUSED_MAX: usize = 10;

/// Reads rules, judges them, and puts good ones into force.
#[derive(Clone, Debug)]
pub(crate) struct Reloader {
    /// How rules are read: how strictly, and whether a domain may be spread over documents.
    pub options: Options,
    /// Has the rules in force, and takes those that replace them.
    pub service: Arc<Service>,
    /// Is told of every attempt, good or bad.
    pub config: Arc<ConfigStatus>,
    /// The layers that there are, and whether there is a secret: rules that need more are refused.
    pub surroundings: Surroundings,
}

impl Reloader {
    /// Loads rule files and puts them into force if they are good. Returns all problems, as an error if they are not.
    ///
    /// Blocks: ten thousand rules take some tens of milliseconds, which no request should wait for.
    pub(crate) fn load(&self, location: &Location) -> Result<Vec<Problem>, Vec<Problem>> {
        let began = Instant::now();
        self.put(files::load(location, &self.options), began)
    }

    /// Puts rules into force if they are good.
    fn put(&self, mut loaded: LoadResult, began: Instant) -> Result<Vec<Problem>, Vec<Problem>> {
        self.surroundings.refuse(&mut loaded);
        match loaded.ruleset {
            Some(ruleset) => {
                self.install(ruleset, loaded.problems.clone(), began);
                Ok(loaded.problems)
            }
            None => {
                self.config.failed(loaded.problems.clone(), began.elapsed());
                Err(loaded.problems)
            }
        }
    }

    fn install(&self, ruleset: Ruleset, problems: Vec<Problem>, began: Instant) {
        let (domains, rules) = (ruleset.domains().count(), ruleset.rules_count());
        self.service.install(ruleset);
        self.config.succeeded((domains, rules), problems, began.elapsed());
    }

    /// A sentence for each wish of the rules in force that this process can't fulfil.
    pub(crate) fn not_honoured(&self) -> Vec<String> {
        let sentences = |in_force: Arc<InForce>| self.surroundings.not_honoured(&in_force.ruleset);
        self.service.in_force().map(sentences).unwrap_or_default()
    }

    /// Loads rule files again and logs the outcome.
    pub(crate) fn reload(&self, location: &Location) {
        // The problems are logged by now, and /config/status shows them.
        let _ = self.change(|| self.load(location));
    }

    /// Puts the rules of a management server into force, or says why not. Blocks, as [`Reloader::load`] does.
    pub(crate) fn take(&self, sources: &[RuleText]) -> Result<(), String> {
        let outcome = self.change(|| {
            let began = Instant::now();
            self.put(Ruleset::load(sources, &self.options), began)
        });
        outcome.map(drop).map_err(|problems| {
            let errors = problems.iter().filter(|problem| problem.severity == Severity::Error);
            let errors: Vec<String> = errors
                .take(REFUSED_MAX)
                .map(|Problem { place, message, help, .. }| format!("{place}: {message} ({help})"))
                .collect();
            errors.join("; ")
        })
    }

    fn change(&self, load: impl FnOnce() -> Result<Vec<Problem>, Vec<Problem>>) -> Result<Vec<Problem>, Vec<Problem>> {
        let before = self.config.read();
        let not_honoured_before = self.not_honoured();
        let outcome = load();
        let now = self.config.read();
        let (Ok(problems) | Err(problems)) = &outcome;
        let had_failed = before.last_attempt.as_ref().is_some_and(|attempt| !attempt.ok);
        let is_news = before.last_attempt.is_none_or(|before| {
            now.last_attempt.as_ref().is_none_or(|now| (now.ok, &now.problems) != (before.ok, &before.problems))
        });
        // Files may be touched again and again without a change: the same outcome is logged only the first time.
        if is_news {
            log(problems);
        }
        for sentence in self.not_honoured().iter().filter(|sentence| !not_honoured_before.contains(sentence)) {
            tracing::warn!("{sentence}");
        }
        match &outcome {
            // The log has said that rules were refused, so it also says when they are good again.
            Ok(_) if had_failed => {
                tracing::warn!(
                    rules = now.rules,
                    generation = now.generation,
                    "the rules were reloaded and are good again"
                );
            }
            Ok(_) => tracing::info!(
                rules = now.rules,
                domains = now.domains,
                generation = now.generation,
                "the rules were reloaded"
            ),
            Err(problems) if is_news => {
                let errors = problems.iter().filter(|problem| problem.severity == Severity::Error).count();
                let first = problems.iter().find(|problem| problem.severity == Severity::Error);
                let first = first.map_or_else(String::new, |problem| format!("{}: {}", problem.place, problem.message));
                tracing::error!(errors, first, "the rules were not reloaded, those from before stay in force");
            }
            Err(_) => tracing::debug!("the rules were not reloaded: nothing new about them"),
        }
        outcome
    }
}

/// Puts a management server's rules into force, and tells when there are new ones.
#[derive(Debug)]
pub(crate) struct XdsFollower {
    /// Reads the server's rules and puts them into force.
    pub reloader: Reloader,
    /// Counts the rulesets that have come into force, to wake those who wait for the next one.
    pub news: watch::Sender<u64>,
}

impl Taker for XdsFollower {
    async fn take(&self, sources: Vec<RuleText>) -> Result<(), String> {
        let reloader = self.reloader.clone();
        let taken = tokio::task::spawn_blocking(move || reloader.take(&sources)).await;
        taken.unwrap_or_else(|error| Err(error.to_string()))?;
        self.news.send_modify(|count| *count += 1);
        Ok(())
    }
}

/// Logs problems, errors before warnings, [`LOGGED_MAX`] of them at most.
pub(crate) fn log(problems: &[Problem]) {
    let (errors, warnings): (Vec<&Problem>, Vec<&Problem>) =
        problems.iter().partition(|problem| problem.severity == Severity::Error);
    for problem in errors.iter().chain(&warnings).take(LOGGED_MAX) {
        let Problem { place, severity, message, help } = problem;
        match severity {
            Severity::Error => tracing::error!("{place}: {severity}: {message} ({help})"),
            Severity::Warning => tracing::warn!("{place}: {severity}: {message} ({help})"),
        }
    }
    if problems.len() > LOGGED_MAX {
        tracing::warn!("and {} more problems: /config/status has them", problems.len() - LOGGED_MAX);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::reach::Layers;
    use crate::server::service::idle;

    const RULES: &str = "domain: d\ndescriptors:\n  - {key: ip, rate_limit: {requests_per_unit: 4, unit: hour}}\n";

    #[test]
    fn a_sensitive_descriptor_without_a_limit_does_not_come_in_with_a_reload() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("rules.yaml");
        std::fs::write(&file, RULES).unwrap();
        let reloader = Reloader {
            options: Options::default(),
            service: idle(),
            config: Arc::default(),
            surroundings: Surroundings { layers: Layers::ALONE, has_store: true, has_secret: false },
        };
        let location = Location::Path(file.clone());
        assert_eq!(reloader.load(&location), Ok(Vec::new()));
        std::fs::write(&file, format!("{RULES}  - {{key: api_key, value: internal, sensitive: true}}\n")).unwrap();
        let problems = reloader.load(&location).unwrap_err();
        assert_eq!(problems.len(), 1, "{problems:?}");
        assert_eq!((problems[0].place.position.line, problems[0].place.position.column), (4, 5));
        let in_force = reloader.service.in_force().unwrap();
        assert!(in_force.ruleset.domains().all(|domain| !domain.has_sensitive_keys()), "those from before stay");
    }
}
