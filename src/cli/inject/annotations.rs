//! What a pod says about its own sidecar.

use clap::ValueEnum;
use serde_json::{Map, Value};
use thiserror::Error;

use crate::cli::inject::sidecar::{Mode, Sidecar};

const INJECT: &str = "tidegate.dev/inject";
const IMAGE: &str = "tidegate.dev/image";
const MODE: &str = "tidegate.dev/mode";
const RULES: &str = "tidegate.dev/rules-configmap";
const ENV_CONFIGMAP: &str = "tidegate.dev/env-configmap";
const ENV_SECRET: &str = "tidegate.dev/env-secret";
const KEYS_MAX: &str = "tidegate.dev/keys-max";
const KNOWN: [&str; 7] = [INJECT, IMAGE, MODE, RULES, ENV_CONFIGMAP, ENV_SECRET, KEYS_MAX];
const OURS: &str = "tidegate.dev/";

/// An annotation that can't be used.
#[derive(Debug, Error, PartialEq, Eq)]
pub enum AnnotationError {
    #[error("the annotation {name} is '{value}': write {expected}")]
    Value { name: &'static str, value: String, expected: &'static str },
    #[error("the annotation {0} is none of {known}", known = KNOWN.join(", "))]
    Unknown(String),
}

/// Whether the pod wants a sidecar; `None` if it does not say.
pub(crate) fn wish(annotations: Option<&Map<String, Value>>) -> Result<Option<bool>, AnnotationError> {
    let wrong = |value: String| {
        Err(AnnotationError::Value { name: INJECT, value, expected: "\"true\" or \"false\", with the quotes" })
    };
    match annotations.and_then(|annotations| annotations.get(INJECT)) {
        None => Ok(None),
        Some(Value::String(word)) => match word.as_str() {
            "true" => Ok(Some(true)),
            "false" => Ok(Some(false)),
            _ => wrong(word.clone()),
        },
        Some(other) => wrong(other.to_string()),
    }
}

impl Sidecar {
    /// The sidecar as the pod wants it.
    pub fn for_pod(&self, annotations: Option<&Map<String, Value>>) -> Result<Sidecar, AnnotationError> {
        let names = annotations.into_iter().flat_map(Map::keys).filter(|name| name.starts_with(OURS));
        if let Some(unknown) = names.into_iter().find(|name| !KNOWN.contains(&name.as_str())) {
            return Err(AnnotationError::Unknown(unknown.clone()));
        }
        let mut sidecar = self.clone();
        if let Some(value) = text(annotations, MODE) {
            sidecar.mode = Mode::from_str(value, false).map_err(|_| AnnotationError::Value {
                name: MODE,
                value: value.to_owned(),
                expected: "native or plain",
            })?;
        }
        let named = |name: &'static str| match text(annotations, name) {
            Some(value) if value.trim().is_empty() => {
                Err(AnnotationError::Value { name, value: value.to_owned(), expected: "a name" })
            }
            value => Ok(value.map(str::to_owned)),
        };
        if let Some(value) = text(annotations, KEYS_MAX) {
            let expected = "a number from 1 to 100000000";
            sidecar.keys_max = keys_max(value).map_err(|_| AnnotationError::Value {
                name: KEYS_MAX,
                value: value.to_owned(),
                expected,
            })?;
        }
        sidecar.image = named(IMAGE)?.unwrap_or(sidecar.image);
        sidecar.rules = named(RULES)?.unwrap_or(sidecar.rules);
        sidecar.env_configmap = named(ENV_CONFIGMAP)?.or(sidecar.env_configmap);
        sidecar.env_secret = named(ENV_SECRET)?.or(sidecar.env_secret);
        Ok(sidecar)
    }
}

/// Reads how many keys a sidecar holds.
pub(crate) fn keys_max(typed: &str) -> Result<u64, String> {
    let number = typed.parse().ok().filter(|number| (1..=100_000_000).contains(number));
    number.ok_or_else(|| format!("'{typed}' is no number of keys: write one from 1 to 100000000"))
}

/// Reads the name of an object in Kubernetes.
pub(crate) fn object_name(typed: &str) -> Result<String, String> {
    let is_name = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || "-.".contains(c);
    match !typed.is_empty() && typed.len() <= 253 && typed.chars().all(is_name) {
        true => Ok(typed.to_owned()),
        false => Err(format!("'{typed}' is no name of an object: write lower case letters, digits, - and .")),
    }
}

fn text<'a>(annotations: Option<&'a Map<String, Value>>, name: &str) -> Option<&'a str> {
    annotations?.get(name)?.as_str()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_pod_chooses_its_sidecar_and_hears_of_mistakes() {
        let usual = Sidecar {
            image: "tidegate:1".into(),
            mode: Mode::Native,
            rules: "tidegate-rules".into(),
            env_configmap: None,
            env_secret: Some("redis".into()),
            keys_max: 1,
        };
        let of = |annotations: Value| usual.for_pod(annotations.as_object());
        assert_eq!(usual.for_pod(None), Ok(usual.clone()));
        let chosen = of(json!({"tidegate.dev/mode": "plain", "tidegate.dev/image": "mine:2", "other.dev/x": "y"}));
        assert_eq!(chosen, Ok(Sidecar { mode: Mode::Plain, image: "mine:2".into(), ..usual.clone() }));
        for (name, value, part) in [
            ("tidegate.dev/mode", "init", "native or plain"),
            ("tidegate.dev/image", " ", "a name"),
            ("tidegate.dev/rules", "x", "is none of"),
        ] {
            let error = of(json!({name: value})).unwrap_err().to_string();
            assert!(error.contains(name) && error.contains(part), "{error}");
        }
        assert_eq!(wish(json!({"tidegate.dev/inject": "false"}).as_object()), Ok(Some(false)));
        assert_eq!(wish(None), Ok(None));
        assert!(wish(json!({"tidegate.dev/inject": "yes"}).as_object()).is_err());
        assert!(wish(json!({"tidegate.dev/inject": false}).as_object()).is_err(), "an annotation is a text");
        assert!(object_name("a-b.c").is_ok() && object_name("Bad Name").is_err() && keys_max("0").is_err());
    }
}
