//! Why is a request denied, and until when? Tells the rule that a descriptor meets, and how its counts stand now.

use std::fmt;
use std::time::Duration;

use serde_json::{Value, json};
use thiserror::Error;

use crate::clock::wall_ms;
use crate::engine::peek::Peek;
use crate::engine::reach::{Enforcement, Reach};
use crate::engine::usual_decider::UsualDecider;
use crate::request::typed::TypedDescriptor;
use crate::request::{Descriptor, Hits, Request, RequestError};
use crate::rules::explain::explain as explain_rule;
use crate::rules::explain_text::window;
use crate::rules::policy::{OnOutage, Scope, Word};
use crate::server::service::Service;

/// The question: `domain=d&descriptor=k=v,k2=v2&hits=1`.
#[derive(Debug)]
pub(crate) struct Query {
    domain: String,
    descriptors: Vec<TypedDescriptor>,
    hits: u64,
    /// `output=json` was asked for. The header `Accept` can ask for JSON as well.
    pub is_json: bool,
}

impl Query {
    pub(crate) fn read(query: &str) -> Result<Query, String> {
        let mut read = Query { domain: String::new(), descriptors: Vec::new(), hits: 1, is_json: false };
        for (name, value) in form_urlencoded::parse(query.as_bytes()) {
            match &*name {
                "domain" => read.domain = value.into_owned(),
                "descriptor" => read.descriptors.push(TypedDescriptor::read(&value)?),
                "hits" => read.hits = value.parse().map_err(|_| format!("hits is '{value}': write a number"))?,
                "output" => {
                    read.is_json = match &*value {
                        "json" => true,
                        "text" => false,
                        _ => return Err(format!("output is '{value}': write text or json")),
                    }
                }
                _ => return Err(format!("there is no '{name}': write domain, descriptor, hits and output")),
            }
        }
        if read.domain.is_empty() || read.descriptors.is_empty() {
            return Err("write ?domain=d&descriptor=k=v,k2=v2 (several descriptors: &descriptor=... again)".into());
        }
        Ok(read)
    }
}

/// One descriptor: why it meets its rule, and how each of the rule's limits stands.
#[derive(Debug)]
struct DescriptorReport {
    in_words: String,
    as_json: Value,
    limits: Vec<LimitState>,
}

/// Who decides hits on a key that is shared through Redis, and why.
#[derive(Clone, Copy, Debug)]
struct KeyDecider {
    usual: UsualDecider,
    /// Hits of the limit never ask whether they fit.
    is_exempt: bool,
    /// This process may not know how many are alive.
    is_new: bool,
    /// This process has come after hits that may count, and Redis has never told it of the key.
    is_unknown: bool,
    /// Hits of this process that Redis does not know of.
    pending: u64,
    /// How many of these there may be now; `None` unless the limit is open.
    allowance: Option<u64>,
    /// The hits that were asked about fit, as far as memory knows.
    fits: bool,
    /// Together with them, no more are pending than may be.
    is_within: bool,
}

impl KeyDecider {
    /// `None` if nobody shares the count.
    fn of(peek: &Peek<'_>, hits: u64, service: &Service) -> Option<KeyDecider> {
        peek.held.reach.store()?;
        let view = service.regional().map(|regional| regional.view());
        let is_exempt = peek.is_exempt || service.options().modes.shadow;
        let usual = UsualDecider::new(&peek.held, is_exempt, view.map_or(1, |view| view.live));
        let available = i64::try_from(peek.remaining).unwrap_or(i64::MAX);
        let allowance = match usual {
            UsualDecider::MemoryWithin(headroom) => Some(headroom.allowance(available)),
            UsualDecider::Memory | UsualDecider::Origin(_) | UsualDecider::Owner(_) => None,
        };
        Some(KeyDecider {
            usual,
            is_exempt,
            is_new: view.is_some_and(|view| view.is_new),
            is_unknown: service.regional().is_some_and(|regional| {
                let age_ms = regional.age_ms();
                peek.unknown_for_ms.is_some_and(|unknown_ms| age_ms < unknown_ms)
            }),
            pending: peek.pending,
            allowance,
            fits: peek.fits,
            is_within: allowance.is_some_and(|allowance| peek.pending.saturating_add(hits) <= allowance),
        })
    }

    fn asks(&self) -> bool {
        match self.usual {
            UsualDecider::Memory => false,
            _ if !self.fits => false,
            UsualDecider::MemoryWithin(_) => self.is_new || self.is_unknown || !self.is_within,
            UsualDecider::Origin(_) | UsualDecider::Owner(_) => true,
        }
    }

    fn to_json(self) -> Value {
        let mut document = self.usual.to_json();
        document["asks_now"] = json!(self.asks());
        document["is_new_process"] = json!(self.is_new);
        document["is_unknown_key"] = json!(self.is_unknown);
        document["pending"] = json!(self.pending);
        document["allowance"] = json!(self.allowance);
        document
    }
}

impl fmt::Display for KeyDecider {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let KeyDecider { usual, pending, .. } = self;
        match usual {
            UsualDecider::Memory if self.is_exempt => write!(f, "decided by memory: hits never ask whether they fit"),
            _ if !self.fits => write!(f, "decided by memory: it denies without asking"),
            UsualDecider::Memory => write!(f, "decided by memory"),
            // How many are alive is not known yet, so nobody knows whether the limit is closed.
            UsualDecider::MemoryWithin(_) | UsualDecider::Origin(_) if self.is_new => {
                write!(
                    f,
                    "asks Redis: this process has just started or come back, and may not know how many others there are"
                )
            }
            UsualDecider::Origin(_) | UsualDecider::Owner(_) => write!(f, "{usual}"),
            UsualDecider::MemoryWithin(_) if self.is_unknown => {
                write!(
                    f,
                    "asks Redis: this process has come since hits that may count, and has not heard of the key yet"
                )
            }
            UsualDecider::MemoryWithin(headroom) => {
                let (live, may) = (headroom.live, self.allowance.unwrap_or_default());
                match self.is_within {
                    true => write!(f, "decided by memory: {pending} of at most {may} hits are pending here")?,
                    false => write!(f, "asks Redis: {pending} hits are pending here, and {may} may be at most")?,
                }
                match live {
                    1 => write!(f, "; 1 live process"),
                    _ => write!(f, "; {live} live processes"),
                }
            }
        }
    }
}

/// How a limit stands. The figures are those of [`Peek`].
#[derive(Debug)]
struct LimitState {
    limit: u32,
    window_ms: u64,
    name: String,
    scope: Scope,
    on_outage: OnOutage,
    /// Why `on_outage` decides: who gives no answer or can't be heard. `None` while nobody is missing.
    unheard: Option<&'static str>,
    /// `None` if nobody shares the count.
    decider: Option<KeyDecider>,
    is_known: bool,
    counted: u64,
    foreign: u64,
    remaining: u64,
    fits: bool,
    frees_in_ms: Option<u64>,
    resets_in_ms: u64,
}

impl LimitState {
    fn of(peek: &Peek<'_>, hits: u64, service: &Service) -> LimitState {
        let Enforcement { scope, on_outage, reach, is_cut_off, .. } = peek.held;
        let unheard = match reach {
            Reach::Strict(_) if service.is_out(reach) => Some("the owner of strict limits gives no answer"),
            _ if service.is_out(reach) => Some("Redis gives no answer"),
            _ => is_cut_off.then_some("other regions can't be heard"),
        };
        LimitState {
            scope,
            on_outage,
            unheard,
            decider: KeyDecider::of(peek, hits, service),
            limit: peek.terms.limit,
            window_ms: peek.terms.window_ms,
            name: peek.limit.map_or_else(String::new, |limit| limit.name.to_string()),
            is_known: peek.is_known,
            counted: peek.counted,
            foreign: peek.foreign,
            remaining: peek.remaining,
            fits: peek.fits,
            frees_in_ms: peek.frees_in_ms,
            resets_in_ms: peek.resets_in_ms,
        }
    }

    fn to_json(&self) -> Value {
        json!({
            "name": self.name,
            "requests_per_unit": self.limit,
            "window_ms": self.window_ms,
            "scope": self.scope.word(),
            "on_outage": self.on_outage.word(),
            "outage": self.unheard,
            "decided_by": self.decider.map(KeyDecider::to_json),
            "is_known": self.is_known,
            "counted": self.counted,
            "of_other_regions": self.foreign,
            "remaining": self.remaining,
            "fits": self.fits,
            "frees_in_ms": self.frees_in_ms,
            "resets_in_ms": self.resets_in_ms,
        })
    }
}

impl fmt::Display for LimitState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "now: {} of {} per {}", self.counted, self.limit, window(self.window_ms))?;
        if !self.name.is_empty() {
            write!(f, " ({})", self.name)?;
        }
        if !self.is_known {
            write!(f, ", not counted before")?;
        }
        if self.foreign > 0 {
            write!(f, ", {} of them in other regions", self.foreign)?;
        }
        let after = |ms: u64| humantime::format_duration(Duration::from_millis(ms)).to_string();
        match self.frees_in_ms {
            _ if self.fits => write!(f, "; {} left, starts afresh in {}", self.remaining, after(self.resets_in_ms)),
            Some(ms) => write!(f, "; over the limit, fits again in {}", after(ms)),
            None => write!(f, "; so many hits never fit"),
        }
    }
}

/// The answer to a query.
#[derive(Debug)]
pub(crate) struct ExplainPage(Vec<DescriptorReport>);

impl ExplainPage {
    pub(crate) fn to_json(&self) -> Value {
        let descriptor = |explained: &DescriptorReport| {
            let mut document = explained.as_json.clone();
            document["now"] = explained.limits.iter().map(LimitState::to_json).collect();
            document
        };
        self.0.iter().map(descriptor).collect()
    }
}

impl fmt::Display for ExplainPage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, explained) in self.0.iter().enumerate() {
            if index > 0 {
                writeln!(f)?;
            }
            write!(f, "{}", explained.in_words)?;
            for limit in &explained.limits {
                writeln!(f, "    {limit}")?;
                match (limit.unheard, limit.decider) {
                    (Some(unheard), _) => {
                        writeln!(f, "    outage: {unheard}, so that on_outage: {} decides", limit.on_outage.word())?;
                    }
                    (None, Some(decider)) => writeln!(f, "    {decider}")?,
                    (None, None) => {}
                }
            }
        }
        Ok(())
    }
}

/// Why there is nothing to explain.
#[derive(Debug, Error)]
pub(crate) enum ExplainError {
    #[error("no rate limit configuration loaded")]
    NoRules,
    #[error("no domain '{domain}' in the rules: there are {known}")]
    NoDomain { domain: String, known: String },
    #[error(transparent)]
    Refused(#[from] RequestError),
}

/// Looks without touching: nothing is counted, and no key is kept alive by it.
pub(crate) fn explain(service: &Service, query: &Query) -> Result<ExplainPage, ExplainError> {
    let in_force = service.in_force().ok_or(ExplainError::NoRules)?;
    let ruleset = &in_force.ruleset;
    let Some(domain) = ruleset.domain(&query.domain) else {
        let names: Vec<&str> = ruleset.domains().map(|domain| &*domain.name).collect();
        return Err(ExplainError::NoDomain { domain: query.domain.clone(), known: names.join(", ") });
    };
    let descriptors = query.descriptors.iter().map(|typed| Descriptor {
        entries: typed.entries().collect(),
        hits: Hits::OfRequest(query.hits),
        limit: None,
    });
    let request = Request::new(&query.domain, descriptors.collect(), &service.options().bounds)?;
    let peeked = service.engine().peek(ruleset, &request, service.is_cut_off(), wall_ms());
    let explained = query.descriptors.iter().zip(&peeked).map(|(typed, limits)| {
        let explanation = explain_rule(domain, typed.entries().collect());
        DescriptorReport {
            in_words: explanation.to_string(),
            as_json: explanation.to_json(),
            limits: limits.iter().map(|peek| LimitState::of(peek, query.hits, service)).collect(),
        }
    });
    Ok(ExplainPage(explained.collect()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_query_says_what_is_missing() {
        let query = Query::read("domain=d&descriptor=a%3Db,c=d&descriptor=e=f%20g&hits=3&output=json").unwrap();
        assert_eq!((query.domain.as_str(), query.hits, query.is_json), ("d", 3, true));
        assert_eq!(query.descriptors[1].to_string(), "e=f g");
        for (bad, said) in [
            ("", "write ?domain=d"),
            ("domain=d", "write ?domain=d"),
            ("domain=d&descriptor=a", "has no '='"),
            ("domain=d&descriptor=a=b&hits=x", "hits is 'x'"),
            ("domain=d&descriptor=a=b&output=xml", "write text or json"),
            ("domain=d&descriptors=a=b", "there is no 'descriptors'"),
        ] {
            assert!(Query::read(bad).unwrap_err().contains(said), "{bad}");
        }
    }
}
