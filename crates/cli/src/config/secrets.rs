//! Loads passwords and the fleet secret from files or from the environment.

use std::path::{Path, PathBuf};

use crate::config::environment;
use tidegate_redis::{RedisConfig, RedisConfigError, Secret};
use tidegate_service::config_error::{ConfigError, read_file};

/// Variable with the Redis password, for when neither the URL nor the configuration has one.
pub(crate) const PASSWORD_VARIABLE: &str = "TIDEGATE_REDIS_PASSWORD";
/// Variable with the fleet secret, for when the configuration has none.
const SECRET_VARIABLE: &str = "TIDEGATE_REDIS_SECRET";

/// The settings of Redis before secrets are loaded from files and the environment.
#[derive(Debug)]
pub(crate) struct RedisSettings {
    pub(crate) config: RedisConfig,
    /// Files with secrets.
    pub(crate) files: Vec<(SecretKind, PathBuf)>,
}

/// The use of a secret.
#[derive(Clone, Debug)]
pub(crate) enum SecretKind {
    Password,
    FleetSecret,
    SentinelLogin { user: Option<String> },
}

impl RedisSettings {
    pub(crate) fn new(config: RedisConfig) -> Self {
        Self { config, files: Vec::new() }
    }

    /// Parses the URL of `--redis`.
    ///
    /// # Errors
    /// The URL is invalid. The error contains no part that may be a password.
    pub(crate) fn from_flag(url: &Secret) -> Result<Self, ConfigError> {
        url.reveal().parse().map(Self::new).map_err(invalid_at("--redis"))
    }

    /// Loads the secrets from their files, else from the environment.
    ///
    /// # Errors
    /// A file can't be read, or its content is not a valid secret.
    pub(crate) fn load(self) -> Result<RedisConfig, ConfigError> {
        let mut config = self.config;
        for (kind, path) in self.files {
            let applied = kind.apply(config, read_secret(&path)?);
            config = applied.map_err(|error| invalid_secret(&path, &error))?;
        }
        if !config.has_password()
            && let Some(password) = environment(PASSWORD_VARIABLE)?
        {
            config = config.with_password(password).map_err(invalid_at(PASSWORD_VARIABLE))?;
        }
        if !config.has_fleet_secret()
            && let Some(secret) = environment(SECRET_VARIABLE)?
        {
            config = config.with_fleet_secret(secret).map_err(invalid_at(SECRET_VARIABLE))?;
        }
        Ok(config)
    }
}

impl SecretKind {
    /// Returns the key of the configuration.
    pub(crate) fn name(&self) -> &'static str {
        match self {
            Self::Password => "password",
            Self::FleetSecret => "secret",
            Self::SentinelLogin { .. } => "sentinel.password",
        }
    }

    /// Adds the secret to the configuration.
    pub(crate) fn apply(
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

/// Reads a secret from its file. Line breaks at the end are removed.
pub(crate) fn read_secret(path: &Path) -> Result<String, ConfigError> {
    const MAX_LENGTH: usize = 4_096;
    let text = read_file(path, MAX_LENGTH)?;
    Ok(text.trim_end_matches(['\r', '\n']).to_owned())
}

fn invalid_secret(path: &Path, error: &RedisConfigError) -> ConfigError {
    ConfigError::Unreadable { path: path.to_owned(), reason: error.to_string() }
}

fn invalid_at(place: &'static str) -> impl Fn(RedisConfigError) -> ConfigError {
    move |error| ConfigError::NotInFile { place, reason: error.to_string() }
}
