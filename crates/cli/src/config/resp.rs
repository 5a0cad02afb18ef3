//! Parses `resp` of `tidegate.yaml`: the password of the RESP listener.

use std::path::{Path, PathBuf};

use serde::Deserialize;
use serde_saphyr::Spanned;
use tidegate_redis::Secret;
use tidegate_service::config_error::ConfigError;

use crate::config::environment;
use crate::config::reader::FieldReader;
use crate::config::secrets::read_secret;

/// Environment variable that holds the password if the configuration has none.
const PASSWORD_VARIABLE: &str = "TIDEGATE_RESP_PASSWORD";

/// `resp` before validation. It has no `Debug`, because it holds a password.
#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct RawResp {
    password: Option<Spanned<String>>,
    password_file: Option<Spanned<PathBuf>>,
}

/// The source of the password.
#[derive(Debug, Default)]
pub(crate) enum RespPassword {
    /// In `TIDEGATE_RESP_PASSWORD`, which may be unset.
    #[default]
    Environment,
    Inline(Secret),
    File(PathBuf),
}

impl RawResp {
    /// Returns the source of the password. Errors are added to `reader`; the returned source is then not used. Paths are
    /// relative to `folder`.
    pub(crate) fn resolve(self, folder: &Path, reader: &mut FieldReader<'_>) -> RespPassword {
        match (self.password, self.password_file) {
            (None, None) => RespPassword::Environment,
            (None, Some(file)) => RespPassword::File(folder.join(file.value)),
            (Some(password), None) if password.value.is_empty() => {
                let message = "resp.password must not be empty, found no text";
                reader.add(password.referenced, message.to_owned());
                RespPassword::Environment
            }
            (Some(password), None) => RespPassword::Inline(Secret::from(password.value)),
            (Some(password), Some(_)) => {
                let message = "resp must have password or password_file, found both";
                reader.add(password.referenced, message.to_owned());
                RespPassword::Environment
            }
        }
    }
}

impl RespPassword {
    /// Loads the password; `None` if the listener has none.
    ///
    /// # Errors
    /// The file can't be read or is empty. An empty file must not open the listener without a password.
    pub(crate) fn load(self) -> Result<Option<Secret>, ConfigError> {
        match self {
            Self::Environment => Ok(environment(PASSWORD_VARIABLE)?.map(Secret::from)),
            Self::Inline(password) => Ok(Some(password)),
            Self::File(path) => match read_secret(&path)? {
                empty if empty.is_empty() => {
                    let reason = "a password is wanted, found nothing".to_owned();
                    Err(ConfigError::Unreadable { path, reason })
                }
                password => Ok(Some(Secret::from(password))),
            },
        }
    }
}
