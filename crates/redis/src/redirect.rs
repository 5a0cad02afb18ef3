//! Redirects of a cluster: their meaning, and the policy for following them.

use std::time::Duration;

use redis::{ErrorKind, RedisError, ServerErrorKind};
use tokio::time::Instant;

use super::address::Address;
use super::slots::node_at;

/// A reply of a cluster server that does not serve the keys of a call. Nothing was done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Redirect {
    /// Another server serves the slot.
    Moved {
        /// The slot.
        slot: u16,
        /// The server of the slot.
        to: Address,
    },
    /// The slot migrates to another server, which has the keys and serves them after `ASKING`.
    Ask {
        /// The slot.
        slot: u16,
        /// The server that imports the slot.
        to: Address,
    },
    /// The slot migrates to another server, which has some of the keys.
    TryAgain,
    /// The cluster serves no slots, or not this one.
    ClusterDown,
}

impl Redirect {
    /// Reads the error of the server at `asked`, if it is a redirect.
    pub(crate) fn read(error: &RedisError, asked: &Address) -> Option<Self> {
        let ErrorKind::Server(_) = error.kind() else { return None };
        // The reply after an ASKING is one of two, and only there are its details.
        let errors = error.clone().into_server_errors()?;
        let (_, error) = errors.first()?;
        let kind = error.kind()?;
        let target = || target(error.details()?, asked);
        match kind {
            ServerErrorKind::Moved => target().map(|(slot, to)| Self::Moved { slot, to }),
            ServerErrorKind::Ask => target().map(|(slot, to)| Self::Ask { slot, to }),
            ServerErrorKind::TryAgain => Some(Self::TryAgain),
            ServerErrorKind::ClusterDown => Some(Self::ClusterDown),
            _ => None,
        }
    }
}

/// Reads `3999 127.0.0.1:6381`. An IPv6 address has no brackets, and the host may be missing.
fn target(details: &str, asked: &Address) -> Option<(u16, Address)> {
    let (slot, endpoint) = details.split_once(' ')?;
    let (host, port) = endpoint.trim_end().rsplit_once(':')?;
    let host = host.trim_start_matches('[').trim_end_matches(']');
    let host = if host == "?" { "" } else { host };
    Some((slot.parse().ok()?, node_at(host, port.parse().ok()?, asked)?))
}

/// Follows the redirects that one call receives.
///
/// The policy is the same for charges, leases, refunds, every other script, and documents:
///
/// - `MOVED`: the slot map is corrected, and the call is sent to the new owner of the slot.
/// - `ASK`: the call is sent after `ASKING` to the server that imports the slot.
/// - `TRYAGAIN`: some keys of the call have migrated and others have not. Requests that only share the call are sent
///   one by one. A single request is sent again to the same server.
/// - `CLUSTERDOWN`: the call fails. A cluster without a majority does not recover within the time of one call.
///
/// Nothing was done in any of these cases, so that sending again charges nothing twice. The first `MOVED` or `ASK` is
/// followed at once. Every other redirect waits, first 1 ms, then twice as long each time, up to 50 ms: servers may
/// redirect to each other until they agree. A server without a connection is waited for. The call fails once the
/// timeout has passed since its first redirect.
pub(crate) struct RedirectFollower {
    deadline: Instant,
    backoff: Duration,
    is_first: bool,
}

/// The first and the longest pause before a redirect is followed.
const REDIRECT_BACKOFF: (Duration, Duration) =
    (Duration::from_millis(1), Duration::from_millis(50));

impl RedirectFollower {
    /// A follower for a call that has just received its first redirect.
    pub(crate) fn new(timeout: Duration) -> Self {
        Self { deadline: Instant::now() + timeout, backoff: REDIRECT_BACKOFF.0, is_first: true }
    }

    /// Returns the time by which the call fails.
    pub(crate) fn deadline(&self) -> Instant {
        self.deadline
    }

    /// Returns once a redirect is to be followed.
    ///
    /// # Errors
    /// The call fails: the reason.
    #[allow(clippy::disallowed_methods, reason = "a migration gives no event to wait for")]
    pub(crate) async fn wait(&mut self, redirect: &Redirect) -> Result<(), &'static str> {
        let pause = self.next_pause(redirect, Instant::now())?;
        if !pause.is_zero() {
            tokio::time::sleep(pause).await;
        }
        Ok(())
    }

    fn next_pause(&mut self, redirect: &Redirect, now: Instant) -> Result<Duration, &'static str> {
        let is_first = std::mem::take(&mut self.is_first);
        match redirect {
            Redirect::ClusterDown => return Err("the cluster is down"),
            Redirect::Moved { .. } | Redirect::Ask { .. } if is_first => return Ok(Duration::ZERO),
            Redirect::Moved { .. } | Redirect::Ask { .. } | Redirect::TryAgain => {}
        }
        let pause = self.backoff;
        if now + pause >= self.deadline {
            return Err("the cluster redirects the call until its timeout");
        }
        self.backoff = (pause * 2).min(REDIRECT_BACKOFF.1);
        Ok(pause)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn redirect(line: &str) -> Option<Redirect> {
        let asked = Address::tcp("seed", 7000).unwrap();
        let value = redis::parse_redis_value(format!("-{line}\r\n").as_bytes()).unwrap();
        Redirect::read(&value.extract_error().unwrap_err(), &asked)
    }

    fn to(text: &str) -> Address {
        Address::parse(text, 1).unwrap()
    }

    #[test]
    fn a_redirection_names_the_slot_and_the_node() {
        for (endpoint, address) in [
            ("127.0.0.1:6381", "127.0.0.1:6381"),
            ("node-2.example.com:6381", "node-2.example.com:6381"),
            ("2001:db8::1:6381", "[2001:db8::1]:6381"),
            (":6381", "seed:6381"),
            ("?:6381", "seed:6381"),
        ] {
            assert_eq!(
                redirect(&format!("MOVED 3999 {endpoint}")),
                Some(Redirect::Moved { slot: 3999, to: to(address) })
            );
            assert_eq!(
                redirect(&format!("ASK 3999 {endpoint}")),
                Some(Redirect::Ask { slot: 3999, to: to(address) })
            );
        }
    }

    #[test]
    fn a_cluster_in_between_is_recognised_and_other_errors_are_not() {
        assert_eq!(
            redirect("TRYAGAIN Multiple keys request during rehashing of slot"),
            Some(Redirect::TryAgain)
        );
        assert_eq!(redirect("CLUSTERDOWN Hash slot not served"), Some(Redirect::ClusterDown));
        for other in [
            "ERR unknown command",
            "NOSCRIPT No matching script.",
            "MOVED",
            "MOVED x 127.0.0.1:6381",
            "MOVED 1 nowhere",
            "MOVED 1 127.0.0.1:0",
            "WRONGPASS invalid",
        ] {
            assert_eq!(redirect(other), None, "{other}");
        }
    }

    #[test]
    fn redirects_are_followed_with_growing_pauses_until_the_timeout() {
        let moved = Redirect::Moved { slot: 1, to: to("b:1") };
        let ask = Redirect::Ask { slot: 1, to: to("a:1") };
        let mut follower = RedirectFollower::new(Duration::from_millis(500));
        let mut now = Instant::now();
        let mut pauses = Vec::new();
        let reason = loop {
            let redirect = if pauses.len() % 2 == 0 { &moved } else { &ask };
            match follower.next_pause(redirect, now) {
                Ok(pause) => pauses.push(pause.as_millis()),
                Err(reason) => break reason,
            }
            now += Duration::from_millis(pauses[pauses.len() - 1].try_into().unwrap());
        };
        assert_eq!(pauses[..9], [0, 1, 2, 4, 8, 16, 32, 50, 50]);
        assert!(pauses.iter().sum::<u128>() < 500, "{pauses:?}");
        assert_eq!(reason, "the cluster redirects the call until its timeout");
    }

    #[test]
    fn first_tryagain_waits_and_clusterdown_fails() {
        let mut follower = RedirectFollower::new(Duration::from_secs(1));
        let now = Instant::now();
        assert_eq!(follower.next_pause(&Redirect::TryAgain, now), Ok(Duration::from_millis(1)));
        let down = follower.next_pause(&Redirect::ClusterDown, now);
        assert_eq!(down, Err("the cluster is down"));
    }
}
