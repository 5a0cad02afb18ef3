use proptest::prelude::*;

use super::*;

fn read(url: &str) -> RedisConfig {
    url.parse().unwrap_or_else(|error| panic!("{url}: {error}"))
}

fn refused(url: &str) -> String {
    url.parse::<RedisConfig>().expect_err(url).to_string()
}

fn tcp(host: &str, port: u16) -> Address {
    Address::tcp(host, port).unwrap()
}

#[test]
fn a_single_server_reads_with_its_defaults() {
    let config = read("redis://localhost");
    assert_eq!(config.servers(), &Servers::Single(tcp("localhost", 6379)));
    assert_eq!((config.user(), config.database(), config.prefix()), (None, 0, "tg:"));
    assert_eq!(config.timeout(), Duration::from_millis(10));
    assert!(config.tls().is_none() && config.login().password.is_none());
}

#[test]
fn every_part_of_a_url_is_read() {
    let config = read("rediss://app:p%40ss:w%2Frd@[::1]:7000/3?prefix=shop:&timeout=25ms");
    assert_eq!(config.servers(), &Servers::Single(tcp("::1", 7000)));
    assert_eq!(config.user(), Some("app"));
    assert_eq!(config.login().password.as_ref().unwrap().reveal(), "p@ss:w/rd");
    assert_eq!((config.database(), config.prefix()), (3, "shop:"));
    assert_eq!(config.timeout(), Duration::from_millis(25));
    assert_eq!(config.tls(), Some(&Tls::default()));
    assert_eq!(config.to_string(), "rediss://app@[::1]:7000/3?prefix=shop%3A&timeout=25ms");

    let config = read("redis://:only@h?db=2");
    assert_eq!((config.user(), config.database()), (None, 2));
    assert_eq!(config.login().password.as_ref().unwrap().reveal(), "only");
}

#[test]
fn clusters_and_sentinels_list_their_servers() {
    let config = read("redis+cluster://u:p@a:7000,b,[::1]");
    let nodes = vec![tcp("a", 7000), tcp("b", 6379), tcp("::1", 6379)];
    assert_eq!(config.servers(), &Servers::Cluster(nodes));
    assert_eq!(read("rediss+cluster://a").tls(), Some(&Tls::default()));

    let config = read("rediss+sentinel://u:p@a,b:5000/my%20master/4");
    let sentinels = vec![tcp("a", 26379), tcp("b", 5000)];
    assert_eq!(config.servers(), &Servers::Sentinel { sentinels, master: "my master".to_owned() });
    assert_eq!((config.database(), config.tls()), (4, Some(&Tls::default())));
}

#[test]
fn a_socket_has_its_login_in_the_query() {
    let config = read("redis+unix:///run/re%3Fdis.sock?db=2&user=app&password=a%26b");
    assert_eq!(config.servers(), &Servers::Single(Address::Unix("/run/re?dis.sock".into())));
    assert_eq!((config.database(), config.user()), (2, Some("app")));
    assert_eq!(config.login().password.as_ref().unwrap().reveal(), "a&b");
    assert_eq!(config.to_string(), "redis+unix:///run/re%3Fdis.sock?user=app&db=2");
}

#[test]
fn error_of_an_invalid_url_names_the_wanted_form() {
    for (url, error) in [
        ("localhost:6379", "url must be like redis://host:port, with a scheme and a host"),
        (
            "http://localhost",
            "scheme must be redis, rediss, redis+cluster, rediss+cluster, redis+sentinel, \
             rediss+sentinel or redis+unix, found \"http\"",
        ),
        (
            "redis://",
            "host must be a name, an IPv4 address or an IPv6 address in brackets, found \"\"",
        ),
        ("redis://a:99999", "port must be a number from 1 to 65535, found 99999"),
        ("redis://a/x", "database must be a number, found \"x\""),
        ("redis://a/1/2", "database must be a number, found \"1/2\""),
        ("redis://a/1?db=2", "database must be given once, found two of them"),
        (
            "redis://a,b",
            "number of servers must be one, unless the scheme is redis+cluster or redis+sentinel, \
             found 2",
        ),
        ("redis+cluster://a/1", "database must be 0 in a cluster, found 1"),
        ("redis+cluster://a,b,a", "server must be listed once, found a:6379 twice"),
        (
            "redis+sentinel://a,b",
            "master must be the name that the sentinels know it by, found \"\"",
        ),
        (
            "redis+unix://run/redis.sock",
            "socket must be an absolute path like redis+unix:///run/redis.sock",
        ),
        ("redis://a?timeout=soon", "timeout must be like 25ms or 1s, found \"soon\""),
        ("redis://a?timeout=2m", "timeout must be from 1 ms to 60 s, found 2 min"),
        ("redis://a?retries=3", "parameter must be prefix, timeout or db, found \"retries\""),
        (
            "redis+unix:///a?pasword=hunter2",
            "parameter must be prefix, timeout, db, user or password, found \"pasword\"",
        ),
        ("redis://a?db=1&db=1", "parameter must be given once, found db"),
        ("redis://a#b", "# in a url must be written as %23"),
    ] {
        assert_eq!(refused(url), error, "{url}");
    }
}

#[test]
fn a_password_that_is_not_encoded_is_refused_without_showing_it() {
    for url in [
        "redis://app:hun/ter2@host",
        "redis://app:hun?ter2@host",
        "redis://app:hun#ter2@host",
        "redis://app:hun@ter2@host",
        "redis://app:hunter2",
        "redis+cluster://app:hunter2@a,app:hunter2@b",
        "redis+sentinel://app:hun/ter2@a/m",
        "redis+unix:///run/redis.sock?password=hun&ter2",
        "redis+unix:///run/redis.sock?password=hun&db=ter2",
    ] {
        let error = refused(url);
        assert!(!error.contains("hun") && !error.contains("ter2"), "{url}: {error}");
    }
}

fn hosts() -> impl Strategy<Value = Address> {
    let host = prop_oneof![
        "[a-z0-9]([a-z0-9-]{0,20}[a-z0-9])?(\\.[a-z]{1,10}){0,3}",
        any::<std::net::Ipv4Addr>().prop_map(|ip| ip.to_string()),
        any::<std::net::Ipv6Addr>().prop_map(|ip| ip.to_string()),
    ];
    (host, 1u16..).prop_map(|(host, port)| tcp(&host, port))
}

fn servers() -> impl Strategy<Value = Servers> {
    let many = || {
        proptest::collection::btree_set(hosts(), 1..6)
            .prop_map(|hosts| hosts.into_iter().collect::<Vec<_>>())
            .prop_shuffle()
    };
    prop_oneof![
        hosts().prop_map(Servers::Single),
        "/[^\\p{C}]{1,25}".prop_map(|path| Servers::Single(Address::Unix(path.into()))),
        many().prop_map(Servers::Cluster),
        (many(), "[^\\p{C}]{1,40}")
            .prop_map(|(sentinels, master)| Servers::Sentinel { sentinels, master }),
    ]
}

proptest! {
    #[test]
    fn a_printed_configuration_reads_as_what_was_printed(
        servers in servers(),
        tls: bool,
        database in 0u32..20,
        user in proptest::option::of(".{1,20}"),
        prefix in "[!-z|~]{1,32}",
        timeout in 1u64..=60_000,
    ) {
        let mut config = RedisConfig::new(servers)
            .and_then(|config| config.with_prefix(prefix))
            .and_then(|config| config.with_timeout(Duration::from_millis(timeout)))
            .unwrap();
        if let Some(user) = user {
            config = config.with_user(user).unwrap();
        }
        if !matches!(config.servers(), Servers::Cluster(_)) {
            config = config.with_database(database).unwrap();
        }
        if tls && !config.servers().have_socket() {
            config = config.with_tls(Tls::default()).unwrap();
        }
        prop_assert_eq!(read(&config.to_string()), config.clone());
        let secretive = config.clone().with_password("hunter2").unwrap();
        prop_assert_eq!(secretive.to_string(), config.to_string());
    }

    #[test]
    fn garbage_is_refused_or_read_but_never_panics(
        scheme in "(redis|rediss|redis\\+cluster|redis\\+sentinel|redis\\+unix|.{0,5})",
        rest in "(://)?[a-z0-9:/@,?&=%#\\[\\]. é]{0,60}",
        noise: String,
    ) {
        for url in [format!("{scheme}{rest}"), format!("{scheme}://{noise}"), noise] {
            if let Ok(config) = url.parse::<RedisConfig>() {
                let again = read(&config.to_string());
                prop_assert_eq!(again.servers(), config.servers());
            }
        }
    }

    #[test]
    fn no_error_shows_a_password(
        scheme in "(redis|rediss|redis\\+cluster|redis\\+sentinel|redis\\+unix|.{0,5})",
        user in "[a-z]{0,5}",
        before in "[A-Z:@/?#,%&=]{0,3}",
        after in "[A-Z:@/?#,%&=]{0,3}",
        rest in "[a-z0-9:/@,?&=%#\\[\\]. ]{0,40}",
    ) {
        // Whatever delimiters the password has and whatever follows, none of its words show.
        let password = format!("hunter2{before}{after}hunter3");
        for url in [
            format!("{scheme}://{user}:{password}@{rest}"),
            format!("{scheme}:///{user}?password={password}&{rest}"),
        ] {
            if let Err(error) = url.parse::<RedisConfig>() {
                let error = error.to_string();
                prop_assert!(!error.contains("hunter"), "{url}: {error}");
            }
        }
    }
}
