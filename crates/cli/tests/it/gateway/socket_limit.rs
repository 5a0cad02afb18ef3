//! The maximum of sockets to upstreams.

use tidegate_testkit::{Upstream, wait_for};

use super::NO_LIMIT;
use super::client::HttpClient;
use super::http2::{Http2Client, get};
use crate::kit::{Folder, Server, tidegate_with_open_files};

/// Concurrent requests of one HTTP/2 connection: more than the process may open sockets.
const STREAMS: usize = 100;

#[test]
fn request_without_a_free_upstream_socket_is_503_and_the_others_are_served() {
    let (upstream, folder) = (Upstream::start(), Folder::new());
    let mut command = tidegate_with_open_files(256);
    command.args(["serve", "--http", "127.0.0.1:0", "--gateway", "127.0.0.1:0"]);
    command.args(["--upstream", &upstream.url()]);
    command.args(["--rules", &folder.file("rules.yaml", NO_LIMIT)]);
    let server = Server::launch_command(command);
    let gateway = server.listener("gateway");
    let metric = |name: &str| -> usize {
        let metrics = server.request_admin("GET", "/metrics", "").body;
        let line = metrics.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
        line.unwrap_or_else(|| panic!("no {name} in {metrics}")).parse().unwrap()
    };
    let limit = metric("tidegate_upstream_connections_limit");
    assert!((1..STREAMS).contains(&limit), "{limit}");
    let streams = Http2Client::connect(gateway);
    let mut requests: Vec<_> = (0..STREAMS).map(|_| streams.start(get("/held"))).collect();
    // Requests without a socket are answered while the upstream holds the others.
    wait_for("every request is at the upstream or was answered", || {
        let answered = requests.iter().filter(|request| request.is_finished()).count();
        (answered > 0 && answered + upstream.seen("GET /held") == STREAMS).then_some(())
    });
    let (rejected, held): (Vec<_>, Vec<_>) =
        requests.drain(..).partition(|request| request.is_finished());
    assert!((1..=limit).contains(&held.len()), "{} of {limit}", held.len());
    assert_eq!(metric("tidegate_upstream_connections"), held.len());
    let shed = rejected.len();
    for response in rejected {
        let response = streams.receive(response);
        assert_eq!(response.status, 503);
        assert_eq!(response.headers["content-type"], "application/problem+json");
        assert!(response.headers.contains_key("retry-after"));
        let body = String::from_utf8(response.body.to_vec()).unwrap();
        assert!(body.contains("maximum of connections to upstreams"), "{body}");
    }
    let series =
        format!("tidegate_upstream_requests_total{{upstream=\"default\",outcome=\"shed\"}} {shed}");
    let metrics = server.request_admin("GET", "/metrics", "").body;
    assert!(metrics.lines().any(|line| line == series), "{series}: {metrics}");
    upstream.release(held.len());
    for response in held {
        assert_eq!(streams.receive(response).status, 200);
    }
    assert_eq!(HttpClient::connect(gateway).get("/status/200").status, 200);
}
