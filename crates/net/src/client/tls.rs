//! TLS of a client: trusted authorities and the client's own certificate.

use std::path::PathBuf;
use std::sync::Arc;

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

/// Files with the authority that a client trusts, and with the certificate that it presents; all PEM.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ClientTls {
    /// The authority of server certificates, in place of those of the system.
    pub ca: Option<PathBuf>,
    /// A certificate and its key.
    pub identity: Option<(PathBuf, PathBuf)>,
}

impl ClientTls {
    /// Returns a connector that negotiates one of these protocols (ALPN).
    ///
    /// # Errors
    /// A file can't be used.
    pub fn connector(&self, protocols: &[&str]) -> Result<TlsConnector, String> {
        let mut config = self.config()?;
        config.alpn_protocols = protocols.iter().map(|name| name.as_bytes().to_vec()).collect();
        Ok(TlsConnector::from(Arc::new(config)))
    }

    /// Completes the handshake with the server of this name.
    ///
    /// # Errors
    /// The handshake failed, or a file can't be used.
    pub async fn connect(
        &self,
        host: &str,
        stream: TcpStream,
    ) -> Result<TlsStream<TcpStream>, String> {
        let name = ServerName::try_from(host.trim_matches(['[', ']']).to_owned())
            .map_err(|_| format!("{host:?} is not a valid name for a certificate"))?;
        let connector = TlsConnector::from(Arc::new(self.config()?));
        connector.connect(name, stream).await.map_err(|error| error.to_string())
    }

    fn config(&self) -> Result<ClientConfig, String> {
        let mut roots = RootCertStore::empty();
        match &self.ca {
            Some(path) => {
                for authority in certificates(path)? {
                    roots.add(authority).map_err(|error| format!("{}: {error}", path.display()))?;
                }
            }
            None => {
                let found = rustls_native_certs::load_native_certs();
                roots.add_parsable_certificates(found.certs);
            }
        }
        let builder = ClientConfig::builder().with_root_certificates(roots);
        let Some((certificate, key)) = &self.identity else {
            return Ok(builder.with_no_client_auth());
        };
        let unusable = |error: &dyn std::fmt::Display| format!("{}: {error}", key.display());
        let read = PrivateKeyDer::from_pem_file(key).map_err(|error| unusable(&error))?;
        let config = builder.with_client_auth_cert(certificates(certificate)?, read);
        config.map_err(|error| unusable(&error))
    }
}

fn certificates(path: &PathBuf) -> Result<Vec<CertificateDer<'static>>, String> {
    let unusable = |error: rustls::pki_types::pem::Error| format!("{}: {error}", path.display());
    CertificateDer::pem_file_iter(path)
        .map_err(unusable)?
        .map(|found| found.map_err(unusable))
        .collect()
}
