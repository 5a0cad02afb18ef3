//! Certificates for one test.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::tool::Tool;

/// A new authority, and its certificate for `127.0.0.1` and `localhost`. All files are PEM.
#[derive(Debug, Clone)]
pub struct Certificates {
    /// The authority's certificate, which clients must trust.
    pub ca: PathBuf,
    /// The server's certificate.
    pub certificate: PathBuf,
    /// The server's key.
    pub key: PathBuf,
}

impl Certificates {
    /// Creates the files in `folder`.
    ///
    /// # Panics
    /// `openssl` is missing or fails.
    pub fn create(folder: &Path) -> Self {
        let file = |name: &str| folder.join(name);
        let (ca, ca_key) = (file("ca.pem"), file("ca.key"));
        let (certificate, key) = (file("server.pem"), file("server.key"));
        request("Tidegate test authority", &ca, &ca_key, |command| command);
        request("localhost", &certificate, &key, |command| {
            let names = "subjectAltName=IP:127.0.0.1,DNS:localhost";
            command.args(["-addext", names, "-addext", "basicConstraints=critical,CA:FALSE"]);
            command.arg("-CA").arg(&ca).arg("-CAkey").arg(&ca_key)
        });
        Self { ca, certificate, key }
    }

    /// Returns a certificate by the same authority for a client, in the same folder: it and its key. `name` is a
    /// name as OpenSSL writes it: `URI:spiffe://shop/orders`, `DNS:orders.internal`.
    ///
    /// # Panics
    /// `openssl` is missing or fails.
    pub fn client(&self, file: &str, name: &str) -> (PathBuf, PathBuf) {
        let (certificate, key) = (
            self.ca.with_file_name(format!("{file}.pem")),
            self.ca.with_file_name(format!("{file}.key")),
        );
        request(file, &certificate, &key, |command| {
            let name = format!("subjectAltName={name}");
            command.args(["-addext", &name, "-addext", "basicConstraints=critical,CA:FALSE"]);
            command.arg("-CA").arg(&self.ca).arg("-CAkey").arg(self.ca.with_extension("key"))
        });
        (certificate, key)
    }
}

fn request(
    name: &str,
    certificate: &Path,
    key: &Path,
    more: impl FnOnce(&mut Command) -> &mut Command,
) {
    let mut command = Command::new(Tool::Openssl.expect_path());
    command.args(["req", "-x509", "-nodes", "-days", "2", "-subj", &format!("/CN={name}")]);
    command.args(["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1"]);
    command.arg("-out").arg(certificate).arg("-keyout").arg(key);
    let made = more(&mut command).output().expect("openssl can be run");
    assert!(made.status.success(), "openssl: {}", String::from_utf8_lossy(&made.stderr));
}
