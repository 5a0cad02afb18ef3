//! The example configurations of the envoyproxy/ratelimit documentation, with the documented results.

use std::path::Path;

use tidegate_rules::Mode;

use super::*;

fn examples() -> EnvoyRules {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/envoy_examples");
    read_folder(&folder)
        .and_then(|files| EnvoyRules::parse(&files))
        .unwrap_or_else(|error| panic!("{error}"))
}

#[test]
fn documented_descriptors_find_their_documented_limits() {
    let rules = examples();
    for (domain, entries, wanted) in [
        ("mongo_cps", [("database", "users")].as_slice(), "500/SECOND"),
        ("mongo_cps", &[("database", "default")], "500/SECOND"),
        ("mongo_cps", &[("database", "other")], "-"),
        ("mongo_cps", &[], "-"),
        ("elsewhere", &[("database", "users")], "-"),
        ("messaging", &[("message_type", "marketing"), ("to_number", "2061111111")], "5/DAY"),
        ("messaging", &[("to_number", "2061111111")], "100/DAY"),
        ("messaging", &[("message_type", "marketing")], "-"),
        ("messaging", &[("message_type", "other"), ("to_number", "2061111111")], "-"),
        ("edge_proxy_per_ip", &[("remote_address", "50.0.0.1")], "10/SECOND"),
        ("edge_proxy_per_ip", &[("remote_address", "50.0.0.5")], "0/SECOND"),
        ("example4", &[("key", "value"), ("subkey", "subvalue")], "300/SECOND"),
        ("example4", &[("flat", "value"), ("subkey", "subvalue")], "-"),
        ("internal", &[("ldap", "x")], "unlimited"),
        ("internal", &[("azure", "x")], "100/MINUTE"),
        ("example6", &[("service", "auth-service"), ("user", "user-a")], "10/SECOND"),
        ("example6", &[("service", "auth-service"), ("user", "user-b")], "20/SECOND"),
        ("example6", &[("service", "auth-service"), ("user", "user-c")], "-"),
        ("example7", &[("key_1", "value_1"), ("user", "bkthomps")], "5/SECOND"),
        ("example7", &[("key_2", "value_2"), ("user", "bkthomps")], "10/SECOND"),
        ("example8", &[("key1", "unspecified_value")], "10/MINUTE"),
        ("example8", &[("key1", "value1")], "20/MINUTE"),
        ("example9", &[("key1", "value_1")], "20/MINUTE"),
        ("example9", &[("key1", "value")], "20/MINUTE"),
        ("example9", &[("key1", "other")], "-"),
        ("example9", &[("path", "/api/users/v1")], "21/MINUTE"),
        ("example9", &[("path", "/api/users/v2")], "-"),
        ("example10", &[("files", "files/a.pdf")], "100/HOUR"),
        ("example10", &[("file", "test1")], "50/MINUTE"),
        ("example10", &[("file", "test2")], "100/MINUTE"),
        ("example10", &[("tenant", "t1prod"), ("resource", "res1v2")], "60/MINUTE"),
        ("quota", &[("service", "service_1")], "1/YEAR"),
        ("quota", &[("service", "service_2")], "2/MONTH"),
        ("rl", &[("foo", "x")], "2/MINUTE"),
        ("rl", &[("foo", "x"), ("bar", "x")], "3/MINUTE"),
        ("rl", &[("foo", "x"), ("bar", "banned")], "0/MINUTE"),
        ("rl", &[("foo", "x"), ("bay", "x")], "unlimited"),
        ("rl", &[("source_cluster", "proxy"), ("destination_cluster", "mock")], "1/MINUTE"),
    ] {
        assert_eq!(limit_text(&rules, domain, entries), wanted, "{domain} {entries:?}");
    }
}

#[test]
fn values_share_a_counter_only_with_share_threshold() {
    let rules = examples();
    let files = |value| counter(&rules, "example10", &[("files", value)]);
    assert_eq!(files("files/a.pdf"), files("files/b/c.csv"));
    let values = |value| counter(&rules, "example9", &[("key1", value)]);
    assert_ne!(values("value_1"), values("value_2"));
    let numbers = |value| counter(&rules, "messaging", &[("to_number", value)]);
    assert_ne!(numbers("2061111111"), numbers("2062222222"));
    let nested = |tenant, resource| {
        counter(&rules, "example10", &[("tenant", tenant), ("resource", resource)])
    };
    assert_eq!(nested("t1prod", "res1v2"), nested("t2prod", "res1v2"));
    assert_ne!(nested("t1prod", "res1v2"), nested("t1prod", "res2v2"));
}

#[test]
fn replaced_limit_is_removed_from_the_call() {
    let rules = examples();
    let user = ("user", "bkthomps");
    let find = |key, value| rules.find("example7", &[(key, value), user]);
    let mut found = [find("key_1", "value_1"), find("key_2", "value_2")];
    drop_replaced(&mut found);
    assert!(matches!(found[0], EnvoyMatch::Nothing));
    assert!(matches!(found[1], EnvoyMatch::Limited(limit, _) if limit.requests_per_unit == 10));
}

#[test]
fn shadow_and_quota_limits_never_deny() {
    let rules = examples();
    for rule in rules.rules() {
        let is_shadow = ["example6.service.user_user-a", "rl.foo.baz_shady"].contains(&rule.name())
            || rule.name().starts_with("quota.");
        assert_eq!(rule.mode() == Mode::Shadow, is_shadow, "{}", rule.name());
    }
    let EnvoyMatch::Limited(limit, _) = rules.find("quota", &[("service", "service_1")]) else {
        panic!("no limit");
    };
    assert!(limit.quota && !limit.shadow);
    assert_eq!(limit.metadata, Some(serde_json::json!({"owner": {"team": "payments"}})));
}

#[test]
fn dump_has_the_lines_of_envoyproxy_ratelimit() {
    let dump = examples().dump();
    for line in [
        "mongo_cps.database_users: unit=SECOND requests_per_unit=500, shadow_mode: false\n",
        "messaging.message_type_marketing.to_number: unit=DAY requests_per_unit=5, shadow_mode: false\n",
        "example6.service.user_user-a: unit=SECOND requests_per_unit=10, shadow_mode: true\n",
        "internal.ldap: unit=UNKNOWN requests_per_unit=0, shadow_mode: false\n",
    ] {
        assert!(dump.contains(line), "{line}{dump}");
    }
    assert_eq!(dump.lines().count(), examples().len());
}
