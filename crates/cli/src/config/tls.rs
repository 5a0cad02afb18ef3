//! `tls` of `tidegate.yaml`, from what is written to what can be used.

use std::path::{Path, PathBuf};

use serde::Deserialize;
use serde_saphyr::{Location, Spanned};
use tidegate_net::listener::tls::TlsFiles;
use tidegate_rules::did_you_mean;

use crate::config::reader::FieldReader;

/// The doors that can speak TLS.
pub(crate) const DOORS: [&str; 5] = ["http", "grpc", "resp", "admin", "gateway"];

/// `tls` as it is written.
#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct RawTls {
    certificate: Option<PathBuf>,
    key: Option<PathBuf>,
    client_ca: Option<PathBuf>,
    doors: Option<Vec<Spanned<String>>>,
}

/// Which doors speak TLS, and how.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct TlsConfig {
    files: TlsFiles,
    doors: Vec<String>,
}

impl TlsConfig {
    /// What a door needs to speak TLS, if it is to.
    pub(crate) fn of(&self, door: &str) -> Option<&TlsFiles> {
        self.doors.iter().any(|name| name == door).then_some(&self.files)
    }
}

impl RawTls {
    /// Returns the resolved form, or `None` after its errors were added to `reader`. Paths are relative to
    /// `folder`.
    pub(crate) fn resolve(
        self,
        at: Location,
        folder: &Path,
        reader: &mut FieldReader<'_>,
    ) -> Option<TlsConfig> {
        let (Some(certificate), Some(key)) = (self.certificate, self.key) else {
            reader.add(at, "tls must have certificate and key, found one at the most".to_owned());
            return None;
        };
        let mut doors = Vec::new();
        for door in self.doors.iter().flatten() {
            if DOORS.contains(&door.value.as_str()) {
                doors.push(door.value.clone());
            } else {
                let (wanted, meant) = (DOORS.join(", "), did_you_mean(&door.value, DOORS));
                let found = format!("{:?}{meant}", door.value);
                let message = format!("tls.doors must be some of {wanted}, found {found}");
                reader.add(door.referenced, message);
            }
        }
        if self.doors.is_none() {
            doors = DOORS.map(str::to_owned).into();
        }
        let files = TlsFiles {
            certificate: folder.join(certificate),
            key: folder.join(key),
            client_ca: self.client_ca.map(|path| folder.join(path)),
        };
        Some(TlsConfig { files, doors })
    }
}
