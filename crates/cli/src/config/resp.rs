//! `resp` of `tidegate.yaml`: what clients of the RESP listener have to say before they are answered.

use std::path::{Path, PathBuf};

use serde::Deserialize;
use serde_saphyr::Spanned;
use tidegate_redis::Secret;
use tidegate_service::config_error::ConfigError;

use crate::config::environment;
use crate::config::reader::FieldReader;
use crate::config::secrets::in_file;

/// Has the password where the configuration has none.
const VARIABLE: &str = "TIDEGATE_RESP_PASSWORD";

/// `resp` as it is written. It has no `Debug`: it holds a password.
#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct RawResp {
    password: Option<Spanned<String>>,
    password_file: Option<Spanned<PathBuf>>,
}

/// Where the password is.
#[derive(Debug, Default)]
pub(crate) enum RespPassword {
    /// In the environment, or nowhere.
    #[default]
    Elsewhere,
    Here(Secret),
    File(PathBuf),
}

impl RawResp {
    /// Returns the resolved form; its errors are added to `reader`. Paths are relative to `folder`.
    pub(crate) fn resolve(self, folder: &Path, reader: &mut FieldReader<'_>) -> RespPassword {
        match (self.password, self.password_file) {
            (None, None) => RespPassword::Elsewhere,
            (None, Some(file)) => RespPassword::File(folder.join(file.value)),
            (Some(password), None) if password.value.is_empty() => {
                let message = "resp.password must be some text, found none";
                reader.add(password.referenced, message.to_owned());
                RespPassword::Elsewhere
            }
            (Some(password), None) => RespPassword::Here(Secret::from(password.value)),
            (Some(password), Some(_)) => {
                let message = "resp must have password or password_file, found both";
                reader.add(password.referenced, message.to_owned());
                RespPassword::Elsewhere
            }
        }
    }
}

impl RespPassword {
    /// The password, if the listener has one.
    ///
    /// # Errors
    /// Its file can't be read, or has nothing in it: a listener that was to have a password is not opened
    /// without one.
    pub(crate) fn load(self) -> Result<Option<Secret>, ConfigError> {
        match self {
            Self::Elsewhere => Ok(environment(VARIABLE)?.map(Secret::from)),
            Self::Here(password) => Ok(Some(password)),
            Self::File(path) => match in_file(&path)? {
                empty if empty.is_empty() => {
                    let reason = "a password is wanted, found nothing".to_owned();
                    Err(ConfigError::Unreadable { path, reason })
                }
                password => Ok(Some(Secret::from(password))),
            },
        }
    }
}
