//! The configuration of the store, validated before any connection is opened.

use std::time::Duration;

use tidegate_core::{Keyer, Span};

use super::config_error::RedisConfigError;
use super::secret::{FleetSecret, Secret};
use super::servers::Servers;
use super::tls::Tls;
use tidegate_limiter::store::Share;

/// The servers of a store and their settings. Every value of this type is valid.
///
/// Reads from a URL, and prints as one without secrets:
///
/// ```
/// use std::time::Duration;
/// use tidegate::redis::RedisConfig;
///
/// let config: RedisConfig = "rediss://app:pass@cache.example.com/2".parse()?;
/// let config = config.with_timeout(Duration::from_millis(25))?.with_prefix("shop.")?;
/// assert_eq!(
///     config.to_string(),
///     "rediss://app@cache.example.com:6379/2?prefix=shop.&timeout=25ms",
/// );
/// # Ok::<(), tidegate::redis::RedisConfigError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RedisConfig {
    servers: Servers,
    login: ServerLogin,
    sentinel_login: ServerLogin,
    database: u32,
    tls: Option<Tls>,
    prefix: String,
    fleet_secret: FleetSecret,
    timeout: Duration,
    connect_timeout: Duration,
    denial_memory: Duration,
    last_share: Option<Share>,
}

/// The login at a server with access control.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct ServerLogin {
    pub(crate) user: Option<String>,
    pub(crate) password: Option<Secret>,
}

impl RedisConfig {
    /// The default prefix of keys.
    pub const DEFAULT_PREFIX: &'static str = "tg:";
    /// The default timeout of a check.
    pub const DEFAULT_TIMEOUT: Duration = Duration::from_millis(10);
    /// The default timeout of connecting.
    pub const DEFAULT_CONNECT_TIMEOUT: Duration = Duration::from_secs(1);
    /// The default time for which a denial is cached.
    pub const DEFAULT_DENIAL_MEMORY: Duration = Duration::from_secs(1);

    /// Most nodes that a fleet can have had.
    const MAX_NODES: u64 = 100_000;
    const MAX_TIMEOUT: Duration = Duration::from_secs(60);
    const MAX_DENIAL_MEMORY: Duration = Duration::from_secs(1);
    const MAX_PREFIX: usize = 32;
    const MAX_WORD: usize = 1_024;
    const MAX_DATABASE: u32 = 1_000_000;

    /// These servers, with defaults for the rest.
    ///
    /// # Errors
    /// There is no server, too many or one twice, or an address that can't be.
    pub fn new(servers: Servers) -> Result<Self, RedisConfigError> {
        servers.validate()?;
        Ok(Self {
            servers,
            login: ServerLogin::default(),
            sentinel_login: ServerLogin::default(),
            database: 0,
            tls: None,
            prefix: Self::DEFAULT_PREFIX.to_owned(),
            fleet_secret: FleetSecret::default(),
            timeout: Self::DEFAULT_TIMEOUT,
            connect_timeout: Self::DEFAULT_CONNECT_TIMEOUT,
            denial_memory: Self::DEFAULT_DENIAL_MEMORY,
            last_share: None,
        })
    }

    /// One store on several single servers that agree on everything but where they are.
    ///
    /// # Errors
    /// One of them is not a single server, or two of them differ, and in which setting.
    pub fn shards(shards: impl IntoIterator<Item = Self>) -> Result<Self, RedisConfigError> {
        let mut addresses = Vec::new();
        let mut first: Option<Self> = None;
        for shard in shards {
            let Servers::Single(address) = &shard.servers else {
                return Err(RedisConfigError::new("shard", "a single server").found(shard));
            };
            addresses.push(address.clone());
            match &first {
                Some(first) => first.agrees_with(&shard)?,
                None => first = Some(shard),
            }
        }
        let new = Self::new(Servers::Shards(addresses))?;
        Ok(match first {
            Some(first) => Self { servers: new.servers, ..first },
            None => new,
        })
    }

    fn agrees_with(&self, other: &Self) -> Result<(), RedisConfigError> {
        let agreements = [
            ("user", self.login.user == other.login.user),
            ("password", self.login.password == other.login.password),
            ("database", self.database == other.database),
            ("tls", self.tls == other.tls),
            ("prefix", self.prefix == other.prefix),
            ("fleet secret", self.fleet_secret == other.fleet_secret),
            ("timeout", self.timeout == other.timeout),
            ("connect timeout", self.connect_timeout == other.connect_timeout),
            ("denial memory", self.denial_memory == other.denial_memory),
        ];
        match agreements.into_iter().find(|(_, agree)| !agree) {
            Some((setting, _)) => Err(RedisConfigError::new(setting, "the same for every shard")),
            None => Ok(()),
        }
    }

    /// Logs in as this user of the server's access list.
    ///
    /// # Errors
    /// The name is empty or too long.
    pub fn with_user(mut self, user: impl Into<String>) -> Result<Self, RedisConfigError> {
        let user = user.into();
        word("user", &user)?;
        self.login.user = Some(user);
        Ok(self)
    }

    /// Logs in with this password.
    ///
    /// # Errors
    /// It is empty or too long.
    pub fn with_password(mut self, password: impl Into<Secret>) -> Result<Self, RedisConfigError> {
        let password = password.into();
        word("password", password.reveal())?;
        self.login.password = Some(password);
        Ok(self)
    }

    /// Logs in to the sentinels, which have an access list of their own.
    ///
    /// # Errors
    /// There are no sentinels, or a word is empty or too long.
    pub fn with_sentinel_login(
        mut self,
        user: Option<String>,
        password: impl Into<Secret>,
    ) -> Result<Self, RedisConfigError> {
        if !matches!(self.servers, Servers::Sentinel { .. }) {
            return Err(RedisConfigError::new("sentinel login", "left out, without sentinels"));
        }
        let password = password.into();
        user.iter().try_for_each(|user| word("sentinel user", user))?;
        word("sentinel password", password.reveal())?;
        self.sentinel_login = ServerLogin { user, password: Some(password) };
        Ok(self)
    }

    /// Keeps the counters in the database of this number.
    ///
    /// # Errors
    /// The number is too large, or is not 0 in a cluster, which has one database.
    pub fn with_database(mut self, number: u32) -> Result<Self, RedisConfigError> {
        let wanted = match self.servers {
            Servers::Cluster(_) if number > 0 => "0 in a cluster".to_owned(),
            _ if number > Self::MAX_DATABASE => {
                format!("a number from 0 to {}", Self::MAX_DATABASE)
            }
            _ => {
                self.database = number;
                return Ok(self);
            }
        };
        Err(RedisConfigError::new("database", wanted).found(number))
    }

    /// Encrypts every connection, those to sentinels too.
    ///
    /// # Errors
    /// A server is a socket in the file system.
    pub fn with_tls(mut self, tls: Tls) -> Result<Self, RedisConfigError> {
        if self.servers.have_socket() {
            return Err(RedisConfigError::new("tls", "left out for a socket path"));
        }
        self.tls = Some(tls);
        Ok(self)
    }

    /// Begins every key with this text.
    ///
    /// # Errors
    /// It is empty, too long, or has what keys can't begin with. A brace would make a
    /// cluster keep all keys in one slot.
    pub fn with_prefix(mut self, prefix: impl Into<String>) -> Result<Self, RedisConfigError> {
        let prefix = prefix.into();
        let fits = (1..=Self::MAX_PREFIX).contains(&prefix.len());
        if !fits || !prefix.bytes().all(|b| b.is_ascii_graphic() && b != b'{' && b != b'}') {
            let most = Self::MAX_PREFIX;
            let wanted = format!("1 to {most} printable ASCII characters without braces");
            return Err(RedisConfigError::new("prefix", wanted).found(format_args!("{prefix:?}")));
        }
        self.prefix = prefix;
        Ok(self)
    }

    /// Hashes keys with a secret that all nodes share, so that a reader of Redis can't find the client of a counter by
    /// trying names.
    ///
    /// # Errors
    /// It is empty or too long.
    pub fn with_fleet_secret(
        mut self,
        secret: impl Into<Secret>,
    ) -> Result<Self, RedisConfigError> {
        let secret = secret.into();
        word("fleet secret", secret.reveal())?;
        self.fleet_secret = FleetSecret::derive(secret.reveal());
        Ok(self)
    }

    /// Gives a check this long in all.
    ///
    /// # Errors
    /// It is under a millisecond or over a minute.
    pub fn with_timeout(mut self, timeout: Duration) -> Result<Self, RedisConfigError> {
        between("timeout", timeout, Duration::from_millis(1), Self::MAX_TIMEOUT)?;
        self.timeout = timeout;
        Ok(self)
    }

    /// Gives the opening of a connection this long in all.
    ///
    /// # Errors
    /// It is under a millisecond or over a minute.
    pub fn with_connect_timeout(mut self, timeout: Duration) -> Result<Self, RedisConfigError> {
        between("connect timeout", timeout, Duration::from_millis(1), Self::MAX_TIMEOUT)?;
        self.connect_timeout = timeout;
        Ok(self)
    }

    /// Lets a node repeat a denial for this long without asking again; 0 asks each time.
    ///
    /// # Errors
    /// It is over a second.
    pub fn with_denial_memory(mut self, memory: Duration) -> Result<Self, RedisConfigError> {
        between("denial memory", memory, Duration::ZERO, Self::MAX_DENIAL_MEMORY)?;
        self.denial_memory = memory;
        Ok(self)
    }

    /// Sets this node's share of the fleet from before a restart
    /// ([`RedisStore::next_share`](super::RedisStore::next_share)).
    ///
    /// It is used for `on_store_failure: local` until the store answers. Without it a node uses the whole
    /// limit until then.
    ///
    /// # Errors
    /// There is no such share: of no nodes, of more than 100,000, or not one of those.
    pub fn with_last_share(mut self, share: Share) -> Result<Self, RedisConfigError> {
        if !(1..=Self::MAX_NODES).contains(&share.of) {
            let wanted = format!("from 1 to {}", Self::MAX_NODES);
            return Err(RedisConfigError::new("number of nodes", wanted).found(share.of));
        }
        if share.index >= share.of {
            let wanted = format!("below the number of nodes, {}", share.of);
            return Err(RedisConfigError::new("index of the node", wanted).found(share.index));
        }
        self.last_share = Some(share);
        Ok(self)
    }

    /// This node's share of the fleet from before a restart, if it is known.
    #[must_use]
    pub fn last_share(&self) -> Option<Share> {
        self.last_share
    }

    /// Returns the servers that store the counters.
    #[must_use]
    pub fn servers(&self) -> &Servers {
        &self.servers
    }

    /// Returns the user to log in as, if any.
    #[must_use]
    pub fn user(&self) -> Option<&str> {
        self.login.user.as_deref()
    }

    /// Returns whether there is a password to log in with.
    #[must_use]
    pub fn has_password(&self) -> bool {
        self.login.password.is_some()
    }

    /// Returns whether keys are hashed with a secret that all nodes share.
    #[must_use]
    pub fn has_fleet_secret(&self) -> bool {
        self.fleet_secret != FleetSecret::default()
    }

    pub(crate) fn login(&self) -> &ServerLogin {
        &self.login
    }

    pub(crate) fn sentinel_login(&self) -> &ServerLogin {
        &self.sentinel_login
    }

    /// The number of the database.
    #[must_use]
    pub fn database(&self) -> u32 {
        self.database
    }

    /// Returns the encryption of connections, if there is any.
    #[must_use]
    pub fn tls(&self) -> Option<&Tls> {
        self.tls.as_ref()
    }

    /// Returns the prefix of every key.
    #[must_use]
    pub fn prefix(&self) -> &str {
        &self.prefix
    }

    /// Makes the keys that all nodes agree upon.
    #[must_use]
    pub fn keyer(&self) -> Keyer {
        Keyer::Fleet { secret: self.fleet_secret.bytes() }
    }

    /// Returns the timeout of a check.
    #[must_use]
    pub fn timeout(&self) -> Duration {
        self.timeout
    }

    /// Returns the timeout of connecting.
    #[must_use]
    pub fn connect_timeout(&self) -> Duration {
        self.connect_timeout
    }

    /// Returns the time for which a node may repeat a denial without a call to the store.
    #[must_use]
    pub fn denial_memory(&self) -> Duration {
        self.denial_memory
    }
}

/// A secret or a name; what was found is not shown.
fn word(setting: &'static str, text: &str) -> Result<(), RedisConfigError> {
    if (1..=RedisConfig::MAX_WORD).contains(&text.len()) {
        return Ok(());
    }
    let wanted = format!("1 to {} bytes long", RedisConfig::MAX_WORD);
    Err(RedisConfigError::new(setting, wanted).found(format_args!("{} bytes", text.len())))
}

fn between(
    setting: &'static str,
    found: Duration,
    least: Duration,
    most: Duration,
) -> Result<(), RedisConfigError> {
    if (least..=most).contains(&found) {
        return Ok(());
    }
    let wanted = format!("from {} to {}", Span::from(least), Span::from(most));
    Err(RedisConfigError::new(setting, wanted).found(Span::from(found)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::address::Address;

    fn single(host: &str) -> RedisConfig {
        RedisConfig::new(Servers::Single(Address::tcp(host, 6379).unwrap())).unwrap()
    }

    fn refused(result: Result<RedisConfig, RedisConfigError>) -> String {
        result.unwrap_err().to_string()
    }

    #[test]
    fn error_of_a_setting_out_of_bounds_names_the_bounds() {
        let ms = Duration::from_millis;
        for (result, error) in [
            (single("a").with_timeout(ms(0)), "timeout must be from 1 ms to 60 s, found 0 s"),
            (
                single("a").with_timeout(ms(60_001)),
                "timeout must be from 1 ms to 60 s, found 60001 ms",
            ),
            (
                single("a").with_connect_timeout(Duration::MAX),
                "connect timeout must be from 1 ms to 60 s, found 18446744073709551615 us",
            ),
            (
                single("a").with_denial_memory(ms(1_001)),
                "denial memory must be from 0 s to 1 s, found 1001 ms",
            ),
            (
                single("a").with_last_share(Share { index: 0, of: 0 }),
                "number of nodes must be from 1 to 100000, found 0",
            ),
            (
                single("a").with_last_share(Share { index: 0, of: u64::MAX }),
                "number of nodes must be from 1 to 100000, found 18446744073709551615",
            ),
            (
                single("a").with_last_share(Share { index: 4, of: 4 }),
                "index of the node must be below the number of nodes, 4, found 4",
            ),
            (
                single("a").with_prefix("{tg}"),
                "prefix must be 1 to 32 printable ASCII characters without braces, found \"{tg}\"",
            ),
            (
                single("a").with_prefix(""),
                "prefix must be 1 to 32 printable ASCII characters without braces, found \"\"",
            ),
            (
                single("a").with_database(1_000_001),
                "database must be a number from 0 to 1000000, found 1000001",
            ),
            (single("a").with_user(""), "user must be 1 to 1024 bytes long, found 0 bytes"),
            (
                single("a").with_password("x".repeat(1_025)),
                "password must be 1 to 1024 bytes long, found 1025 bytes",
            ),
            (
                single("a").with_sentinel_login(None, "hunter2"),
                "sentinel login must be left out, without sentinels",
            ),
        ] {
            assert_eq!(refused(result), error);
        }
        assert_eq!(single("a").with_denial_memory(ms(0)).unwrap().denial_memory(), ms(0));
    }

    #[test]
    fn settings_that_the_servers_do_not_support_are_rejected() {
        let cluster = Servers::Cluster(vec![Address::tcp("a", 1).unwrap()]);
        let cluster = RedisConfig::new(cluster).unwrap();
        assert!(cluster.clone().with_database(0).is_ok());
        assert_eq!(refused(cluster.with_database(1)), "database must be 0 in a cluster, found 1");
        let socket = Servers::Single(Address::Unix("/run/redis.sock".into()));
        assert_eq!(
            refused(RedisConfig::new(socket).unwrap().with_tls(Tls::default())),
            "tls must be left out for a socket path"
        );
    }

    #[test]
    fn shards_agree_on_all_but_their_address() {
        let [a, b] = ["a", "b"]
            .map(|host| single(host).with_password("pw").unwrap().with_fleet_secret("s").unwrap());
        let shards = RedisConfig::shards([a.clone(), b.clone()]).unwrap();
        assert_eq!(shards.servers().addresses().len(), 2);
        assert!(matches!(shards.servers(), Servers::Shards(_)));
        assert_eq!(shards.login(), a.login());
        assert!(shards.has_password() && shards.has_fleet_secret());
        assert!(!single("a").has_password() && !single("a").has_fleet_secret());

        for (other, error) in [
            (b.clone().with_user("u"), "user must be the same for every shard"),
            (b.clone().with_password("wp"), "password must be the same for every shard"),
            (b.clone().with_database(1), "database must be the same for every shard"),
            (b.clone().with_tls(Tls::default()), "tls must be the same for every shard"),
            (b.clone().with_prefix("x"), "prefix must be the same for every shard"),
            (b.clone().with_fleet_secret("t"), "fleet secret must be the same for every shard"),
            (
                b.clone().with_timeout(Duration::from_secs(1)),
                "timeout must be the same for every shard",
            ),
        ] {
            assert_eq!(refused(RedisConfig::shards([a.clone(), other.unwrap()])), error);
        }
        assert_eq!(
            refused(RedisConfig::shards([a.clone(), a.clone()])),
            "server must be listed once, found a:6379 twice"
        );
        assert_eq!(
            refused(RedisConfig::shards([])),
            "number of servers must be from 1 to 1000, found 0"
        );
        assert_eq!(
            refused(RedisConfig::shards([shards])),
            "shard must be a single server, found redis://a:6379, redis://b:6379"
        );
    }

    #[test]
    fn a_configuration_does_not_print_its_secrets() {
        let master = "m".to_owned();
        let sentinels = vec![Address::tcp("a", 1).unwrap()];
        let config = RedisConfig::new(Servers::Sentinel { sentinels, master })
            .and_then(|config| config.with_password("hunter2"))
            .and_then(|config| config.with_sentinel_login(None, "hunter3"))
            .and_then(|config| config.with_fleet_secret("hunter4"))
            .unwrap();
        let printed = format!("{config} {config:?} {:?}", config.keyer());
        assert!(!printed.contains("hunter"), "{printed}");
    }
}
