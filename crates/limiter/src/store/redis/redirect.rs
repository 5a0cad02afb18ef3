//! What a node of a cluster says when a key is not its own.

use redis::{ErrorKind, RedisError, ServerErrorKind};

use super::address::Address;
use super::slots::node_at;

/// Why a node of a cluster did nothing, and who would have.
///
/// In each case nothing was done, so asking again charges nobody twice.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Redirect {
    /// The slot is another node's now.
    Moved {
        /// Which slot.
        slot: u16,
        /// Who serves it.
        to: Address,
    },
    /// The slot is on its way to another node, which has the key if it is asked with `ASKING`.
    Ask {
        /// Which slot.
        slot: u16,
        /// Who may have the key.
        to: Address,
    },
    /// The slot is on its way to another node, and so are some of the keys.
    TryAgain,
    /// The cluster serves nobody, or not this slot.
    ClusterDown,
}

impl Redirect {
    /// What the error of the node at `asked` says, if it is about where keys are.
    pub(super) fn read(error: &RedisError, asked: &Address) -> Option<Self> {
        let ErrorKind::Server(_) = error.kind() else { return None };
        // What follows an ASKING is one of two replies, and only there are its details.
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
}
