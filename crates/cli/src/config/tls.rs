//! Parses and validates `tls` of `tidegate.yaml`.

use std::path::{Path, PathBuf};

use serde::Deserialize;
use serde_saphyr::{Location, Spanned};
use tidegate_net::listener::tls::TlsFiles;
use tidegate_rules::did_you_mean;

use crate::config::reader::FieldReader;

/// The listeners that support TLS.
pub(crate) const LISTENERS: [&str; 5] = ["http", "grpc", "resp", "admin", "gateway"];

/// `tls` before validation.
#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct RawTls {
    certificate: Option<PathBuf>,
    key: Option<PathBuf>,
    client_ca: Option<PathBuf>,
    listeners: Option<Vec<Spanned<String>>>,
}

/// The files for TLS, and the listeners that use it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct TlsConfig {
    files: TlsFiles,
    listeners: Vec<String>,
}

impl TlsConfig {
    /// Returns the files, if the listener uses TLS.
    pub(crate) fn files_for(&self, listener: &str) -> Option<&TlsFiles> {
        self.listeners.iter().any(|name| name == listener).then_some(&self.files)
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
            reader.add(at, "tls must have certificate and key, found at most one".to_owned());
            return None;
        };
        let mut listeners = Vec::new();
        for listener in self.listeners.iter().flatten() {
            if LISTENERS.contains(&listener.value.as_str()) {
                listeners.push(listener.value.clone());
            } else {
                let (wanted, meant) =
                    (LISTENERS.join(", "), did_you_mean(&listener.value, LISTENERS));
                let found = format!("{:?}{meant}", listener.value);
                let message = format!("tls.listeners must be some of {wanted}, found {found}");
                reader.add(listener.referenced, message);
            }
        }
        if self.listeners.is_none() {
            listeners = LISTENERS.map(str::to_owned).into();
        }
        let files = TlsFiles {
            certificate: folder.join(certificate),
            key: folder.join(key),
            client_ca: self.client_ca.map(|path| folder.join(path)),
        };
        Some(TlsConfig { files, listeners })
    }
}
