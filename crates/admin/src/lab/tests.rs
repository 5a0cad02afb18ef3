//! Tests of parsing and of the bounds.

use super::*;

fn spec(body: &str) -> Result<SimulationSpec, CallError> {
    Json::read(body.as_bytes()).and_then(parse_spec)
}

fn admitted(body: &str) -> Vec<(String, u64, Option<u64>)> {
    let report = spec(body).unwrap().plan().unwrap().run(&mut |_| {});
    report.result.lines.into_iter().map(|line| (line.name, line.admitted, line.textbook)).collect()
}

#[test]
fn default_simulation_is_the_boundary_attack() {
    let found = admitted("{}");
    assert_eq!(found, [("fixed_window".into(), 40, None), ("sliding_log".into(), 20, None)]);
}

#[test]
fn synced_fleet_is_reported_with_the_textbook_count() {
    for (millis, counted) in [(400, 108), (1_000, 180)] {
        let body = format!(
            r#"{{"traffic":"steady","algorithms":["fixed_window"],"limit":60,"nodes":3,"rate":270,
                "accuracy":"synced","syncMillis":{millis},"maxAhead":"unbounded","lengthMillis":1000}}"#
        );
        let found = admitted(&body);
        assert_eq!((found[0].1, found[0].2), (counted, Some(counted)), "{found:?}");
    }
}

#[test]
fn value_out_of_range_is_rejected_with_the_wanted_range() {
    for (body, expected) in [
        (r#"{"limit":0}"#, "limit: found 0, wanted a whole number from 1 to 1000000"),
        (r#"{"nodes":1000}"#, "nodes: found 1000, wanted a whole number from 1 to 50"),
        (r#"{"syncMillis":5}"#, "syncMillis: found 5, wanted a whole number from 10 to 60000"),
        (
            r#"{"accuracy":"vague"}"#,
            "accuracy: found \"vague\", wanted exact, leased, synced or split",
        ),
        (r#"{"maxAhead":0}"#, "maxAhead: found 0, wanted a number above 0, unbounded or null"),
        (r#"{"algorithms":[]}"#, "algorithms: found 0 of them, wanted from 1 to 5"),
        (r#"{"traffic":"jam"}"#, "traffic: found \"jam\", wanted one of steady, bursty, "),
        (r#"{"hurry":1}"#, "hurry: found an unknown field, wanted traffic, algorithms, "),
    ] {
        let found = spec(body).unwrap_err().to_string();
        assert!(found.starts_with(expected), "{found}");
    }
}

#[test]
fn work_of_large_simulations_exceeds_the_bound() {
    let work = |body| spec(body).unwrap().plan().unwrap().work();
    assert!(work("{}") <= 100);
    assert!(work(r#"{"traffic":"steady","rate":100000,"lengthMillis":5000}"#) > MAX_WORK);
    let many =
        r#"{"algorithms":["fixed_window"],"limit":1000000,"clients":10000,"lengthMillis":3600000}"#;
    assert!(work(many) > MAX_WORK);
    let syncs = r#"{"traffic":"steady","algorithms":["fixed_window"],"rate":1,"clients":10000,
        "nodes":50,"accuracy":"synced","syncMillis":10,"lengthMillis":3600000}"#;
    assert!(work(syncs) > MAX_WORK);
}
