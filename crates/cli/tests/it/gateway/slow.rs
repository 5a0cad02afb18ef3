//! Very many clients that take their time.

use tidegate_testkit::Upstream;

use super::Gateway;
use super::client::{Client, request};

const CLIENTS: usize = 1_000;

/// What each of them asks for, in bytes.
const WANTED: usize = 1 << 20;

/// Most memory that one of them may cost, in bytes: far less than what it asked for.
const EACH: usize = 160 << 10;

/// On a busy machine a thousand connects at once take longer than the default of five seconds.
const LONG_CONNECT_TIMEOUT: &str = "gateway: {timeouts: {connect: 60s}}";

/// Memory and the number of open connections are measured.
mod serial {
    use super::*;

    #[test]
    fn a_thousand_clients_that_take_their_time_are_all_answered() {
        let upstream = Upstream::start();
        let gateway = Gateway::with_config(&upstream.url(), LONG_CONNECT_TIMEOUT);
        let mut quick = gateway.connect();
        assert_eq!(quick.get("/bytes/1000000").body.len(), 1_000_000);
        let before = gateway.peak_memory();
        let mut clients: Vec<Client> = (0..CLIENTS).map(|_| gateway.connect()).collect();
        // Every other one sends little by little, the rest asks for much and reads little.
        let upload = request("POST", "/swallow", &[], &"x".repeat(300));
        let download = request("GET", &format!("/bytes/{WANTED}"), &[], "");
        let quarter = upload.len() / 4;
        for part in 0..4 {
            let end = if part == 3 { upload.len() } else { (part + 1) * quarter };
            for (number, client) in clients.iter_mut().enumerate() {
                match (number % 2, part) {
                    (0, _) => client.write(&upload[part * quarter..end]),
                    (_, 0) => client.write(&download),
                    (_, 1) => assert_eq!(client.head().unwrap().status, 200),
                    _ => assert_eq!(client.pass_over(4096), 4096),
                }
            }
            // A fast client is answered while the slow ones are served.
            assert_eq!(quick.get("/bytes/1000").body.len(), 1000);
        }
        let grown = gateway.peak_memory() - before;
        assert!(grown < CLIENTS * EACH, "{} KiB each", (grown / CLIENTS) >> 10);
        for (number, client) in clients.iter_mut().enumerate() {
            if number % 2 == 0 {
                assert_eq!(client.receive("POST").text(), "300");
            } else {
                let rest = (WANTED - 2 * 4096) as u64;
                assert_eq!(client.pass_over(rest), rest);
            }
        }
        assert_eq!((upstream.seen("POST"), upstream.seen("GET /bytes/1048576")), (500, 500));
    }
}
