//! How the flags work together. The forms of REDIS_URL are tested beside them.

use clap::Parser;

use super::*;
use crate::regional::redis::settings::address::RedisNode;

#[derive(Parser)]
struct Command {
    #[command(flatten)]
    flags: RedisFlags,
}

fn flags(args: &str) -> RedisFlags {
    let args = std::iter::once("serve").chain(args.split_whitespace());
    Command::try_parse_from(args).unwrap().flags
}

fn settings(args: &str) -> RedisSettings {
    RedisSettings::new(&flags(args)).unwrap().unwrap()
}

fn said(args: &str) -> String {
    RedisSettings::new(&flags(args)).unwrap_err().to_string()
}

#[test]
fn no_url_is_no_redis() {
    assert_eq!(RedisSettings::new(&flags("")), Ok(None));
    let empty = RedisFlags { redis_url: Some(Secret::new(" ")), ..flags("--redis-auth secret") };
    assert_eq!(RedisSettings::new(&empty), Ok(None));
    assert!(empty.warning().is_some_and(|said| said.contains("REDIS_AUTH without --redis-url")));
    assert_eq!(flags("").warning(), None);
}

#[test]
fn defaults_are_those_of_the_documentation() {
    let settings = settings("--redis-url redis:6379");
    assert_eq!(settings.place, RedisTarget::Single(RedisNode { host: "redis".into(), port: 6379 }));
    assert_eq!((settings.login, settings.tls, settings.sentinel_login), (Login::None, None, None));
    assert_eq!((settings.database, settings.slack), (0, 100));
    assert_eq!(settings.connect_timeout, Duration::from_secs(1));
    assert_eq!(settings.origin_deadline, Duration::from_millis(10));
}

#[test]
fn types_are_taken_in_any_case() {
    for text in ["cluster", "CLUSTER", "Cluster"] {
        let settings = settings(&format!("--redis-url a:1,b:2 --redis-type {text} --redis-socket-type TCP"));
        assert!(matches!(settings.place, RedisTarget::Cluster(nodes) if nodes.len() == 2));
    }
    let sentinel = settings("--redis-url m,a:1 --redis-type sentinel --redis-sentinel-auth s:t --redis-auth p");
    assert_eq!(sentinel.sentinel_login, Some(Credentials::parse("s:t")));
    assert_eq!(sentinel.login, Login::Fixed(Credentials::parse("p")));
    assert!(said("--redis-url a:1 --redis-sentinel-auth s").contains("REDIS_TYPE) is not SENTINEL"));
}

#[test]
fn one_login_is_enough() {
    assert_eq!(settings("--redis-url redis://u:p@h").login, Login::Fixed(Credentials::parse("u:p")));
    let text = said("--redis-url redis://u:p@h --redis-auth hunter2");
    assert!(text.contains("(REDIS_URL) and --redis-auth (REDIS_AUTH)") && !text.contains("hunter2"), "{text}");
    assert!(said("--redis-url h:1 --redis-auth x --redis-auth-file /f").contains("TIDEGATE_REDIS_AUTH_FILE"));
    assert!(said("--redis-url redis://u:p@h --redis-auth-file /f").contains("TIDEGATE_REDIS_AUTH_FILE"));
}

#[test]
fn a_password_file_is_read_each_time() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("auth");
    let args = format!("--redis-url h:1 --redis-auth-file {}", file.display());
    let text = said(&args);
    assert!(text.contains("--redis-auth-file (TIDEGATE_REDIS_AUTH_FILE)") && text.contains("can't be read"), "{text}");
    std::fs::write(&file, "\n").unwrap();
    assert!(said(&args).contains("is empty"));
    std::fs::write(&file, "edge:a b\r\n").unwrap();
    let settings = settings(&args);
    assert_eq!(settings.login.read(), Ok(Some(Credentials::parse("edge:a b"))));
    std::fs::write(&file, "other").unwrap();
    assert_eq!(settings.login.read(), Ok(Some(Credentials::parse("other"))));
}

#[test]
fn tls_is_on_by_flag_or_url() {
    let plain = RedisTls { ca: None, client: None, any_name: false };
    assert_eq!(settings("--redis-url h:1 --redis-tls").tls, Some(plain.clone()));
    assert_eq!(settings("--redis-url rediss://h:1").tls, Some(plain));
    assert!(settings("--redis-url rediss://h --redis-tls-skip-hostname-verification").tls.unwrap().any_name);
    assert!(said("--redis-url /run/x --redis-tls").contains("unix socket"));
    assert!(said("--redis-url rediss://h --redis-tls-cacert /nowhere").contains("REDIS_TLS_CACERT"));
    let text = said("--redis-url rediss://h --redis-tls-client-cert c");
    assert!(
        text.contains("(REDIS_TLS_CLIENT_CERT) is set") && text.contains("(REDIS_TLS_CLIENT_KEY) is not"),
        "{text}"
    );
    assert!(said("--redis-url rediss://h --redis-tls-client-key c").contains("(REDIS_TLS_CLIENT_CERT) is not"));
    assert!(flags("--redis-url h:1 --redis-tls-cacert c").warning().is_some_and(|said| said.contains("plain text")));
}

#[test]
fn bad_values_name_their_flag() {
    assert!(said("--redis-timeout 0").contains("--redis-timeout (REDIS_TIMEOUT) is 0s: write a duration from 1ms"));
    assert!(said("--redis-timeout 61s").contains("to 1m"));
    assert!(said("--origin-deadline 11s").contains("--origin-deadline (TIDEGATE_ORIGIN_DEADLINE) is 11s"));
    assert!(said("--origin-deadline 10us").contains("from 1ms to 10s"));
    assert_eq!(settings("--redis-url h:1 --slack 0").slack, 0);
    for slack in ["1.1", "-1", "x", "0.0001"] {
        assert!(Command::try_parse_from(["serve", &format!("--slack={slack}")]).is_err(), "{slack}");
    }
}

#[test]
fn secrets_are_not_shown() {
    let flags = flags("--redis-url redis://u:hunter2@h --redis-auth hunter2 --redis-sentinel-auth hunter2");
    assert!(!format!("{flags:?}").contains("hunter2"));
    let help = <Command as clap::CommandFactory>::command().render_long_help().to_string();
    assert!(help.contains("REDIS_AUTH]") && !help.contains("REDIS_AUTH="), "{help}");
    assert!(!format!("{:?}", settings("--redis-url h:1 --redis-auth u:hunter2")).contains("hunter2"));
}
