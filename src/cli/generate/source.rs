//! Where Envoy takes a descriptor's value from. The rules leave this open, because they know keys only.

use serde_json::json;
use thiserror::Error;

/// How the value of a key is made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ValueSource {
    /// The client's address, as far as Envoy trusts it.
    Address,
    /// The network that the client's address is in.
    MaskedAddress,
    /// Without the query, which clients could vary to get counts of their own.
    Path,
    Header {
        /// A pseudo-header such as `:method` will do too.
        name: String,
    },
    /// A parameter of the query.
    Query {
        /// The parameter's name.
        name: String,
    },
    /// Left by an earlier filter.
    Metadata {
        /// The namespace, and at least one key below it.
        path: Vec<String>,
    },
    Cel {
        /// What Envoy computes for each request.
        expression: String,
    },
    /// Not from the request: the value that a rule names.
    Fixed,
    SourceCluster,
    DestinationCluster,
}

/// A `--map` that can't be used.
#[derive(Debug, Error, PartialEq, Eq)]
pub enum SourceError {
    #[error("'{0}' has no '=': write KEY=SOURCE, for example api_key=header:x-api-key")]
    NoSource(String),
    #[error("'{0}' has no key: write KEY=SOURCE, for example api_key=header:x-api-key")]
    NoKey(String),
    #[error(
        "'{0}' is no source: write address, masked_address, path, method, host, header:NAME, query:NAME, \
         metadata:NAMESPACE:KEY, cel:EXPRESSION, value, source_cluster or destination_cluster"
    )]
    Unknown(String),
    #[error("'{0}' is no header name: write letters, digits and dashes, or :method, :authority and their like")]
    HeaderName(String),
    #[error("'{0}' names no key below its namespace: write metadata:NAMESPACE:KEY")]
    NoMetadataKey(String),
    #[error("the key is '{key}', but Envoy names this source '{name}' always: rename the key in the rules")]
    NamedByEnvoy { key: String, name: &'static str },
}

impl ValueSource {
    /// `api_key=header:x-api-key`, as typed.
    pub fn read(typed: &str) -> Result<(String, ValueSource), SourceError> {
        let Some((key, source)) = typed.split_once('=') else { return Err(SourceError::NoSource(typed.to_owned())) };
        if key.is_empty() {
            return Err(SourceError::NoKey(typed.to_owned()));
        }
        let (word, rest) = source.split_once(':').map_or((source, None), |(word, rest)| (word, Some(rest)));
        let source = match (word, rest.filter(|rest| !rest.is_empty())) {
            ("address", None) => ValueSource::Address,
            ("masked_address", None) => ValueSource::MaskedAddress,
            ("path", None) => ValueSource::Path,
            ("method", None) => header(":method"),
            ("host", None) => header(":authority"),
            ("value", None) => ValueSource::Fixed,
            ("source_cluster", None) => ValueSource::SourceCluster,
            ("destination_cluster", None) => ValueSource::DestinationCluster,
            ("header", Some(name)) if is_header_name(name) => header(name),
            ("header", Some(name)) => return Err(SourceError::HeaderName(name.to_owned())),
            ("query", Some(name)) => ValueSource::Query { name: name.to_owned() },
            ("cel", Some(expression)) => ValueSource::Cel { expression: expression.to_owned() },
            ("metadata", Some(path)) => {
                let path: Vec<String> = path.split(':').map(str::to_owned).collect();
                if path.len() < 2 || path.iter().any(String::is_empty) {
                    return Err(SourceError::NoMetadataKey(source.to_owned()));
                }
                ValueSource::Metadata { path }
            }
            _ => return Err(SourceError::Unknown(source.to_owned())),
        };
        match source.name_of_envoy() {
            Some(name) if name != key => Err(SourceError::NamedByEnvoy { key: key.to_owned(), name }),
            _ => Ok((key.to_owned(), source)),
        }
    }

    /// Where a key's value comes from if nobody says otherwise: Envoy's own names first, then the usual ones. `None` if
    /// only the operator can know.
    pub fn usual(key: &str) -> Option<ValueSource> {
        Some(match key {
            "remote_address" => ValueSource::Address,
            "masked_remote_address" => ValueSource::MaskedAddress,
            "generic_key" => ValueSource::Fixed,
            "source_cluster" => ValueSource::SourceCluster,
            "destination_cluster" => ValueSource::DestinationCluster,
            // Made by conditions. The rules see only their outcome.
            "header_match" | "query_match" | "remote_address_match" => return None,
            "path" => ValueSource::Path,
            "method" => header(":method"),
            "host" | "authority" => header(":authority"),
            _ => {
                let name = key.replace('_', "-").to_ascii_lowercase();
                return is_header_name(&name).then_some(ValueSource::Header { name });
            }
        })
    }

    /// Whether [`ValueSource::usual`] only guesses.
    pub fn is_guess(key: &str) -> bool {
        matches!(ValueSource::usual(key), Some(ValueSource::Header { name }) if !name.starts_with(':'))
    }

    /// The key that Envoy gives the entry in any case, for actions that do not let others choose it.
    fn name_of_envoy(&self) -> Option<&'static str> {
        match self {
            ValueSource::MaskedAddress => Some("masked_remote_address"),
            ValueSource::SourceCluster => Some("source_cluster"),
            ValueSource::DestinationCluster => Some("destination_cluster"),
            _ => None,
        }
    }

    /// Envoy's action. `value` is what a rule names, for [`ValueSource::Fixed`].
    pub fn action(&self, key: &str, value: Option<&str>) -> serde_json::Value {
        const DESCRIPTOR: &str = "type.googleapis.com/envoy.extensions.rate_limit_descriptors.expr.v3.Descriptor";
        const SOURCE_IP: &str = "type.googleapis.com/envoy.extensions.matching.common_inputs.network.v3.SourceIPInput";
        let expression = |text: &str| {
            let config = json!({"@type": DESCRIPTOR, "descriptor_key": key, "text": text});
            json!({"extension": {"name": "envoy.rate_limit_descriptors.expr", "typed_config": config}})
        };
        match self {
            ValueSource::Address if key == "remote_address" => json!({"remote_address": {}}),
            // The entry's key is the name of the extension.
            ValueSource::Address => json!({"extension": {"name": key, "typed_config": {"@type": SOURCE_IP}}}),
            ValueSource::MaskedAddress => {
                json!({"masked_remote_address": {"v4_prefix_mask_len": 24, "v6_prefix_mask_len": 64}})
            }
            ValueSource::Path => expression("request.url_path"),
            ValueSource::Cel { expression: text } => expression(text),
            ValueSource::Header { name } => json!({"request_headers": {"header_name": name, "descriptor_key": key}}),
            ValueSource::Query { name } => {
                json!({"query_parameters": {"query_parameter_name": name, "descriptor_key": key}})
            }
            ValueSource::Metadata { path } => {
                let below: Vec<_> = path[1..].iter().map(|key| json!({"key": key})).collect();
                json!({"metadata": {"descriptor_key": key, "metadata_key": {"key": path[0], "path": below}}})
            }
            ValueSource::Fixed => json!({"generic_key": {"descriptor_key": key, "descriptor_value": value}}),
            ValueSource::SourceCluster => json!({"source_cluster": {}}),
            ValueSource::DestinationCluster => json!({"destination_cluster": {}}),
        }
    }

    /// For the person who reads what was generated.
    pub fn in_words(&self) -> String {
        match self {
            ValueSource::Address => "the client's address".into(),
            ValueSource::MaskedAddress => "the client's network (/24, /64)".into(),
            ValueSource::Path => "the path without its query".into(),
            ValueSource::Header { name } if name == ":method" => "the method".into(),
            ValueSource::Header { name } if name == ":authority" => "the host".into(),
            ValueSource::Header { name } => format!("the header {name}"),
            ValueSource::Query { name } => format!("the query's {name}"),
            ValueSource::Metadata { path } => format!("dynamic metadata, {}", path.join(" ")),
            ValueSource::Cel { expression } => format!("CEL, {expression}"),
            ValueSource::Fixed => "what the rules name".into(),
            ValueSource::SourceCluster => "the cluster that the request comes from".into(),
            ValueSource::DestinationCluster => "the cluster that the request goes to".into(),
        }
    }
}

fn header(name: &str) -> ValueSource {
    ValueSource::Header { name: name.to_owned() }
}

fn is_header_name(name: &str) -> bool {
    let name = name.strip_prefix(':').unwrap_or(name);
    http::HeaderName::try_from(name).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(typed: &str) -> ValueSource {
        ValueSource::read(typed).expect("it is good").1
    }

    #[test]
    fn sources_are_read_as_they_are_written() {
        assert_eq!(ValueSource::read("api_key=header:x-api-key"), Ok(("api_key".into(), header("x-api-key"))));
        assert_eq!(read("verb=method"), header(":method"));
        assert_eq!(read("ip=address"), ValueSource::Address);
        assert_eq!(
            read("u=cel:request.headers['a:b']"),
            ValueSource::Cel { expression: "request.headers['a:b']".into() }
        );
        let path = ["envoy.filters.http.jwt_authn", "claims", "sub"].map(str::to_owned).to_vec();
        assert_eq!(read("user=metadata:envoy.filters.http.jwt_authn:claims:sub"), ValueSource::Metadata { path });
        for (typed, part) in [
            ("api_key", "has no '='"),
            ("=path", "has no key"),
            ("a=cookie:x", "is no source"),
            ("a=header", "is no source"),
            ("a=header:", "is no source"),
            ("a=path:x", "is no source"),
            ("a=header:a b", "is no header name"),
            ("a=metadata:ns", "names no key"),
            ("a=metadata:ns::b", "names no key"),
            ("net=masked_address", "'masked_remote_address' always"),
        ] {
            let error = ValueSource::read(typed).expect_err(typed).to_string();
            assert!(error.contains(part), "{typed}: {error}");
        }
    }

    #[test]
    fn keys_stand_for_what_they_say_unless_only_the_operator_can_know() {
        assert_eq!(ValueSource::usual("remote_address"), Some(ValueSource::Address));
        assert_eq!(ValueSource::usual("method"), Some(header(":method")));
        assert_eq!(ValueSource::usual("Api_Key"), Some(header("api-key")));
        assert_eq!(ValueSource::usual("header_match"), None);
        assert_eq!(ValueSource::usual("no header"), None);
        assert!(ValueSource::is_guess("api_key") && !ValueSource::is_guess("method") && !ValueSource::is_guess("path"));
    }

    #[test]
    fn an_address_under_another_name_is_an_extension() {
        assert_eq!(ValueSource::Address.action("remote_address", None), json!({"remote_address": {}}));
        assert_eq!(ValueSource::Address.action("login_ip", None)["extension"]["name"], "login_ip");
        assert_eq!(ValueSource::Fixed.action("tier", Some("free"))["generic_key"]["descriptor_value"], "free");
    }
}
