//! The memory of connections without a request.

use tidegate_testkit::Upstream;

use super::GatewayServer;
use super::client::HttpClient;

const CLIENTS: usize = 1_000;

/// Maximum memory of one idle connection, in bytes. The binary of the tests is not optimized, so that its tasks are larger
/// than those of a release.
const MAX_BYTES_PER_CLIENT: usize = 16 << 10;

/// Run alone, because other tests would change the time of connects.
mod serial {
    use super::*;

    #[test]
    fn idle_connections_are_within_their_memory_bound() {
        let upstream = Upstream::start();
        let gateway = GatewayServer::forward_to(&upstream.url());
        let serve_clients = || -> Vec<HttpClient> {
            let clients = (0..CLIENTS).map(|_| {
                let mut client = gateway.connect();
                assert_eq!(client.get("/bytes/4000").body.len(), 4000);
                client
            });
            clients.collect()
        };
        // The first connections fill caches and pools.
        let first = serve_clients();
        let before = gateway.peak_memory();
        let second = serve_clients();
        let grown = gateway.peak_memory() - before;
        assert!(grown < CLIENTS * MAX_BYTES_PER_CLIENT, "{} bytes each", grown / CLIENTS);
        for mut client in first.into_iter().chain(second).step_by(100) {
            assert_eq!(client.get("/bytes/10").body.len(), 10);
        }
    }
}
