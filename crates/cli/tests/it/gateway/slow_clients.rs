//! One thousand clients that send and read slowly.

use tidegate_testkit::Upstream;

use super::GatewayServer;
use super::client::{HttpClient, request};

const CLIENTS: usize = 1_000;

/// Size of each download, in bytes.
const DOWNLOAD_BYTES: usize = 1 << 20;

/// Maximum memory of one client, in bytes: much less than its download.
const MAX_BYTES_PER_CLIENT: usize = 160 << 10;

/// On a busy machine a thousand connects at once take longer than the default of five seconds.
const LONG_CONNECT_TIMEOUT: &str = "gateway: {timeouts: {connect: 60s}}";

/// Run alone, because other tests would change the measured memory and the time of connects.
mod serial {
    use super::*;

    #[test]
    fn slow_clients_are_all_served_within_their_memory_bound() {
        let upstream = Upstream::start();
        let gateway = GatewayServer::with_config(&upstream.url(), LONG_CONNECT_TIMEOUT);
        let mut quick = gateway.connect();
        assert_eq!(quick.get("/bytes/1000000").body.len(), 1_000_000);
        let before = gateway.peak_memory();
        let mut clients: Vec<HttpClient> = (0..CLIENTS).map(|_| gateway.connect()).collect();
        // Every other client uploads in four parts; the rest request much and read little.
        let upload = request("POST", "/swallow", &[], &"x".repeat(300));
        let download = request("GET", &format!("/bytes/{DOWNLOAD_BYTES}"), &[], "");
        let quarter = upload.len() / 4;
        for part in 0..4 {
            let end = if part == 3 { upload.len() } else { (part + 1) * quarter };
            for (number, client) in clients.iter_mut().enumerate() {
                match (number % 2, part) {
                    (0, _) => client.write(&upload[part * quarter..end]),
                    (_, 0) => client.write(&download),
                    (_, 1) => assert_eq!(client.read_head().unwrap().status, 200),
                    _ => assert_eq!(client.discard(4096), 4096),
                }
            }
            // A fast client is answered while the slow ones are served.
            assert_eq!(quick.get("/bytes/1000").body.len(), 1000);
        }
        let grown = gateway.peak_memory() - before;
        assert!(grown < CLIENTS * MAX_BYTES_PER_CLIENT, "{} KiB each", (grown / CLIENTS) >> 10);
        for (number, client) in clients.iter_mut().enumerate() {
            if number % 2 == 0 {
                assert_eq!(client.receive("POST").text(), "300");
            } else {
                let rest = (DOWNLOAD_BYTES - 2 * 4096) as u64;
                assert_eq!(client.discard(rest), rest);
            }
        }
        assert_eq!((upstream.seen("POST"), upstream.seen("GET /bytes/1048576")), (500, 500));
    }
}
