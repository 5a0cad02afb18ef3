//! TLS on the listeners, with curl, redis-cli and `tidegate check` as clients.

use std::path::Path;
use std::process::Command;

use tidegate_testkit::{Certificates, Tool, lacking, wait_for};

use crate::kit::{Folder, Server};

/// Requests a URL with curl. Returns the status, or the error message of curl.
fn curl(url: &str, arguments: &[&str]) -> Result<u16, String> {
    let mut command = Command::new("curl");
    command.args(["--silent", "--show-error", "--output", "/dev/null", "--max-time", "30"]);
    command.args(["--write-out", "%{http_code}"]).args(arguments).arg(url);
    let output = command.output().unwrap();
    if !output.status.success() {
        return Err(String::from_utf8_lossy(&output.stderr).into_owned());
    }
    Ok(String::from_utf8(output.stdout).unwrap().parse().unwrap())
}

fn path_text(path: &Path) -> &str {
    path.to_str().unwrap()
}

fn serve_with_tls(certificates: &Certificates, more: &str) -> Server {
    let (certificate, key) = (path_text(&certificates.certificate), path_text(&certificates.key));
    Server::with_config(&format!(
        "listen: {{http: '127.0.0.1:0'}}\ntls: {{certificate: {certificate}, key: {key}{more}}}"
    ))
}

#[test]
fn tls_covers_all_or_selected_listeners_and_rejects_plain_http() {
    if lacking(&[Tool::Openssl]) {
        return;
    }
    let folder = Folder::new();
    let certificates = Certificates::create(Path::new(folder.path()));
    let server = serve_with_tls(&certificates, "");
    let ca = ["--cacert", path_text(&certificates.ca)];
    for listener in ["http", "admin"] {
        let address = server.listener(listener);
        let path = if listener == "http" { "healthz" } else { "v1/block" };
        assert_eq!(curl(&format!("https://{address}/{path}"), &ca), Ok(200), "{listener}");
        // Without the CA curl rejects the certificate. Without TLS the server closes the connection.
        curl(&format!("https://{address}/{path}"), &[]).unwrap_err();
        curl(&format!("http://{address}/{path}"), &[]).unwrap_err();
    }
    let server = serve_with_tls(&certificates, ", listeners: [http]");
    assert_eq!(curl(&format!("https://{}/healthz", server.listener("http")), &ca), Ok(200));
    assert_eq!(curl(&format!("{}/v1/block", server.admin_url()), &[]), Ok(200));
}

#[test]
fn resp_listener_with_tls_rejects_plain_connections() {
    if lacking(&[Tool::Openssl, Tool::RedisCli]) {
        return;
    }
    let folder = Folder::new();
    let certificates = Certificates::create(Path::new(folder.path()));
    let server = serve_with_tls(&certificates, ", listeners: [resp]");
    let port = server.listener("resp").port().to_string();
    let throttle = |arguments: &[&str]| {
        let mut command = Command::new("redis-cli");
        command.args(["-h", "127.0.0.1", "-p", &port]).args(arguments);
        let output = command.args(["CL.THROTTLE", "alice", "15", "30", "60"]).output().unwrap();
        String::from_utf8(output.stdout).unwrap()
    };
    let reply = throttle(&["--tls", "--cacert", path_text(&certificates.ca)]);
    assert_eq!(reply, "0\n16\n15\n-1\n2\n");
    assert_eq!(throttle(&[]), "");
    assert_eq!(throttle(&["--tls"]), "");
}

#[test]
fn listener_with_client_ca_accepts_only_certificates_of_that_ca() {
    if lacking(&[Tool::Openssl]) {
        return;
    }
    let (folder, other_folder) = (Folder::new(), Folder::new());
    let certificates = Certificates::create(Path::new(folder.path()));
    let server =
        serve_with_tls(&certificates, &format!(", client_ca: {}", path_text(&certificates.ca)));
    let url = format!("https://{}/healthz", server.listener("http"));
    let ca = ["--cacert", path_text(&certificates.ca)];
    let curl_with_identity = |(certificate, key): (std::path::PathBuf, std::path::PathBuf)| {
        let identity = ["--cert", path_text(&certificate), "--key", path_text(&key)];
        curl(&url, &[&ca[..], &identity].concat())
    };
    assert_eq!(
        curl_with_identity(certificates.client("orders", "URI:spiffe://shop/orders")),
        Ok(200)
    );
    // The commands of `tidegate` present a certificate as well.
    let (certificate, key) = certificates.client("operator", "DNS:operator.internal");
    let check = |variables: &[(&str, &Path)]| {
        let mut command = crate::kit::tidegate();
        command.args(["check", "global", "--server", &format!("https://{}", server.address)]);
        command.envs(variables.iter().copied()).output().unwrap().status.code()
    };
    let identity = [("TIDEGATE_CERTIFICATE", &*certificate), ("TIDEGATE_KEY", &*key)];
    assert_eq!(check(&[&identity[..], &[("TIDEGATE_CA", &certificates.ca)]].concat()), Some(0));
    assert_eq!(check(&[("TIDEGATE_CA", &certificates.ca)]), Some(2));
    assert_eq!(check(&identity), Some(2));
    curl(&url, &ca).unwrap_err();
    let other_authority = Certificates::create(Path::new(other_folder.path()));
    curl_with_identity(other_authority.client("orders", "URI:spiffe://shop/orders")).unwrap_err();
}

#[test]
fn new_certificate_is_served_and_an_invalid_one_is_ignored() {
    if lacking(&[Tool::Openssl]) {
        return;
    }
    let (folder, new_folder) = (Folder::new(), Folder::new());
    let old = Certificates::create(Path::new(folder.path()));
    let new = Certificates::create(Path::new(new_folder.path()));
    let server = serve_with_tls(&old, "");
    let url = format!("https://{}/healthz", server.listener("http"));
    let is_trusted_with = |ca: &Path| curl(&url, &["--cacert", path_text(ca)]) == Ok(200);
    let old_ca = folder.file("old-ca.pem", &std::fs::read_to_string(&old.ca).unwrap());
    assert!(is_trusted_with(Path::new(&old_ca)));
    std::fs::write(&old.certificate, "no certificate").unwrap();
    server.wait_for_log("cannot reload certificate");
    assert!(is_trusted_with(Path::new(&old_ca)));
    std::fs::copy(&new.certificate, &old.certificate).unwrap();
    std::fs::copy(&new.key, &old.key).unwrap();
    wait_for("the new certificate", || is_trusted_with(&new.ca).then_some(()));
    assert!(!is_trusted_with(Path::new(&old_ca)));
}
