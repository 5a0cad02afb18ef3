//! TLS of a listener, with certificates that are reloaded while it is open.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use arc_swap::ArcSwap;
use rustls::RootCertStore;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::{ServerConfig, WebPkiClientVerifier};
use thiserror::Error;
use tokio::net::TcpStream;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;
use webpki::EndEntityCert;

/// Longest file in bytes: a chain of certificates, or a bundle of authorities.
const MAX_FILE_BYTES: usize = 4 * 1024 * 1024;

/// The files of a listener's certificate, and of the authority of its clients.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TlsFiles {
    /// The certificate with its intermediate certificates, as PEM.
    pub certificate: PathBuf,
    /// The key of the certificate, as PEM.
    pub key: PathBuf,
    /// The authority of client certificates. With it a client has to present one.
    pub client_ca: Option<PathBuf>,
}

impl TlsFiles {
    /// Returns the paths of all files.
    pub fn paths(&self) -> impl Iterator<Item = &Path> {
        let files = [Some(&self.certificate), Some(&self.key), self.client_ca.as_ref()];
        files.into_iter().flatten().map(PathBuf::as_path)
    }
}

/// The contents of the files. A reload compares them.
#[derive(PartialEq, Eq)]
struct FileContents {
    certificate: Vec<u8>,
    key: Vec<u8>,
    client_ca: Option<Vec<u8>>,
}

/// The TLS configuration of a listener.
pub struct ListenerTls {
    files: TlsFiles,
    /// The protocols to negotiate (ALPN): `http/1.1`, `h2`.
    protocols: Vec<Vec<u8>>,
    current: ArcSwap<TlsState>,
}

struct TlsState {
    contents: FileContents,
    config: Arc<ServerConfig>,
}

impl std::fmt::Debug for ListenerTls {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ListenerTls").field("files", &self.files).finish_non_exhaustive()
    }
}

impl ListenerTls {
    /// Reads the files.
    ///
    /// # Errors
    /// A file can't be read or used, or the key is another certificate's.
    pub fn load(files: TlsFiles, protocols: &[&str]) -> Result<Self, TlsError> {
        let protocols = protocols.iter().map(|name| name.as_bytes().to_vec()).collect();
        let contents = FileContents::read(&files)?;
        let config = contents.config(&files, &protocols)?;
        let current = ArcSwap::from_pointee(TlsState { contents, config });
        Ok(Self { files, protocols, current })
    }

    /// Returns the files.
    pub fn files(&self) -> &TlsFiles {
        &self.files
    }

    /// Returns the path of the certificate, which names it in logs.
    pub fn certificate(&self) -> &Path {
        &self.files.certificate
    }

    /// Reads the files again, and returns whether they have changed. Open connections keep their certificate.
    ///
    /// # Errors
    /// The same as of [`load`](Self::load); the certificate in use does not change.
    pub fn reload(&self) -> Result<bool, TlsError> {
        let contents = FileContents::read(&self.files)?;
        if contents == self.current.load().contents {
            return Ok(false);
        }
        let config = contents.config(&self.files, &self.protocols)?;
        self.current.store(Arc::new(TlsState { contents, config }));
        Ok(true)
    }

    /// Completes the handshake. Returns the stream and, if clients have to present a certificate, the client's name.
    pub async fn accept(
        &self,
        stream: TcpStream,
    ) -> io::Result<(TlsStream<TcpStream>, Option<Arc<str>>)> {
        let config = Arc::clone(&self.current.load().config);
        let stream = TlsAcceptor::from(config).accept(stream).await?;
        let certificates = stream.get_ref().1.peer_certificates();
        let service = certificates.and_then(|chain| subject(chain.first()?));
        Ok((stream, service))
    }
}

impl FileContents {
    fn read(files: &TlsFiles) -> Result<Self, TlsError> {
        Ok(Self {
            certificate: read(&files.certificate)?,
            key: read(&files.key)?,
            client_ca: files.client_ca.as_deref().map(read).transpose()?,
        })
    }

    fn config(
        &self,
        files: &TlsFiles,
        protocols: &Vec<Vec<u8>>,
    ) -> Result<Arc<ServerConfig>, TlsError> {
        let chain = certificates(&files.certificate, &self.certificate)?;
        let key = PrivateKeyDer::from_pem_slice(&self.key)
            .map_err(|_| TlsError::new(&files.key, "a private key in PEM is wanted"))?;
        let builder = ServerConfig::builder();
        let builder = match (&files.client_ca, &self.client_ca) {
            (Some(path), Some(bytes)) => {
                let mut roots = RootCertStore::empty();
                for authority in certificates(path, bytes)? {
                    roots.add(authority).map_err(|error| TlsError::new(path, error))?;
                }
                let verifier = WebPkiClientVerifier::builder(Arc::new(roots)).build();
                let verifier = verifier.map_err(|error| TlsError::new(path, error))?;
                builder.with_client_cert_verifier(verifier)
            }
            _ => builder.with_no_client_auth(),
        };
        let mut config = builder
            .with_single_cert(chain, key)
            .map_err(|error| TlsError::new(&files.certificate, error))?;
        config.alpn_protocols.clone_from(protocols);
        Ok(Arc::new(config))
    }
}

fn certificates(path: &Path, bytes: &[u8]) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let found: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(bytes).collect();
    let wanted = "certificates in PEM are wanted";
    match found {
        Ok(found) if !found.is_empty() => Ok(found),
        Ok(_) => Err(TlsError::new(path, format_args!("{wanted}, found none"))),
        Err(error) => Err(TlsError::new(path, format_args!("{wanted}: {error}"))),
    }
}

fn read(path: &Path) -> Result<Vec<u8>, TlsError> {
    use std::io::Read;
    let file = std::fs::File::open(path).map_err(|error| TlsError::new(path, error))?;
    let mut bytes = Vec::new();
    let max = u64::try_from(MAX_FILE_BYTES).unwrap_or(u64::MAX);
    file.take(max).read_to_end(&mut bytes).map_err(|error| TlsError::new(path, error))?;
    Ok(bytes)
}

/// Returns the name in a certificate: its first URI (SPIFFE), otherwise its first host name.
fn subject(certificate: &CertificateDer<'_>) -> Option<Arc<str>> {
    let parsed = EndEntityCert::try_from(certificate).ok()?;
    let uri = parsed.valid_uri_names().next();
    uri.or_else(|| parsed.valid_dns_names().next()).map(Arc::from)
}

/// The reason why TLS can't be used.
#[derive(Debug, Error)]
#[error("{}: {reason}", path.display())]
pub struct TlsError {
    path: PathBuf,
    reason: String,
}

impl TlsError {
    fn new(path: &Path, reason: impl std::fmt::Display) -> Self {
        Self { path: path.to_owned(), reason: reason.to_string() }
    }
}
