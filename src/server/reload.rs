//! Rules into force: read as a whole, checked as a whole, and taken or refused as a whole.
//!
//! Refused rules change nothing: those from before stay in force, and the log, the metrics and `/config/status` say which
//! file is wrong and where.

use std::sync::Arc;
use std::time::Instant;

use tokio::sync::watch;

use crate::engine::layers::{Layers, Reach};
use crate::rules::limit::{Limit, Rule};
use crate::rules::lint;
use crate::rules::policy::{Algorithm, OnOutage, Scope};
use crate::rules::problem::{Problem, Severity};
use crate::rules::{Domain, Loaded, Options, Ruleset, Source};
use crate::server::service::{InForce, Service};
use crate::sources::config::ConfigStatus;
use crate::sources::files::{self, Location};
use crate::sources::xds::stream::Taker;

/// Problems that are logged one by one; `/config/status` has more of them.
const LOGGED_MAX: usize = 20;
/// Problems that a management server is told.
const REFUSED_MAX: usize = 10;

/// Knows where rules are, and who wants them.
#[derive(Clone, Debug)]
pub struct Reloader {
    pub location: Location,
    pub options: Options,
    pub service: Arc<Service>,
    pub config: Arc<ConfigStatus>,
    /// Sensitive values can leave the process as keyed digests.
    pub has_secret: bool,
}

impl Reloader {
    /// Loads the rules and puts them into force if they are good. Returns what was found wrong with them.
    ///
    /// Blocks: ten thousand rules take some tens of milliseconds, which no request should wait for.
    pub fn load(&self) -> Result<Vec<Problem>, Vec<Problem>> {
        let began = Instant::now();
        self.put(files::load(&self.location, &self.options), began)
    }

    /// Puts rules into force if they are good.
    fn put(&self, mut loaded: Loaded, began: Instant) -> Result<Vec<Problem>, Vec<Problem>> {
        if self.service.engine().table().is_shared() && !self.has_secret {
            lint::refuse_sensitive(&mut loaded);
        }
        let layers = self.service.engine().layers();
        if layers.place.regions > 1 && layers.owner.is_none() {
            lint::refuse_strict(&mut loaded);
        }
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

    /// What this process can't do for the rules in force, a sentence each.
    pub fn not_honoured(&self) -> Vec<String> {
        let layers = self.service.engine().layers();
        let sentences = |in_force: Arc<InForce>| not_honoured(&in_force.ruleset, layers);
        self.service.in_force().map(sentences).unwrap_or_default()
    }

    /// Loads the rules again and logs what came of it.
    pub fn reload(&self) {
        // What is wrong is logged and shown.
        let _ = self.change(|| self.load());
    }

    /// Puts the rules of a management server into force, or says why not. Blocks, as [`Reloader::load`] does.
    pub fn take(&self, sources: &[Source]) -> Result<(), String> {
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
        // The same again, as with files that are touched and touched: once is enough.
        if is_news {
            log(problems);
        }
        for sentence in self.not_honoured().iter().filter(|sentence| !not_honoured_before.contains(sentence)) {
            tracing::warn!("{sentence}");
        }
        match &outcome {
            // Whoever was told that rules are refused is told when they are not any more.
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

/// What the layers that there are can't do for the rules, as one sentence each.
fn not_honoured(ruleset: &Ruleset, layers: &Layers) -> Vec<String> {
    let limits = || {
        ruleset.domains().flat_map(Domain::rules).flat_map(|rule| rule.limits().iter().map(move |limit| (rule, limit)))
    };
    let mut sentences = Vec::new();
    let mut say = |what: &str, ids: Vec<&str>, why: &str| {
        if let Some(first) = ids.first() {
            let others = match ids.len() - 1 {
                0 => String::new(),
                more => format!(" and {more} more"),
            };
            sentences.push(format!("{what} of rule {first}{others} {why}"));
        }
    };
    let is_reduced = |wanted: Scope| {
        let is_reduced = move |(_, limit): &(&Rule, &Limit)| {
            // What `gcra` and `exact_window` default to, so nobody asked for it.
            let is_default =
                wanted == Scope::Regional && matches!(limit.terms.algorithm, Algorithm::Gcra | Algorithm::ExactWindow);
            limit.policy.scope == Some(wanted) && layers.hold_limit(limit).scope == Scope::Local && !is_default
        };
        limits().filter(is_reduced).map(|(rule, _)| &*rule.id).collect::<Vec<_>>()
    };
    let scopes = [Scope::Regional, Scope::Global, Scope::Split, Scope::Strict];
    let alone: Vec<&str> = scopes.into_iter().flat_map(is_reduced).collect();
    say("scope", alone, "has no effect: counts are not shared (REDIS_URL), every limit holds for this process alone");
    let split_alone = |(_, limit): &(&Rule, &Limit)| {
        let held = layers.hold_limit(limit);
        held.scope == Scope::Split && held.reach == Reach::Process
    };
    let split_alone = limits().filter(split_alone).map(|(rule, _)| &*rule.id).collect();
    say("scope: split", split_alone, "gives each process the region's part: without REDIS_URL nobody counts together");
    let within = |wanted: Scope| {
        let within = move |(_, limit): &(&Rule, &Limit)| {
            limit.policy.scope == Some(wanted) && layers.hold_limit(limit).scope == Scope::Regional
        };
        limits().filter(within).map(|(rule, _)| &*rule.id).collect::<Vec<_>>()
    };
    say(
        "scope: global",
        within(Scope::Global),
        "holds for the region only: nothing is exchanged with other regions for it",
    );
    say("scope: split", within(Scope::Split), "gives this region all of it: there is no other (TIDEGATE_REGIONS)");
    let without_part = limits().filter(|(_, limit)| limit.terms.limit > 0 && layers.hold_limit(limit).terms.limit == 0);
    let without_part = without_part.map(|(rule, _)| &*rule.id).collect();
    say(
        "scope: split",
        without_part,
        "leaves nothing for this region: the limit is smaller than the number of regions",
    );
    let is_idle = |limit: &Limit| layers.hold_limit(limit).reach == Reach::Process;
    let with_outage = limits().filter(|(_, limit)| limit.policy.on_outage != OnOutage::Local && is_idle(limit));
    let with_outage = with_outage.map(|(rule, _)| &*rule.id).collect();
    say("on_outage", with_outage, "has no effect: memory decides it, there is nothing whose outage could matter");
    let is_exact = |limit: &Limit| matches!(layers.hold_limit(limit).reach, Reach::Process | Reach::Strict(_));
    let with_slack = limits().filter(|(_, limit)| limit.policy.slack_permille.is_some() && is_exact(limit));
    say("slack", with_slack.map(|(rule, _)| &*rule.id).collect(), "has no effect: every decision is exact");
    sentences
}

/// Takes a management server's rules, and tells when there are new ones.
#[derive(Debug)]
pub struct Following {
    pub reloader: Reloader,
    pub news: watch::Sender<u64>,
}

impl Taker for Following {
    async fn take(&self, sources: Vec<Source>) -> Result<(), String> {
        let reloader = self.reloader.clone();
        let taken = tokio::task::spawn_blocking(move || reloader.take(&sources)).await;
        taken.unwrap_or_else(|error| Err(error.to_string()))?;
        self.news.send_modify(|count| *count += 1);
        Ok(())
    }
}

/// Errors before warnings, and not too many of them.
pub fn log(problems: &[Problem]) {
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
