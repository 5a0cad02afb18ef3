//! Rules as gateways use them, and requests for them.

use std::fmt::Write as _;

use tidegate::Request;

/// Returns rules for tenants by path, exact routes, customers by key, offices by network, and hosts by suffix. Most also
/// match a method or a shared prefix.
#[must_use]
pub fn rules(size: usize) -> String {
    let mut yaml = String::from("rules:\n");
    for n in 0..size {
        let matching = match n % 5 {
            0 => format!("{{path: /v1/tenant-{n}/**, method: GET}}"),
            1 => format!("{{path: /v1/routes/route-{n}, method: [GET, POST]}}"),
            2 => format!("{{path: /v1/**, api_key: key-{n}}}"),
            3 => format!("{{ip: {{in: [10.{}.{}.0/24]}}, method: GET}}", n / 256, n % 256),
            _ => format!("{{host: \"*.customer-{n}.example.com\", user: {{present: true}}}}"),
        };
        let _ = writeln!(yaml, "- {{name: r{n}, limit: 10/s, per: [ip], match: {matching}}}");
    }
    yaml
}

/// Returns requests with typical HTTP attributes that match rules of every kind, and some that match none.
#[must_use]
pub fn requests(size: usize) -> Vec<Request<'static>> {
    (0..1_000)
        .filter_map(|n| {
            // A fixed stride visits all rules in an order that caches cannot predict.
            let n = n * 7_919 % (size + size / 10);
            let path = match n % 5 {
                0 => format!("/v1/tenant-{n}/orders/{n}"),
                1 => format!("/v1/routes/route-{n}"),
                _ => format!("/v1/orders/{n}"),
            };
            Request::new()
                .with("method", "GET")
                .and_then(|request| request.with("host", format!("api.customer-{n}.example.com")))
                .and_then(|request| request.with("path", path))
                .and_then(|request| request.with("ip", format!("10.{}.{}.7", n / 256, n % 256)))
                .and_then(|request| request.with("user", format!("user-{n}")))
                .and_then(|request| request.with("api_key", format!("key-{n}")))
                .and_then(|request| request.with("header.user-agent", "bench/1.0"))
                .and_then(|request| request.with("header.accept", "*/*"))
                .ok()
        })
        .collect()
}
