//! Every form of REDIS_URL, and every way to get it wrong.

use super::*;

fn single(text: &str) -> Result<RedisAddress, AddressError> {
    RedisAddress::parse(text, RedisType::Single, None)
}

fn cluster(text: &str) -> Result<RedisAddress, AddressError> {
    RedisAddress::parse(text, RedisType::Cluster, None)
}

fn sentinel(text: &str) -> Result<RedisAddress, AddressError> {
    RedisAddress::parse(text, RedisType::Sentinel, None)
}

fn node(host: &str, port: u16) -> RedisNode {
    RedisNode { host: host.into(), port }
}

#[test]
fn a_server_is_a_host_and_port_or_a_url() {
    for (text, host, port, shown) in [
        ("redis:6379", "redis", 6379, "redis:6379"),
        (" 10.0.0.1:1 ", "10.0.0.1", 1, "10.0.0.1:1"),
        ("[::1]:6380", "::1", 6380, "[::1]:6380"),
        ("redis://redis", "redis", 6379, "redis:6379"),
        ("redis://[fd00::1]:7", "fd00::1", 7, "[fd00::1]:7"),
    ] {
        let address = single(text).unwrap();
        assert_eq!(address.place, RedisTarget::Single(node(host, port)), "{text}");
        assert_eq!(address.place.to_string(), shown);
        assert_eq!((address.database, address.credentials, address.is_tls), (0, None, false), "{text}");
    }
}

#[test]
fn a_url_may_say_who_where_and_how() {
    let address = single("rediss://edge:p%40ss%2Fw@cache.test:6390/3").unwrap();
    assert_eq!(address.place, RedisTarget::Single(node("cache.test", 6390)));
    assert_eq!((address.database, address.is_tls), (3, true));
    let credentials = address.credentials.unwrap();
    assert_eq!((credentials.user.as_deref(), credentials.password.expose()), (Some("edge"), "p@ss/w"));
    let credentials = single("redis://:pass,word@h").unwrap().credentials.unwrap();
    assert_eq!((credentials.user, credentials.password.expose()), (None, "pass,word"));
}

#[test]
fn a_unix_socket_is_a_path() {
    for text in ["/run/redis.sock", "unix:///run/redis.sock", "redis+unix:///run/redis.sock", "unix:/run/redis.sock"] {
        assert_eq!(single(text).unwrap().place, RedisTarget::Unix("/run/redis.sock".into()), "{text}");
    }
    let typed = |text, socket| RedisAddress::parse(text, RedisType::Single, Some(socket));
    assert_eq!(typed("redis.sock", SocketType::Unix).unwrap().place, RedisTarget::Unix("redis.sock".into()));
    assert_eq!(typed("./redis.sock", SocketType::Unix).unwrap().place, RedisTarget::Unix("./redis.sock".into()));
    // The form says more than the type, whose default is `unix` in envoyproxy/ratelimit.
    assert_eq!(typed("redis:6379", SocketType::Unix).unwrap().place, RedisTarget::Single(node("redis", 6379)));
    assert_eq!(typed("/run/x", SocketType::Tcp).unwrap().place, RedisTarget::Unix("/run/x".into()));
    assert_eq!(single(&format!("/{}", "x".repeat(107))), Err(AddressError::PathTooLong(108)));
    assert!(matches!(single("/run/"), Err(AddressError::Form(_))));
}

#[test]
fn a_cluster_is_a_list() {
    let address = cluster("a:1, [::1]:2,,c:3").unwrap();
    assert_eq!(address.place, RedisTarget::Cluster(vec![node("a", 1), node("::1", 2), node("c", 3)]));
    assert_eq!(address.place.to_string(), "cluster a:1,[::1]:2,c:3");
    let address = cluster("rediss://u:p@a:1,rediss://u:p@b:2").unwrap();
    assert!(address.is_tls && address.credentials.is_some());
    assert!(cluster("redis://u:p@a:1,b:2").unwrap().credentials.is_some());
    assert_eq!(cluster("redis://u:p@a:1,redis://u:q@b:2"), Err(AddressError::DifferentCredentials));
    assert_eq!(cluster("redis://a:1,rediss://b:2"), Err(AddressError::DifferentTls));
    assert_eq!(cluster("redis://a:1/2"), Err(AddressError::ClusterDatabase(2)));
    assert_eq!(cluster("a:1,/run/x"), Err(AddressError::UnixInList("CLUSTER")));
    assert!(matches!(cluster(","), Err(AddressError::Form(_))));
}

#[test]
fn sentinels_come_after_the_name() {
    let address = sentinel("mymaster,s1:26379,s2:26379").unwrap();
    let sentinels = vec![node("s1", 26379), node("s2", 26379)];
    assert_eq!(address.place, RedisTarget::Sentinel { master: "mymaster".into(), sentinels });
    assert_eq!(address.place.to_string(), "mymaster of the sentinels s1:26379,s2:26379");
    assert!(sentinel("rediss://mymaster,rediss://s1:1").unwrap().is_tls);
    assert!(sentinel("mymaster,rediss://s1:1").unwrap().is_tls);
    for text in ["", "mymaster", "s1:26379,s2:26379", "redis://s1:26379,redis://s2:26379"] {
        let said = sentinel(text).unwrap_err().to_string();
        assert!(said.contains("REDIS_TYPE") && said.contains("mymaster,sentinel-1:26379"), "{said}");
    }
    assert_eq!(sentinel("m,redis://u:p@s1:1"), Err(AddressError::SentinelCredentials));
    assert_eq!(sentinel("m,/run/x"), Err(AddressError::UnixInList("SENTINEL")));
}

#[test]
fn what_names_no_server_is_refused_without_its_password() {
    assert_eq!(single("redis"), Err(AddressError::NoPort("redis".into())));
    assert_eq!(single("a:1,b:2"), Err(AddressError::ListForSingle));
    for text in ["", ":6379", "a:0", "a:65536", "a:x", "::1:6379", "[x]:1", "http://a:1", "a b:1"] {
        let said = single(text).unwrap_err().to_string();
        assert!(said.contains("--redis-url (REDIS_URL)") && said.contains("write"), "{text}: {said}");
    }
    for text in ["redis://u:hunter2@", "redis://u:hunter2@h:x", "rediss://u:hunter2@h#insecure", "u:hunter2@h:x"] {
        let said = single(text).unwrap_err().to_string();
        assert!(said.contains("--redis-url (REDIS_URL)") && !said.contains("hunter2"), "{said}");
    }
    assert!(matches!(single("rediss://h#insecure"), Err(AddressError::Insecure(_))));
    assert!(matches!(single("redis://user@h"), Err(AddressError::Url(_))));
    assert_eq!(single("redis://h/-1"), Err(AddressError::Database(-1)));
    assert!(!format!("{:?}", single("redis://u:hunter2@h").unwrap()).contains("hunter2"));
}

#[test]
fn a_password_in_a_url_that_is_written_wrong_is_not_said() {
    let singles = [
        "redis://:hunter2",
        "redis://user:hunter2",
        "hunter2:redis.host:6379",
        "user:hunter2",
        ":hunter2",
        "redis://redis.host/hunter2",
        "redis://redis.host:hunter2",
        "http://hunter2:redis.host:6379",
        "redis+unix:///run/redis.sock?pass=hunter2",
        "unix:/run/redis.sock?pass=hunter2",
    ];
    for text in singles {
        let error = single(text).unwrap_err();
        assert!(!error.to_string().contains("hunter2") && !format!("{error:?}").contains("hunter2"), "{error:?}");
        let error = cluster(&format!("{text},redis.host:6379")).unwrap_err();
        assert!(!error.to_string().contains("hunter2"), "{error}");
        let error = sentinel(&format!("mymaster,{text}")).unwrap_err();
        assert!(!error.to_string().contains("hunter2"), "{error}");
        let error = sentinel(&format!("{text},redis.host:26379")).unwrap_err();
        assert!(!error.to_string().contains("hunter2"), "{error}");
    }
    // A comma of the password ends an element.
    for text in ["redis://:hunter2,x@redis.host:6379", "redis://u:12,hunter2,x@redis.host:6379", "a:1,u:hunter2,x@b:2"]
    {
        let error = cluster(text).unwrap_err();
        assert!(matches!(error, AddressError::InList(_)) && !error.to_string().contains("hunter2"), "{error}");
        assert!(error.to_string().contains("%2C"), "{error}");
    }
    assert!(single("http://redis.host:6379").unwrap_err().to_string().contains("'http://redis.host:6379'"));
}

#[test]
fn credentials_are_split_at_the_first_colon() {
    let read = |text: &str| {
        let Credentials { user, password } = Credentials::parse(text);
        (user, password.expose().to_owned())
    };
    assert_eq!(read("pass"), (None, "pass".into()));
    assert_eq!(read("user:pa:ss"), (Some("user".into()), "pa:ss".into()));
    assert_eq!(read(":pass"), (None, "pass".into()));
}
