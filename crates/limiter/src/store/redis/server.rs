//! What a server says about itself.

use std::fmt;

use redis::Value;

use super::address::Address;
use super::slots::{node_at, text};

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
        let fields: Vec<_> = info.lines().filter_map(|line| line.split_once(':')).collect();
        let field =
            |name| fields.iter().find(|(known, _)| *known == name).map(|(_, value)| value.trim());
        let redis = field("redis_version");
        let redis_major = redis.and_then(|version| version.split('.').next()?.parse().ok());
        let (product, number) = match field("valkey_version") {
            Some(version) => ("Valkey", Some(version)),
            None => ("Redis", redis),
        };
        let bounded = field("maxmemory").is_some_and(|bytes| bytes != "0");
        let policy = field("maxmemory_policy").filter(|policy| *policy != "noeviction");
        Self {
            version: number.zip(redis_major).map(|(number, redis_major)| Version {
                product,
                number: number.to_owned(),
                redis_major,
            }),
            role: match field("role") {
                Some("master") => Some(Role::Master),
                Some("slave" | "replica") => {
                    let master = field("master_host").zip(field("master_port"));
                    let of =
                        master.and_then(|(host, port)| node_at(host, port.parse().ok()?, asked));
                    Some(Role::Replica { of })
                }
                _ => None,
            },
            mode: match field("server_mode").or(field("redis_mode")) {
                Some("standalone") => Some(Mode::Standalone),
                Some("cluster") => Some(Mode::Cluster),
                Some("sentinel") => Some(Mode::Sentinel),
                _ => None,
            },
            evicts: policy.filter(|_| bounded).map(str::to_owned),
        }
    }
}

impl Role {
    /// Reads the reply to `ROLE` of the server at `asked`.
    pub(super) fn read(reply: &Value, asked: &Address) -> Option<Self> {
        let Value::Array(fields) = reply else { return None };
        match fields.as_slice() {
            [role, ..] if text(role) == Some("master") => Some(Self::Master),
            [role, host, Value::Int(port), ..] if text(role) == Some("slave") => {
                let port = u16::try_from(*port).ok();
                let of = port.zip(text(host)).and_then(|(port, host)| node_at(host, port, asked));
                Some(Self::Replica { of })
            }
            _ => None,
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

        let seed = Address::tcp("seed", 1).unwrap();
        let bulk = |text: &str| Value::BulkString(text.as_bytes().to_vec());
        let master = Value::Array(vec![bulk("master"), Value::Int(0), Value::Array(Vec::new())]);
        assert_eq!(Role::read(&master, &seed), Some(Role::Master));
        let replica = Value::Array(vec![bulk("slave"), bulk("10.0.0.1"), Value::Int(6379)]);
        let of = Address::tcp("10.0.0.1", 6379).ok();
        assert_eq!(Role::read(&replica, &seed), Some(Role::Replica { of }));
        assert_eq!(Role::read(&Value::Array(vec![bulk("sentinel")]), &seed), None);
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
