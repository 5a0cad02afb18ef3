//! TLS on the listeners, as curl sees it.

use std::path::Path;
use std::process::Command;

use tidegate_testkit::{Certificates, Tool, lacking, wait_for};

use crate::kit::{Folder, Server};

/// What curl got: the status, and what it said of a failure.
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

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

fn serve(certificates: &Certificates, more: &str) -> Server {
    let (certificate, key) = (text(&certificates.certificate), text(&certificates.key));
    Server::with_config(&format!(
        "listen: {{http: '127.0.0.1:0'}}\ntls: {{certificate: {certificate}, key: {key}{more}}}"
    ))
}

#[test]
fn a_listener_speaks_tls_and_nothing_else() {
    if lacking(&[Tool::Openssl]) {
        return;
    }
    let folder = Folder::new();
    let certificates = Certificates::create(Path::new(folder.path()));
    let server = serve(&certificates, "");
    let ca = ["--cacert", text(&certificates.ca)];
    for listener in ["http", "admin"] {
        let address = server.listener(listener);
        let path = if listener == "http" { "healthz" } else { "v1/block" };
        assert_eq!(curl(&format!("https://{address}/{path}"), &ca), Ok(200), "{listener}");
        // Who does not know the authority hangs up, and so do we on who speaks no TLS.
        curl(&format!("https://{address}/{path}"), &[]).unwrap_err();
        curl(&format!("http://{address}/{path}"), &[]).unwrap_err();
    }
    let server = serve(&certificates, ", listeners: [http]");
    assert_eq!(curl(&format!("https://{}/healthz", server.listener("http")), &ca), Ok(200));
    assert_eq!(curl(&format!("{}/v1/block", server.admin_url()), &[]), Ok(200));
}

#[test]
fn redis_clients_speak_tls_to_their_listener() {
    if lacking(&[Tool::Openssl, Tool::RedisCli]) {
        return;
    }
    let folder = Folder::new();
    let certificates = Certificates::create(Path::new(folder.path()));
    let server = serve(&certificates, ", listeners: [resp]");
    let port = server.listener("resp").port().to_string();
    let ask = |arguments: &[&str]| {
        let mut command = Command::new("redis-cli");
        command.args(["-h", "127.0.0.1", "-p", &port]).args(arguments);
        let output = command.args(["CL.THROTTLE", "alice", "15", "30", "60"]).output().unwrap();
        String::from_utf8(output.stdout).unwrap()
    };
    let answer = ask(&["--tls", "--cacert", text(&certificates.ca)]);
    assert_eq!(answer, "0\n16\n15\n-1\n2\n");
    assert_eq!(ask(&[]), "");
    assert_eq!(ask(&["--tls"]), "");
}

#[test]
fn a_listener_that_asks_for_certificates_lets_in_only_those_of_its_authority() {
    if lacking(&[Tool::Openssl]) {
        return;
    }
    let (folder, other) = (Folder::new(), Folder::new());
    let certificates = Certificates::create(Path::new(folder.path()));
    let server = serve(&certificates, &format!(", client_ca: {}", text(&certificates.ca)));
    let url = format!("https://{}/healthz", server.listener("http"));
    let ca = ["--cacert", text(&certificates.ca)];
    let with = |(certificate, key): (std::path::PathBuf, std::path::PathBuf)| {
        let shown = ["--cert", text(&certificate), "--key", text(&key)];
        curl(&url, &[&ca[..], &shown].concat())
    };
    assert_eq!(with(certificates.client("orders", "URI:spiffe://shop/orders")), Ok(200));
    // Our own commands come in the same way.
    let (certificate, key) = certificates.client("operator", "DNS:operator.internal");
    let check = |identity: &[(&str, &Path)]| {
        let mut command = crate::kit::tidegate();
        command.args(["check", "global", "--server", &format!("https://{}", server.address)]);
        command.envs(identity.iter().copied()).output().unwrap().status.code()
    };
    let shown = [("TIDEGATE_CERTIFICATE", &*certificate), ("TIDEGATE_KEY", &*key)];
    assert_eq!(check(&[&shown[..], &[("TIDEGATE_CA", &certificates.ca)]].concat()), Some(0));
    assert_eq!(check(&[("TIDEGATE_CA", &certificates.ca)]), Some(2));
    assert_eq!(check(&shown), Some(2));
    curl(&url, &ca).unwrap_err();
    let stranger = Certificates::create(Path::new(other.path()));
    with(stranger.client("orders", "URI:spiffe://shop/orders")).unwrap_err();
}

#[test]
fn a_new_certificate_is_taken_up_and_a_broken_one_is_not() {
    if lacking(&[Tool::Openssl]) {
        return;
    }
    let (folder, next) = (Folder::new(), Folder::new());
    let old = Certificates::create(Path::new(folder.path()));
    let new = Certificates::create(Path::new(next.path()));
    let server = serve(&old, "");
    let url = format!("https://{}/healthz", server.listener("http"));
    let trusts = |ca: &Path| curl(&url, &["--cacert", text(ca)]) == Ok(200);
    let old_ca = folder.file("old-ca.pem", &std::fs::read_to_string(&old.ca).unwrap());
    assert!(trusts(Path::new(&old_ca)));
    std::fs::write(&old.certificate, "no certificate").unwrap();
    server.note("certificate not taken up");
    assert!(trusts(Path::new(&old_ca)));
    std::fs::copy(&new.certificate, &old.certificate).unwrap();
    std::fs::copy(&new.key, &old.key).unwrap();
    wait_for("the new certificate", || trusts(&new.ca).then_some(()));
    assert!(!trusts(Path::new(&old_ca)));
}
