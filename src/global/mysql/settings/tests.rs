//! How the flags work together, and what is said of those that can't be used.

use clap::Parser;

use super::*;

#[derive(Parser)]
struct Command {
    #[command(flatten)]
    flags: MysqlFlags,
}

fn flags(args: &str) -> MysqlFlags {
    let args = std::iter::once("migrate").chain(args.split_whitespace());
    Command::try_parse_from(args).unwrap().flags
}

fn settings(args: &str) -> MysqlSettings {
    MysqlSettings::required(&flags(args)).unwrap()
}

fn said(args: &str) -> String {
    MysqlSettings::required(&flags(args)).unwrap_err().to_string()
}

#[test]
fn no_url_is_no_mysql() {
    assert_eq!(MysqlSettings::new(&flags("")), Ok(None));
    let empty = MysqlFlags { mysql_url: Some(Secret::new(" ")), ..flags("--mysql-password-file f") };
    assert_eq!(MysqlSettings::new(&empty), Ok(None));
    assert!(empty.warning().is_some_and(|said| said.contains("PASSWORD_FILE without --mysql-url (MYSQL_URL)")));
    assert_eq!(flags("").warning(), None);
    assert!(said("").contains("--mysql-url (MYSQL_URL) is not set: write mysql://user:password@host:3306/database"));
}

#[test]
fn a_url_has_all_that_is_needed() {
    let settings = settings("--mysql-url mysql://u:p%40ss@db.example/tide?ssl-mode=REQUIRED");
    assert_eq!((settings.place.as_str(), settings.timeout), ("db.example:3306, database tide", Duration::from_secs(2)));
    let options = settings.connect_options().unwrap();
    assert_eq!((options.get_host(), options.get_port(), options.get_username()), ("db.example", 3306, "u"));
    assert!(matches!(options.get_ssl_mode(), MySqlSslMode::Required));
    assert!(options.to_url_lossy().as_str().contains(":p%40ss@"));
}

#[test]
fn a_url_may_name_a_socket_or_an_ipv6_address() {
    assert_eq!(settings("--mysql-url mysql://u@localhost/t?socket=/run/m.sock").place, "/run/m.sock, database t");
    let ipv6 = settings("--mysql-url mariadb://u@[::1]:3307/t");
    assert_eq!(ipv6.place, "[::1]:3307, database t");
    assert_eq!(ipv6.connect_options().unwrap().get_host(), "::1");
}

#[test]
fn a_url_that_can_not_be_used_is_explained_and_not_shown() {
    for (url, fault) in [
        ("host:3306/hunter2", "does not begin with mysql://: write mysql://user:password@host:3306/database"),
        ("postgres://u:hunter2@h/d", "does not begin with mysql://"),
        ("mysql://u:hunter2@h:port/d", "is not a URL"),
        ("mysql://u:hunter2@h", "names no database"),
        ("mysql://u:hunter2@h/", "names no database"),
        ("mysql://h/d", "names no user"),
        ("mysql://u:hunter2@/d", "names no host"),
        (
            "mysql://u:hunter2@h/d?ssl_mode=VERIFY_CA",
            "the parameter 'ssl_mode', which is not known: there are ssl-mode",
        ),
        ("mysql://u:hunter2@h/d?charset=latin1", "the parameter 'charset'"),
        ("mysql://u:hunter2@h/d?ssl-mode=VERIFY", "ssl-mode=VERIFY, which is not known: write DISABLED, PREFERRED"),
        ("mysql://u:x/hunter2@h/d", "write %2F, %3F and %40 instead"),
        ("mysql://u:x@y/hunter2@h/d", "write %2F, %3F and %40 instead"),
        ("mysql://u:x@y?hunter2@h/d", "write %2F, %3F and %40 instead"),
        ("mysql://u:x@y/z?hunter2=1@h/d", "write %2F, %3F and %40 instead"),
        ("mysql://u:hunter2@h/d?ssl-cert=c", "has ssl-cert, but no ssl-key: write both"),
        ("mysql://u:hunter2@h/d?ssl-key=c", "has ssl-key, but no ssl-cert: write both"),
        ("mysql://u:hunter2@h/d?ssl-ca=/nowhere", "its ssl-ca is '/nowhere', which can't be read"),
        ("mysql://u:hunter2@h/d?ssl-cert=/nowhere&ssl-key=k", "its ssl-cert is '/nowhere', which can't be read"),
    ] {
        let text = said(&format!("--mysql-url {url}"));
        assert!(text.contains(fault) && text.starts_with("--mysql-url (MYSQL_URL)"), "{url}: {text}");
        assert!(!text.contains("hunter2"), "{text}");
    }
}

#[test]
fn files_have_to_hold_what_they_should() {
    let directory = tempfile::tempdir().unwrap();
    let file = |name: &str, content: &str| {
        let path = directory.path().join(name);
        std::fs::write(&path, content).unwrap();
        path.display().to_string()
    };
    let issued = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
    let (certificate, key) = (file("c", &issued.cert.pem()), file("k", &issued.signing_key.serialize_pem()));
    let text = file("t", "nothing\n");
    let url = |ca: &str, certificate: &str, key: &str| {
        format!("--mysql-url mysql://u@h/d?ssl-mode=verify_ca&ssl-ca={ca}&ssl-cert={certificate}&ssl-key={key}")
    };
    settings(&url(&certificate, &certificate, &key));
    assert!(said(&url(&text, &certificate, &key)).contains("its ssl-ca is"));
    assert!(said(&url(&certificate, &text, &key)).contains("has no certificate in it: name a PEM file"));
    assert!(said(&url(&certificate, &certificate, &text)).contains("has no private key in it"));
}

#[test]
fn a_ca_that_nobody_asks_for_is_worth_a_word() {
    let with = |mode| flags(&format!("--mysql-url mysql://u@h/d?ssl-ca=/ca&ssl-mode={mode}")).warning();
    for mode in ["DISABLED", "PREFERRED", "REQUIRED"] {
        assert!(with(mode).is_some_and(|said| said.contains("nobody verifies the server unless ssl-mode")), "{mode}");
    }
    assert_eq!((with("VERIFY_CA"), with("VERIFY_IDENTITY")), (None, None));
    assert_eq!(flags("--mysql-url mysql://u@h/d?ssl-mode=DISABLED").warning(), None);
}

#[test]
fn a_password_file_is_read_each_time() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("password");
    let args = format!("--mysql-url mysql://u@h/d --mysql-password-file {}", file.display());
    let text = said(&args);
    assert!(text.contains("(TIDEGATE_MYSQL_PASSWORD_FILE)") && text.contains("can't be read"), "{text}");
    std::fs::write(&file, "\n").unwrap();
    assert!(said(&args).contains("is empty: name a file with one line, the password"));
    std::fs::write(&file, "open sesame\r\n").unwrap();
    let settings = settings(&args);
    let url = || settings.connect_options().map(|options| options.to_url_lossy().to_string());
    assert!(url().unwrap().contains(":open%20sesame@"));
    std::fs::write(&file, "other").unwrap();
    assert!(url().unwrap().contains(":other@"));
    std::fs::remove_file(&file).unwrap();
    assert!(url().is_err());
    let both = format!("--mysql-url mysql://u:p@h/d --mysql-password-file {}", file.display());
    assert!(said(&both).contains("both have a password: leave one of them out"));
}

#[test]
fn timeouts_are_bounded() {
    assert!(said("--mysql-timeout 9ms").contains("(TIDEGATE_MYSQL_TIMEOUT) is 9ms: write a duration from 10ms to 1m"));
    assert!(said("--mysql-timeout 61s").contains("is 1m 1s"));
    assert_eq!(settings("--mysql-url mysql://u@h/d --mysql-timeout 1m").timeout, Duration::from_secs(60));
}

#[test]
fn secrets_are_not_shown() {
    let args = "--mysql-url mysql://u:hunter2@h/d";
    assert!(!format!("{:?} {:?}", flags(args), settings(args)).contains("hunter2"));
    let help = <Command as clap::CommandFactory>::command().render_long_help().to_string();
    assert!(help.contains("MYSQL_URL]") && !help.contains("MYSQL_URL="), "{help}");
}
