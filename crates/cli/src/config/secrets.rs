//! Passwords and the fleet secret: in files that the configuration names, or in the environment.

use std::path::{Path, PathBuf};

use crate::config::environment;
use tidegate_redis::{RedisConfig, RedisConfigError, Secret};
use tidegate_service::config_error::{ConfigError, read_file};

/// Has a password where neither the URL nor the configuration has one.
pub(crate) const PASSWORD_VARIABLE: &str = "TIDEGATE_REDIS_PASSWORD";
/// Has a fleet secret where the configuration has none.
const SECRET_VARIABLE: &str = "TIDEGATE_REDIS_SECRET";

/// Redis as the configuration says, before the secrets are there that are kept elsewhere.
#[derive(Debug)]
pub(crate) struct RedisSource {
    pub(crate) config: RedisConfig,
    pub(crate) files: Vec<(Wanted, PathBuf)>,
}

/// What a secret is for.
#[derive(Clone, Debug)]
pub(crate) enum Wanted {
    Password,
    FleetSecret,
    SentinelLogin { user: Option<String> },
}

impl RedisSource {
    pub(crate) fn new(config: RedisConfig) -> Self {
        Self { config, files: Vec::new() }
    }

    /// What `--redis` says.
    ///
    /// # Errors
    /// It is no URL of servers. The error shows no part of it that may be a password.
    pub(crate) fn of_flag(url: &Secret) -> Result<Self, ConfigError> {
        url.reveal().parse().map(Self::new).map_err(said_by("--redis"))
    }

    /// Fetches the secrets: from the files that are named, else from the environment.
    ///
    /// # Errors
    /// A file can't be read, or what is found can't be a secret.
    pub(crate) fn load(self) -> Result<RedisConfig, ConfigError> {
        let mut config = self.config;
        for (wanted, path) in self.files {
            let put = wanted.put(config, in_file(&path)?);
            config = put.map_err(|error| unusable(&path, &error))?;
        }
        if !config.has_password()
            && let Some(password) = environment(PASSWORD_VARIABLE)?
        {
            config = config.with_password(password).map_err(said_by(PASSWORD_VARIABLE))?;
        }
        if !config.has_fleet_secret()
            && let Some(secret) = environment(SECRET_VARIABLE)?
        {
            config = config.with_fleet_secret(secret).map_err(said_by(SECRET_VARIABLE))?;
        }
        Ok(config)
    }
}

impl Wanted {
    /// The key that has it in the configuration.
    pub(crate) fn name(&self) -> &'static str {
        match self {
            Self::Password => "password",
            Self::FleetSecret => "secret",
            Self::SentinelLogin { .. } => "sentinel.password",
        }
    }

    /// The configuration with the secret.
    pub(crate) fn put(
        self,
        config: RedisConfig,
        secret: impl Into<Secret>,
    ) -> Result<RedisConfig, RedisConfigError> {
        match self {
            Self::Password => config.with_password(secret),
            Self::FleetSecret => config.with_fleet_secret(secret),
            Self::SentinelLogin { user } => config.with_sentinel_login(user, secret),
        }
    }
}

/// A secret in a file of its own. The end of its line does not belong to it.
pub(crate) fn in_file(path: &Path) -> Result<String, ConfigError> {
    const MAX_LENGTH: usize = 4_096;
    let text = read_file(path, MAX_LENGTH)?;
    Ok(text.trim_end_matches(['\r', '\n']).to_owned())
}

fn unusable(path: &Path, error: &RedisConfigError) -> ConfigError {
    ConfigError::Unreadable { path: path.to_owned(), reason: error.to_string() }
}

fn said_by(place: &'static str) -> impl Fn(RedisConfigError) -> ConfigError {
    move |error| ConfigError::NotInFile { place, reason: error.to_string() }
}
