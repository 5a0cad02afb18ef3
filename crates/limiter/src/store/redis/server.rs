//! What a server says about itself.

use std::fmt;

use super::address::Address;
use super::slots::node_at;

/// What `INFO` tells about a server, as far as it tells.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Server {
    pub(super) version: Option<Version>,
    pub(super) role: Option<Role>,
    pub(super) mode: Option<Mode>,
    /// The policy by which keys are thrown out when memory runs out, if any are.
    pub(super) evicts: Option<String>,
}

/// Which server, and which version of it. Prints as `Redis 6.2.14`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Version {
    product: &'static str,
    number: String,
    /// The version of Redis whose commands it has.
    redis_major: u32,
}

/// Whether a server takes writes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Role {
    Master,
    Replica {
        /// Whose, if it says.
        of: Option<Address>,
    },
}

/// How a server belongs to others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Mode {
    Standalone,
    Cluster,
    Sentinel,
}

impl Server {
    /// Reads the reply to `INFO` of the server at `asked`.
    pub(super) fn read(info: &str, asked: &Address) -> Self {
        let field = |name: &str| {
            let value = |line: &'_ str| line.strip_prefix(name)?.strip_prefix(':').map(str::trim);
            info.lines().find_map(|line| value(line).map(str::to_owned))
        };
        let redis = field("redis_version");
        let redis_major =
            redis.as_deref().and_then(|version| version.split('.').next()?.parse().ok());
        let (product, number) = match field("valkey_version") {
            Some(version) => ("Valkey", Some(version)),
            None => ("Redis", redis),
        };
        let mode = field("server_mode").or_else(|| field("redis_mode"));
        let bounded = field("maxmemory").is_some_and(|bytes| bytes != "0");
        Self {
            version: number.zip(redis_major).map(|(number, redis_major)| Version {
                product,
                number,
                redis_major,
            }),
            role: match field("role").as_deref() {
                Some("master") => Some(Role::Master),
                Some("slave" | "replica") => {
                    let master = field("master_host").zip(field("master_port"));
                    let of = master.and_then(|(host, port)| node_at(&host, port.parse().ok()?, asked));
                    Some(Role::Replica { of })
                }
                _ => None,
            },
            mode: match mode.as_deref() {
                Some("standalone") => Some(Mode::Standalone),
                Some("cluster") => Some(Mode::Cluster),
                Some("sentinel") => Some(Mode::Sentinel),
                _ => None,
            },
            evicts: field("maxmemory_policy").filter(|policy| bounded && policy != "noeviction"),
        }
    }
}

impl Version {
    /// Whether the scripts run on it.
    pub(super) fn is_supported(&self) -> bool {
        self.redis_major >= 7
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.product, self.number)
    }
}

impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Standalone => "a server on its own",
            Self::Cluster => "a node of a cluster",
            Self::Sentinel => "a sentinel",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(info: &str) -> Server {
        Server::read(&info.replace('\n', "\r\n"), &Address::tcp("seed", 1).unwrap())
    }

    fn version(info: &str) -> (String, bool) {
        let version = read(info).version.unwrap();
        (version.to_string(), version.is_supported())
    }

    #[test]
    fn a_server_tells_its_name_and_version() {
        assert_eq!(version("# Server\nredis_version:6.2.14\n"), ("Redis 6.2.14".to_owned(), false));
        assert_eq!(version("redis_version:7.0.15\n"), ("Redis 7.0.15".to_owned(), true));
        assert_eq!(version("redis_version:10.0\n"), ("Redis 10.0".to_owned(), true));
        assert_eq!(
            version("redis_version:7.2.4\nserver_name:valkey\nvalkey_version:8.1.1\n"),
            ("Valkey 8.1.1".to_owned(), true)
        );
    }

    #[test]
    fn a_replica_tells_whose() {
        assert_eq!(read("role:master\nconnected_slaves:1\n").role, Some(Role::Master));
        assert_eq!(
            read("role:slave\nmaster_host:10.0.0.1\nmaster_port:6379\n").role,
            Some(Role::Replica { of: Address::tcp("10.0.0.1", 6379).ok() })
        );
        assert_eq!(read("role:slave\n").role, Some(Role::Replica { of: None }));
    }

    #[test]
    fn only_a_server_with_a_bound_and_a_policy_evicts() {
        let evicts = |memory: &str, policy: &str| {
            read(&format!("maxmemory:{memory}\nmaxmemory_policy:{policy}\n")).evicts
        };
        assert_eq!(evicts("1048576", "allkeys-lru").as_deref(), Some("allkeys-lru"));
        // Every counter has an expiry, so it is a candidate here too.
        assert_eq!(evicts("1048576", "volatile-ttl").as_deref(), Some("volatile-ttl"));
        assert_eq!(evicts("1048576", "noeviction"), None);
        assert_eq!(evicts("0", "allkeys-lru"), None);
    }

    #[test]
    fn a_server_that_tells_nothing_is_taken_as_it_is() {
        assert_eq!(read(""), Server::default());
        assert_eq!(read("redis_version:what\nrole:\nredis_mode:new\n:::\n"), Server::default());
    }

    #[test]
    fn a_server_tells_how_it_belongs_to_others() {
        assert_eq!(read("redis_mode:cluster\n").mode, Some(Mode::Cluster));
        assert_eq!(read("redis_mode:sentinel\n").mode, Some(Mode::Sentinel));
        assert_eq!(read("redis_mode:standalone\nserver_mode:cluster\n").mode, Some(Mode::Cluster));
    }
}
