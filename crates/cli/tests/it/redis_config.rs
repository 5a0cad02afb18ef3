//! `store.redis` in a configuration and the flag `--redis`: accepted forms and errors.

use crate::kit::{Folder, run, without_excerpts};

#[test]
fn every_form_of_servers_and_every_setting_is_accepted() {
    let folder = Folder::new();
    for text in [
        "store: {redis: {url: 'redis://cache'}}",
        "store: {redis: {url: 'rediss://app:hunter2@cache.example:7000/2?prefix=shop.'}}",
        "store: {redis: {url: 'redis+unix:///run/redis.sock', database: 3}}",
        "store: {redis: {url: 'redis+cluster://a,b:7001', timeout: 25ms}}",
        "store: {redis: {cluster: [a, 'b:7001', '[::1]:7002'], prefix: 'shop.', user: app}}",
        "store: {redis: {sentinel: {addresses: [a, b], master: main}, password: hunter2}}",
        "store: {redis: {sentinel: {addresses: [a], master: main, user: w, password: hunter2}}}",
        "store: {redis: {sentinel: {addresses: [a], master: main, password_file: pw}}}",
        "store: {redis: {shards: ['redis://a', 'redis://b'], denial_memory: 500ms}}",
        "store: {redis: {shards: [a, 'b:7001'], denial_memory: off}}",
        "store: {redis: {url: 'redis://a', tls: {ca: ca.pem, certificate: c.pem, key: k.pem}}}",
        "store: {redis: {url: 'redis://a', password_file: pw, secret_file: fleet}}",
        "store: {redis: {url: 'redis://a', secret: 'correct horse'}}",
        "store: {redis: {url: 'redis://a', tls: {}}}",
    ] {
        let config = folder.file("tidegate.yaml", text);
        let (code, _, stderr) = run(&["validate", &config]);
        assert_eq!(
            (code, stderr),
            (0, format!("{config}: valid, without rules on this machine\n")),
            "{text}"
        );
    }
}

#[test]
fn store_errors_have_their_line_and_contain_no_secret() {
    let folder = Folder::new();
    let forms = "store.redis must have one of url, cluster, sentinel, shards, found";
    let host = "host must be a name, an IPv4 address or an IPv6 address in brackets";
    for (text, errors) in [
        ("store:\n  redis: {}", vec![format!("2: {forms} none")]),
        (
            "store:\n  redis:\n    url: redis://a\n    shards: [b]\n    cluster: [c]",
            vec![format!("3: {forms} url and cluster and shards")],
        ),
        (
            "store:\n  memory: {}\n  redis: {url: 'redis://a'}",
            vec!["3: store must have memory or redis, found both".to_owned()],
        ),
        (
            "store:\n  redis:\n    url: redis://u:hunter2@a:hunter3",
            vec!["3: store.redis.url: port must be a number from 1 to 65535".to_owned()],
        ),
        (
            "store: {redis: {url: 'memcached://a'}}",
            vec![
                "1: store.redis.url: scheme must be redis, rediss, redis+cluster, rediss+cluster, \
                 redis+sentinel, rediss+sentinel or redis+unix, found \"memcached\""
                    .to_owned(),
            ],
        ),
        (
            "store: {redis: {cluster: ['a b']}}",
            vec![format!("1: store.redis.cluster: {host}, found \"a b\"")],
        ),
        (
            "store: {redis: {cluster: []}}",
            vec![
                "1: store.redis.cluster: number of servers must be from 1 to 1000, found 0"
                    .to_owned(),
            ],
        ),
        (
            "store: {redis: {sentinel: {addresses: [a]}}}",
            vec![
                "1: store.redis.sentinel: master must be the name that the sentinels know it by, \
                 found \"\""
                    .to_owned(),
            ],
        ),
        (
            "store: {redis: {sentinel: {addresses: [a], master: m, user: w}}}",
            vec!["1: store.redis.sentinel: user needs a password, found none".to_owned()],
        ),
        (
            "store: {redis: {shards: ['redis://:hunter2@a', 'redis://:hunter3@b']}}",
            vec!["1: store.redis.shards: password must be the same for every shard".to_owned()],
        ),
        (
            "store:\n  redis:\n    url: redis://a\n    timeout: soon\n    denial_memory: 2s\n    \
             database: one\n    prefix: '{tg}'",
            vec![
                "4: store.redis: timeout must be like 25ms or 1s, found \"soon\"".to_owned(),
                "7: store.redis: prefix must be 1 to 32 printable ASCII characters without braces, \
                 found \"{tg}\""
                    .to_owned(),
                "5: store.redis: denial memory must be from 0 s to 1 s, found 2 s".to_owned(),
                "6: store.redis: database must be a number, found \"one\"".to_owned(),
            ],
        ),
        (
            "store:\n  redis:\n    url: redis://a\n    password: hunter2\n    password_file: pw",
            vec!["4: store.redis must have password or password_file, found both".to_owned()],
        ),
        (
            "store: {redis: {url: 'redis://a', password: ''}}",
            vec!["1: store.redis: password must be 1 to 1024 bytes long, found 0 bytes".to_owned()],
        ),
        (
            "store: {redis: {url: 'redis://a', tls: {key: k.pem}}}",
            vec![
                "1: store.redis: tls must have both or neither of certificate and key, found key"
                    .to_owned(),
            ],
        ),
        (
            "store: {redis: {url: 'redis+unix:///run/redis.sock', tls: {}}}",
            vec!["1: store.redis: tls must be left out for a socket path".to_owned()],
        ),
        (
            "store: {redis: 'redis://:hunter2@a'}",
            vec!["1: redis must be a map, found a URL".to_owned()],
        ),
        (
            "store: {redis: {shards: 'redis://:hunter2@a'}}",
            vec!["1: shards must be a list, found a URL".to_owned()],
        ),
        (
            "store: {redis: {'redis://:hunter2@a': 1}}",
            vec![
                "1: there is no key a URL, wanted url, cluster, sentinel, shards, timeout, prefix, \
                 denial_memory, database, user, password, password_file, secret, secret_file, tls"
                    .to_owned(),
            ],
        ),
        (
            "store:\n  redis:\n    url: redis://a\n    password: *hunter2\n",
            vec!["4: this is no YAML, a secret with special characters needs quotes".to_owned()],
        ),
        (
            "store:\n  redis:\n    url: redis://a\n    password: @hunter2\n",
            vec!["4: this is no YAML, a secret with special characters needs quotes".to_owned()],
        ),
    ] {
        let config = folder.file("tidegate.yaml", text);
        for command in [&["validate"][..], &["serve", "--http", "127.0.0.1:0", "--config"]] {
            let (code, stdout, stderr) = run(&[command, &[&config]].concat());
            let expected: String =
                errors.iter().map(|error| format!("{config}:{error}\n")).collect();
            assert!(!stderr.contains("hunter2"), "{stderr}");
            assert_eq!((code, &*stdout, without_excerpts(&stderr)), (1, "", expected), "{text}");
        }
    }
}

#[test]
fn error_of_an_invalid_redis_flag_contains_no_password() {
    for (url, error) in [
        (
            "redis://:hunter2@",
            "host must be a name, an IPv4 address or an IPv6 address in brackets, found \"\"",
        ),
        ("redis://app:hunter2", "port must be a number from 1 to 65535"),
        (
            "redis://app:hunter2@a@b",
            "url must be percent-encoded where a user, password or value has one of @ / ? # (@ is %40)",
        ),
        ("hunter2", "url must be like redis://host:port, with a scheme and a host"),
        ("redis://a?timeout=never", "timeout must be like 25ms or 1s, found \"never\""),
    ] {
        let (code, stdout, stderr) = run(&["serve", "--http", "127.0.0.1:0", "--redis", url]);
        assert_eq!((code, &*stdout), (2, ""), "{url}");
        let mut lines = stderr.lines();
        assert_eq!(lines.next(), Some(&*format!("error: --redis: {error}")));
        let hint = "hint: --redis takes a URL like redis://127.0.0.1:6379; tidegate serve --help lists all forms";
        assert_eq!((lines.next(), lines.next()), (Some(hint), None));
        assert!(!stderr.contains("hunter2"), "{stderr}");
    }
}

#[test]
fn missing_password_file_fails_serve_but_not_validate() {
    let folder = Folder::new();
    let config = folder.file(
        "tidegate.yaml",
        "store: {redis: {url: 'redis://127.0.0.1:1', password_file: no-such-file}}",
    );
    // `validate` does not read the secrets of a configuration.
    assert_eq!(run(&["validate", &config]).0, 0);
    let (code, _, stderr) = run(&["serve", "--http", "127.0.0.1:0", "--config", &config]);
    assert_eq!(code, 2);
    let path = format!("{}/no-such-file", folder.path());
    assert_eq!(stderr, format!("error: {path}: No such file or directory (os error 2)\n"));
    folder.file("no-such-file", "\n");
    let (code, _, stderr) = run(&["serve", "--http", "127.0.0.1:0", "--config", &config]);
    assert_eq!(code, 2);
    let wanted = "password must be 1 to 1024 bytes long, found 0 bytes";
    assert_eq!(stderr, format!("error: {path}: {wanted}\n"));
}

#[test]
fn help_lists_every_redis_url_scheme() {
    let (_, help, _) = run(&["serve", "--help"]);
    for scheme in ["redis://", "rediss", "redis+cluster://", "redis+sentinel://", "redis+unix://"] {
        assert!(help.contains(scheme), "{scheme} is not in {help}");
    }
}
