//! The servers that store the counters.

use super::address::Address;
use super::config_error::RedisConfigError;

/// The servers that store the counters.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Servers {
    /// One server.
    Single(Address),
    /// The master that the sentinels elected.
    Sentinel {
        /// Sentinels to ask, in this order.
        sentinels: Vec<Address>,
        /// The name that the sentinels know the master by.
        master: String,
    },
    /// A Redis Cluster, found through any of these nodes.
    Cluster(Vec<Address>),
    /// Servers that know nothing of each other; each key lives on one of them.
    Shards(Vec<Address>),
}

impl Servers {
    /// Most addresses that can be listed.
    pub const MAX: usize = 1_000;
    /// Longest name of a master in bytes.
    const MAX_NAME: usize = 256;

    /// Every address that is written down.
    #[must_use]
    pub fn addresses(&self) -> &[Address] {
        match self {
            Self::Single(address) => std::slice::from_ref(address),
            Self::Sentinel { sentinels: many, .. } | Self::Cluster(many) | Self::Shards(many) => {
                many
            }
        }
    }

    /// Returns whether one of them is a socket in the file system.
    pub(crate) fn have_socket(&self) -> bool {
        self.addresses().iter().any(|address| matches!(address, Address::Unix(_)))
    }

    pub(crate) fn validate(&self) -> Result<(), RedisConfigError> {
        let addresses = self.addresses();
        if !(1..=Self::MAX).contains(&addresses.len()) {
            let wanted = format!("from 1 to {}", Self::MAX);
            return Err(RedisConfigError::new("number of servers", wanted).found(addresses.len()));
        }
        addresses.iter().try_for_each(Address::validate)?;
        let mut sorted: Vec<&Address> = addresses.iter().collect();
        sorted.sort_unstable();
        if let Some([twice, _]) = sorted.array_windows().find(|[one, next]| one == next) {
            let twice = format_args!("{twice} twice");
            return Err(RedisConfigError::new("server", "listed once").found(twice));
        }
        let network = matches!(self, Self::Sentinel { .. } | Self::Cluster(_));
        if network && self.have_socket() {
            let wanted = "a host and a port, for sentinels and clusters";
            return Err(RedisConfigError::new("server", wanted).found("a socket path"));
        }
        match self {
            Self::Sentinel { master, .. } => named(master),
            _ => Ok(()),
        }
    }
}

fn named(master: &str) -> Result<(), RedisConfigError> {
    let printable = !master.chars().any(char::is_control);
    if printable && (1..=Servers::MAX_NAME).contains(&master.len()) {
        return Ok(());
    }
    let wanted = "the name that the sentinels know it by";
    Err(RedisConfigError::new("master", wanted).found(format_args!("{master:?}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(text: &str) -> Address {
        Address::parse(text, 1).unwrap()
    }

    fn refused(servers: &Servers) -> String {
        servers.validate().unwrap_err().to_string()
    }

    #[test]
    fn servers_that_can_not_be_are_refused() {
        assert_eq!(
            refused(&Servers::Cluster(Vec::new())),
            "number of servers must be from 1 to 1000, found 0"
        );
        assert_eq!(
            refused(&Servers::Shards(vec![at("a"), at("b"), at("A:1")])),
            "server must be listed once, found a:1 twice"
        );
        let socket = Address::Unix("/run/redis.sock".into());
        assert_eq!(
            refused(&Servers::Cluster(vec![at("a"), socket.clone()])),
            "server must be a host and a port, for sentinels and clusters, found a socket path"
        );
        assert_eq!(Servers::Shards(vec![at("a"), socket]).validate(), Ok(()));
        assert_eq!(
            refused(&Servers::Single(Address::Tcp { host: "a/b".to_owned(), port: 1 })),
            "host must be a name, an IPv4 address or an IPv6 address in brackets, found \"a/b\""
        );
        assert_eq!(
            refused(&Servers::Sentinel { sentinels: vec![at("a")], master: String::new() }),
            "master must be the name that the sentinels know it by, found \"\""
        );
    }
}
