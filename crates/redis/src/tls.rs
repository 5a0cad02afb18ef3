//! Certificates of encrypted connections.

use std::path::{Path, PathBuf};

use redis::{ClientTlsConfig, TlsCertificates};
use rustls::crypto::CryptoProvider;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;

/// The encryption of connections. The certificate of a server must name its configured host.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tls {
    /// A PEM file with the certificates that may sign a server's; the system's own if `None`.
    pub ca: Option<PathBuf>,
    /// The certificate for servers that require one of their clients.
    pub identity: Option<TlsIdentity>,
}

/// A client's certificate and its key, in PEM files.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TlsIdentity {
    /// The certificate, and those between it and one that the servers trust.
    pub certificate: PathBuf,
    /// Its private key.
    pub key: PathBuf,
}

impl Tls {
    /// Reads the files. They are read anew for each connection, so that a renewed certificate is
    /// used without a restart. Blocks.
    ///
    /// # Errors
    /// Which file, and why it can't be used.
    pub(crate) fn read(&self) -> Result<TlsCertificates, String> {
        let root_cert = self.ca.as_deref().map(certificates).transpose()?;
        let client_tls = match &self.identity {
            Some(TlsIdentity { certificate, key }) => Some(ClientTlsConfig {
                client_cert: certificates(certificate)?,
                client_key: file(key)?,
            }),
            None => None,
        };
        Ok(TlsCertificates { client_tls, root_cert })
    }
}

/// Reads a file with a certificate. Without one, no server would be trusted, and the error of the handshake would not name
/// the file.
fn certificates(path: &Path) -> Result<Vec<u8>, String> {
    let pem = file(path)?;
    match CertificateDer::pem_slice_iter(&pem).next() {
        Some(Ok(_)) => Ok(pem),
        Some(Err(_)) | None => Err(format!("{}: a PEM certificate is wanted", path.display())),
    }
}

fn file(path: &Path) -> Result<Vec<u8>, String> {
    std::fs::read(path).map_err(|error| format!("{}: {error}", path.display()))
}

/// Makes sure that the process has cryptography: what its owner has installed, or else AWS-LC.
pub(crate) fn provide_cryptography() {
    if CryptoProvider::get_default().is_none() {
        // An error means that another thread has just installed one.
        _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_can_not_be_used_is_named() {
        let ca = |path: &str| Tls { ca: Some(path.into()), identity: None };
        assert_eq!(
            ca("/no/such.pem").read().unwrap_err(),
            "/no/such.pem: No such file or directory (os error 2)"
        );
        let source = concat!(env!("CARGO_MANIFEST_DIR"), "/Cargo.toml");
        assert_eq!(
            ca(source).read().unwrap_err(),
            format!("{source}: a PEM certificate is wanted")
        );
    }
}
