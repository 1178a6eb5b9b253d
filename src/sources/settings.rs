//! Where rules come from and how they are read: the same for `serve`, `check` and `explain`.

use std::path::PathBuf;

use clap::{Args, ValueEnum};

use crate::flag_value::boolean;
use crate::rules::Options;
use crate::rules::limit::DigestKey;
use crate::rules::problem::Strictness;
use crate::secret::{self, Secret, SecretError, SecretFlags};
use crate::sources::files::Location;
use crate::sources::runtime::RuntimeDirectory;

/// What kind of place rules come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum RulesType {
    #[value(name = "FILE")]
    File,
    #[value(name = "GRPC_XDS_SOTW")]
    Xds,
}

#[derive(Args, Clone, Debug)]
pub struct RuleFlags {
    /// A rule file, or a directory whose *.yaml and *.yml files are read in name order (not recursive)
    ///
    /// Beats the RUNTIME_ settings. Without either, it is config/.
    #[arg(long, env = "TIDEGATE_RULES", value_name = "PATH", help_heading = "Rules")]
    pub rules: Option<PathBuf>,

    /// Directory layout of envoyproxy/ratelimit: rules are in ROOT/SUBDIRECTORY/APPDIRECTORY, recursive
    #[arg(long, env = "RUNTIME_ROOT", value_name = "ROOT", help_heading = "Rules")]
    pub runtime_root: Option<PathBuf>,

    /// See --runtime-root
    #[arg(long, env = "RUNTIME_SUBDIRECTORY", value_name = "SUBDIRECTORY", help_heading = "Rules")]
    pub runtime_subdirectory: Option<PathBuf>,

    /// See --runtime-root [default: config]
    #[arg(long, env = "RUNTIME_APPDIRECTORY", value_name = "APPDIRECTORY", help_heading = "Rules")]
    pub runtime_appdirectory: Option<String>,

    /// Take files of ROOT/SUBDIRECTORY whose name begins with APPDIRECTORY and a dot, too
    ///
    /// Changes are noticed in any case, whether files change or a link to their directory does.
    #[arg(long, env = "RUNTIME_WATCH_ROOT", help_heading = "Rules", value_name = "BOOL", default_value = "true")]
    #[arg(num_args = 0..=1, default_missing_value = "true", value_parser = boolean, action = clap::ArgAction::Set)]
    pub runtime_watch_root: bool,

    /// Leave out files and directories whose name begins with a dot; those with two dots are always left out
    #[arg(long, env = "RUNTIME_IGNOREDOTFILES", help_heading = "Rules", value_name = "BOOL", default_value = "true")]
    #[arg(num_args = 0..=1, default_missing_value = "true", value_parser = boolean, action = clap::ArgAction::Set)]
    pub runtime_ignoredotfiles: bool,

    /// Allow a domain to be spread over several files or documents
    #[arg(long, env = "MERGE_DOMAIN_CONFIG", help_heading = "Rules", value_name = "BOOL", default_value = "false")]
    #[arg(num_args = 0..=1, default_missing_value = "true", value_parser = boolean, action = clap::ArgAction::Set)]
    pub merge_domain_config: bool,

    /// Load what envoyproxy/ratelimit accepts (misplaced keys and the like) with warnings instead of errors
    #[arg(long, env = "TIDEGATE_LENIENT_RULES", help_heading = "Rules", value_name = "BOOL", default_value = "false")]
    #[arg(num_args = 0..=1, default_missing_value = "true", value_parser = boolean, action = clap::ArgAction::Set)]
    pub lenient_rules: bool,

    #[command(flatten)]
    pub secret: SecretFlags,
}

impl RuleFlags {
    /// Reads the secret's file, if one is set.
    pub fn options(&self) -> Result<Options, SecretError> {
        // Without a secret, digests differ from start to start. With a key that everybody knows, values could be tried
        // out.
        let secret = secret::read(&self.secret)?.unwrap_or_else(Secret::random);
        Ok(Options {
            digest_key: DigestKey::new(secret.expose()),
            strictness: if self.lenient_rules { Strictness::Lenient } else { Strictness::Strict },
            merge_domains: self.merge_domain_config,
        })
    }

    pub fn location(&self) -> Location {
        let is_runtime =
            self.runtime_root.is_some() || self.runtime_subdirectory.is_some() || self.runtime_appdirectory.is_some();
        match &self.rules {
            Some(path) => Location::Path(path.clone()),
            None if is_runtime => Location::Runtime(self.runtime_directory()),
            None => Location::Path("config".into()),
        }
    }

    fn runtime_directory(&self) -> RuntimeDirectory {
        let root = self.runtime_root.clone().unwrap_or_else(|| "/srv/runtime_data/current".into());
        RuntimeDirectory {
            // A leading slash is dropped, because joining it would leave the root.
            base: match &self.runtime_subdirectory {
                Some(below) => root.join(below.strip_prefix("/").unwrap_or(below)),
                None => root,
            },
            application: self.runtime_appdirectory.clone().unwrap_or_else(|| "config".into()),
            takes_neighbours: self.runtime_watch_root,
            ignores_dot_files: self.runtime_ignoredotfiles,
        }
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::rules::{RuleText, Ruleset};

    #[derive(Parser)]
    struct Command {
        #[command(flatten)]
        rules: RuleFlags,
    }

    /// The id of a rule with a sensitive value.
    fn rule_id(options: &Options) -> String {
        let text = "
domain: d
descriptors:
  - {key: k, value: hunter2, sensitive: true, rate_limit: {requests_per_unit: 1, unit: second}}
";
        let loaded = Ruleset::load(&[RuleText { name: "f.yaml".into(), text: text.into() }], options);
        loaded.ruleset.unwrap().domain("d").unwrap().rules().next().unwrap().id.to_string()
    }

    #[test]
    fn digests_of_sensitive_values_can_not_be_recomputed_without_the_secret() {
        let flags = Command::parse_from(["serve"]).rules;
        let [one, other] = [flags.options().unwrap(), flags.options().unwrap()];
        assert_ne!(rule_id(&one), rule_id(&other), "every start has a key of its own");
        assert_eq!(rule_id(&one), rule_id(&one), "reloads keep it");
        assert_ne!(rule_id(&one), rule_id(&Options::default()), "none that everybody knows");

        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("secret");
        std::fs::write(&file, "0123456789abcdef").unwrap();
        let flags = Command::parse_from(["serve", "--secret-file", file.to_str().unwrap()]).rules;
        assert_eq!(rule_id(&flags.options().unwrap()), rule_id(&flags.options().unwrap()), "with a secret all agree");
    }
}
