//! The identity of a server, from its replies to `INFO` and `ROLE`.

use std::fmt;

use redis::Value;

use super::address::Address;
use super::slots::{node_at, text};

/// The reply of a server to `INFO`. Fields that it leaves out are `None`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct ServerInfo {
    pub(crate) version: Option<ServerVersion>,
    pub(crate) role: Option<ServerRole>,
    pub(crate) mode: Option<ServerMode>,
    /// The policy by which keys are evicted when memory runs out, if any are.
    pub(crate) evicts: Option<String>,
}

/// The product and its version. Prints as `Redis 6.2.14`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ServerVersion {
    product: &'static str,
    number: String,
    /// The version of Redis that it is compatible with.
    redis_major: u32,
}

/// The role of a server in replication.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum ServerRole {
    Master,
    Replica {
        /// Its master, if it reports one.
        of: Option<Address>,
    },
}

/// The mode that a server runs in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ServerMode {
    Standalone,
    Cluster,
    Sentinel,
}

impl ServerInfo {
    /// Reads the reply to `INFO` of the server at `asked`.
    pub(crate) fn read(info: &str, asked: &Address) -> Self {
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
            version: number.zip(redis_major).map(|(number, redis_major)| ServerVersion {
                product,
                number: number.to_owned(),
                redis_major,
            }),
            role: match field("role") {
                Some("master") => Some(ServerRole::Master),
                Some("slave" | "replica") => {
                    let master = field("master_host").zip(field("master_port"));
                    let of =
                        master.and_then(|(host, port)| node_at(host, port.parse().ok()?, asked));
                    Some(ServerRole::Replica { of })
                }
                _ => None,
            },
            mode: match field("server_mode").or(field("redis_mode")) {
                Some("standalone") => Some(ServerMode::Standalone),
                Some("cluster") => Some(ServerMode::Cluster),
                Some("sentinel") => Some(ServerMode::Sentinel),
                _ => None,
            },
            evicts: policy.filter(|_| bounded).map(str::to_owned),
        }
    }
}

impl ServerRole {
    /// Reads the reply to `ROLE` of the server at `asked`.
    pub(crate) fn read(reply: &Value, asked: &Address) -> Option<Self> {
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

impl ServerVersion {
    /// Returns whether the scripts run on it.
    pub(crate) fn is_supported(&self) -> bool {
        self.redis_major >= 7
    }
}

impl fmt::Display for ServerVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.product, self.number)
    }
}

impl fmt::Display for ServerMode {
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

    fn read(info: &str) -> ServerInfo {
        ServerInfo::read(&info.replace('\n', "\r\n"), &Address::tcp("seed", 1).unwrap())
    }

    fn version(info: &str) -> (String, bool) {
        let version = read(info).version.unwrap();
        (version.to_string(), version.is_supported())
    }

    #[test]
    fn product_and_version_are_read_from_info() {
        assert_eq!(version("# Server\nredis_version:6.2.14\n"), ("Redis 6.2.14".to_owned(), false));
        assert_eq!(version("redis_version:7.0.15\n"), ("Redis 7.0.15".to_owned(), true));
        assert_eq!(version("redis_version:10.0\n"), ("Redis 10.0".to_owned(), true));
        assert_eq!(
            version("redis_version:7.2.4\nserver_name:valkey\nvalkey_version:8.1.1\n"),
            ("Valkey 8.1.1".to_owned(), true)
        );
    }

    #[test]
    fn replica_reports_its_master() {
        assert_eq!(read("role:master\nconnected_slaves:1\n").role, Some(ServerRole::Master));
        assert_eq!(
            read("role:slave\nmaster_host:10.0.0.1\nmaster_port:6379\n").role,
            Some(ServerRole::Replica { of: Address::tcp("10.0.0.1", 6379).ok() })
        );
        assert_eq!(read("role:slave\n").role, Some(ServerRole::Replica { of: None }));

        let seed = Address::tcp("seed", 1).unwrap();
        let bulk = |text: &str| Value::BulkString(text.as_bytes().to_vec());
        let master = Value::Array(vec![bulk("master"), Value::Int(0), Value::Array(Vec::new())]);
        assert_eq!(ServerRole::read(&master, &seed), Some(ServerRole::Master));
        let replica = Value::Array(vec![bulk("slave"), bulk("10.0.0.1"), Value::Int(6379)]);
        let of = Address::tcp("10.0.0.1", 6379).ok();
        assert_eq!(ServerRole::read(&replica, &seed), Some(ServerRole::Replica { of }));
        assert_eq!(ServerRole::read(&Value::Array(vec![bulk("sentinel")]), &seed), None);
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
    fn info_without_known_fields_is_accepted() {
        assert_eq!(read(""), ServerInfo::default());
        assert_eq!(read("redis_version:what\nrole:\nredis_mode:new\n:::\n"), ServerInfo::default());
    }

    #[test]
    fn mode_is_read_from_info() {
        assert_eq!(read("redis_mode:cluster\n").mode, Some(ServerMode::Cluster));
        assert_eq!(read("redis_mode:sentinel\n").mode, Some(ServerMode::Sentinel));
        assert_eq!(
            read("redis_mode:standalone\nserver_mode:cluster\n").mode,
            Some(ServerMode::Cluster)
        );
    }
}
