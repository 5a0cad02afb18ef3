//! The address of a server.

use std::fmt;
use std::net::Ipv6Addr;
use std::path::PathBuf;

use super::config_error::RedisConfigError;

/// The address of a Redis server or a sentinel.
///
/// Prints as `127.0.0.1:6379`, `[::1]:6379` or `/run/redis.sock`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Address {
    /// A port of a host.
    Tcp {
        /// A name or an address; IPv6 without brackets.
        host: String,
        /// The port, never 0.
        port: u16,
    },
    /// A socket in the file system.
    Unix(PathBuf),
}

impl Address {
    /// The default port of Redis.
    pub const REDIS_PORT: u16 = 6379;
    /// The default port of a sentinel.
    pub const SENTINEL_PORT: u16 = 26379;

    /// Longest name that DNS has.
    const MAX_HOST: usize = 253;
    /// Longest path that a socket can have on Linux.
    const MAX_PATH: usize = 107;

    /// Reads `host`, `host:port`, `[ipv6]` or `[ipv6]:port`.
    ///
    /// Names are put in lower case, so that two spellings of a server are one address.
    ///
    /// # Errors
    /// The part that is wrong. A port is shown only if it is a number: what stands in its place may
    /// be a password that lost its `@`.
    pub fn parse(text: &str, default_port: u16) -> Result<Self, RedisConfigError> {
        let (host, port) = match text.strip_prefix('[') {
            Some(bracketed) => {
                let (host, after) = bracketed.split_once(']').unwrap_or((bracketed, "]"));
                let port = match after.strip_prefix(':') {
                    None if after.is_empty() => None,
                    None => return Err(bad_host().found(format_args!("{text:?}"))),
                    port => port,
                };
                if host.parse::<Ipv6Addr>().is_err() {
                    return Err(bad_host().found(format_args!("{text:?}")));
                }
                (host, port)
            }
            None => match text.split_once(':') {
                Some((host, port)) => (host, Some(port)),
                None => (text, None),
            },
        };
        let address = Self::tcp(host, default_port)?;
        let Some(port) = port else { return Ok(address) };
        match port.parse() {
            Ok(port) => Self::tcp(host, port),
            Err(_) if port.bytes().all(|byte| byte.is_ascii_digit()) => Err(bad_port().found(port)),
            Err(_) => Err(bad_port()),
        }
    }

    /// A port of a host; IPv6 without brackets.
    ///
    /// # Errors
    /// The host is neither a name nor an address, or the port is 0.
    pub fn tcp(host: &str, port: u16) -> Result<Self, RedisConfigError> {
        let host = match host.parse::<Ipv6Addr>() {
            Ok(address) => address.to_string(),
            Err(_) => host.to_ascii_lowercase(),
        };
        let address = Self::Tcp { host, port };
        address.validate()?;
        Ok(address)
    }

    pub(crate) fn validate(&self) -> Result<(), RedisConfigError> {
        match self {
            Self::Tcp { host, port } => {
                let name = |byte: u8| byte.is_ascii_alphanumeric() || b"-._".contains(&byte);
                let named = (1..=Self::MAX_HOST).contains(&host.len()) && host.bytes().all(name);
                if !named && host.parse::<Ipv6Addr>().is_err() {
                    return Err(bad_host().found(format_args!("{host:?}")));
                }
                if *port == 0 { Err(bad_port().found(port)) } else { Ok(()) }
            }
            Self::Unix(path) => {
                if path.is_absolute() && path.as_os_str().len() <= Self::MAX_PATH {
                    return Ok(());
                }
                let wanted = format!("absolute and at most {} bytes long", Self::MAX_PATH);
                Err(RedisConfigError::new("socket path", wanted)
                    .found(format_args!("{:?}", path.display().to_string())))
            }
        }
    }
}

fn bad_host() -> RedisConfigError {
    RedisConfigError::new("host", "a name, an IPv4 address or an IPv6 address in brackets")
}

fn bad_port() -> RedisConfigError {
    RedisConfigError::new("port", "a number from 1 to 65535")
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp { host, port } if host.contains(':') => write!(f, "[{host}]:{port}"),
            Self::Tcp { host, port } => write!(f, "{host}:{port}"),
            Self::Unix(path) => path.display().fmt(f),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(text: &str) -> Result<String, String> {
        let address = Address::parse(text, Address::REDIS_PORT);
        address.map(|address| address.to_string()).map_err(|error| error.to_string())
    }

    #[test]
    fn addresses_read_and_print_alike() {
        for (text, printed) in [
            ("localhost", "localhost:6379"),
            ("Redis-1.Example.COM:7000", "redis-1.example.com:7000"),
            ("127.0.0.1:6380", "127.0.0.1:6380"),
            ("[::1]", "[::1]:6379"),
            ("[2001:DB8:0:0::1]:7000", "[2001:db8::1]:7000"),
        ] {
            assert_eq!(shown(text), Ok(printed.to_owned()), "{text}");
            assert_eq!(shown(printed), Ok(printed.to_owned()), "{text}");
        }
        assert_eq!(Address::Unix("/run/redis.sock".into()).to_string(), "/run/redis.sock");
    }

    #[test]
    fn error_of_an_invalid_address_names_the_part() {
        let host = "host must be a name, an IPv4 address or an IPv6 address in brackets, found ";
        for (text, error) in [
            ("", format!("{host}\"\"")),
            (":6379", format!("{host}\"\"")),
            ("a b", format!("{host}\"a b\"")),
            ("[::1", format!("{host}\"[::1\"")),
            ("[::1]6379", format!("{host}\"[::1]6379\"")),
            ("[localhost]", format!("{host}\"[localhost]\"")),
            ("a:0", "port must be a number from 1 to 65535, found 0".to_owned()),
            ("a:65536", "port must be a number from 1 to 65535, found 65536".to_owned()),
            ("user:hunter2", "port must be a number from 1 to 65535".to_owned()),
            ("::1", format!("{host}\"\"")),
        ] {
            assert_eq!(shown(text), Err(error), "{text}");
        }
    }

    #[test]
    fn a_socket_path_is_absolute_and_fits_the_kernel() {
        assert!(Address::Unix("/run/redis.sock".into()).validate().is_ok());
        assert!(Address::Unix("redis.sock".into()).validate().is_err());
        assert!(Address::Unix(format!("/{}", "x".repeat(107)).into()).validate().is_err());
    }
}
