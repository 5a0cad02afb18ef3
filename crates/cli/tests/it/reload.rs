//! SIGHUP reloads rules, certificates and keys without a restart.

use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};

use serde_json::Value;
use tidegate_testkit::{
    Certificates, FaultProxy, Flavour, Process, Redis, Tool, lacking, wait_for,
};

use crate::kit::{Folder, Server, tidegate};

fn rules_with_limit(limit: u64) -> String {
    format!("rules: [{{name: api, per: [user], limit: {limit} per 10 days}}]\n")
}

fn enforced_limit(server: &Server) -> Option<u64> {
    server.check(r#"{"rule":"api","client":"probe","cost":0}"#).json()["limit"].as_u64()
}

fn rules_status(server: &Server) -> Value {
    server.request_admin("GET", "/v1/rules/status", "").json()
}

/// Starts a server that is not notified of changes of its rules file, and polls it once an hour.
///
/// Its path is a link to a directory that is not watched. Returns the server and the target of the link.
fn server_with_unwatched_rules(folder: &Folder) -> (Server, String) {
    let data = Path::new(folder.path()).join("data");
    std::fs::create_dir(&data).unwrap();
    let target = data.join("rules.yaml");
    std::fs::write(&target, rules_with_limit(5)).unwrap();
    std::os::unix::fs::symlink(&target, Path::new(folder.path()).join("rules.yaml")).unwrap();
    let config = folder.file(
        "tidegate.yaml",
        "rules: {file: rules.yaml, poll: 1h}\nlisten: {http: 127.0.0.1:0}\n",
    );
    (Server::with_arguments(&["--config", &config]), target.to_str().unwrap().to_owned())
}

#[test]
fn sighup_activates_changed_rules_while_every_request_is_answered() {
    let folder = Folder::new();
    let (server, path) = server_with_unwatched_rules(&folder);
    let done = AtomicBool::new(false);
    let answered: usize = std::thread::scope(|scope| {
        let checkers: Vec<_> = (0..3)
            .map(|_| {
                let (mut connection, done) = (server.connect(), &done);
                scope.spawn(move || {
                    let mut answered = 0;
                    while !done.load(Ordering::Relaxed) {
                        let body = r#"{"attributes":{"user":"ann"},"cost":0}"#;
                        connection.send("POST", "/v1/check", body);
                        assert_eq!(connection.receive(false).status, 200);
                        answered += 1;
                    }
                    answered
                })
            })
            .collect();
        for wanted in 6..10 {
            std::fs::write(&path, rules_with_limit(wanted)).unwrap();
            server.signal("HUP");
            server.wait_for_log("SIGHUP: reading rules, certificates and keys again");
            let line = server.wait_for_log("reload: rules read again");
            // The first poll of a new server may read the change before the first signal does.
            assert!(wanted == 6 || line.contains("changed=true"), "{line}");
            assert_eq!(enforced_limit(&server), Some(wanted));
        }
        done.store(true, Ordering::Relaxed);
        checkers.into_iter().map(|thread| thread.join().unwrap()).sum()
    });
    assert!(answered > 0);
    assert_eq!(rules_status(&server)["version"], 5);
}

#[test]
fn sighup_with_an_error_in_the_rules_leaves_the_old_ones_active_and_logs_it() {
    let folder = Folder::new();
    let (server, path) = server_with_unwatched_rules(&folder);
    std::fs::write(&path, "rules: [{name: api, per: [user], limt: 9/s}]\n").unwrap();
    // A repeated error is logged again, since the operator requested each reload.
    for _ in 0..2 {
        server.signal("HUP");
        let line = server.wait_for_log("reload: rules not changed, the active rules stay");
        assert!(line.contains("limt"), "{line}");
        assert_eq!(
            (enforced_limit(&server), &rules_status(&server)["behind"]),
            (Some(5), &Value::Bool(true))
        );
    }
    std::fs::write(&path, rules_with_limit(5)).unwrap();
    server.signal("HUP");
    let line = server.wait_for_log("reload: rules read again");
    assert!(line.contains("changed=false"), "{line}");
    assert_eq!(rules_status(&server)["behind"], false);
}

#[test]
fn repeated_sighups_never_end_the_server_and_sigterm_still_drains() {
    let folder = Folder::new();
    let (mut server, path) = server_with_unwatched_rules(&folder);
    for round in 0..50 {
        std::fs::write(&path, rules_with_limit(6 + round)).unwrap();
        server.signal("HUP");
    }
    wait_for("the last rules are active", || (enforced_limit(&server) == Some(55)).then_some(()));
    let mut idle = server.connect();
    server.signal("TERM");
    server.signal("HUP");
    server.wait_for_log("stop signal");
    server.signal("HUP");
    assert_eq!(idle.read_to_end(), "");
    assert_eq!(server.wait().code(), Some(0));
}

#[test]
fn sighup_serves_a_replaced_certificate_at_once() {
    if lacking(&[Tool::Openssl]) {
        return;
    }
    let (folder, new_folder) = (Folder::new(), Folder::new());
    let old = Certificates::create(Path::new(folder.path()));
    let new = Certificates::create(Path::new(new_folder.path()));
    let config = format!(
        "listen: {{http: '127.0.0.1:0'}}\ntls: {{certificate: {}, key: {}, listeners: [http]}}\n",
        old.certificate.display(),
        old.key.display()
    );
    let server = Server::with_config(&config);
    let url = format!("https://{}/healthz", server.listener("http"));
    let is_trusted_with = |ca: &Path| {
        let mut command = Command::new("curl");
        command
            .args(["--silent", "--show-error", "--max-time", "30", "--cacert"])
            .arg(ca)
            .arg(&url);
        command.output().unwrap().status.success()
    };
    let old_ca = folder.file("old-ca.pem", &std::fs::read_to_string(&old.ca).unwrap());
    assert!(is_trusted_with(Path::new(&old_ca)) && !is_trusted_with(&new.ca));
    std::fs::copy(&new.certificate, &old.certificate).unwrap();
    std::fs::copy(&new.key, &old.key).unwrap();
    server.signal("HUP");
    server.wait_for_log("SIGHUP: reading rules, certificates and keys again");
    // A periodic check may have loaded the certificate before the signal; then the reload finds it unchanged.
    wait_for("the certificate was read again", || {
        let line = server.wait_for_log("certificate");
        (line.contains("certificate reloaded") || line.contains("reload: certificate unchanged"))
            .then_some(())
    });
    assert!(is_trusted_with(&new.ca) && !is_trusted_with(Path::new(&old_ca)));
    std::fs::write(&old.certificate, "no certificate").unwrap();
    for _ in 0..2 {
        server.signal("HUP");
        server.wait_for_log("SIGHUP: reading rules, certificates and keys again");
        server.wait_for_log("cannot reload certificate, the old one stays active");
    }
    assert!(is_trusted_with(&new.ca));
}

#[test]
fn sighup_reloads_the_keys_for_tokens() {
    let folder = Folder::new();
    let path = folder.file("secret", "a secret that has thirty-two bytes\n");
    let config = folder.file(
        "tidegate.yaml",
        "listen: {http: 127.0.0.1:0}\nidentity: {jwt: {secret_file: secret}}\n\
         rules: {inline: [{name: api, per: [user], limit: 1/s}]}\n",
    );
    let server = Server::with_arguments(&["--config", &config]);
    server.signal("HUP");
    let line = server.wait_for_log("keys for tokens read again");
    assert!(line.contains(&path), "{line}");
    std::fs::write(&path, "short").unwrap();
    server.signal("HUP");
    server.wait_for_log("keys for tokens not read, the old keys stay");
    assert_eq!(server.request("GET", "/readyz", "").status, 200);
}

#[test]
fn sighup_fetches_rules_from_redis_without_a_notification() {
    if lacking(&[Tool::Server(Flavour::Redis)]) {
        return;
    }
    let redis = Redis::start();
    let _: String = redis.query(&["ACL", "SETUSER", "default", "-subscribe"]);
    let folders = [Folder::new(), Folder::new()];
    let nodes = folders.each_ref().map(|folder| {
        let config = folder.file(
            "tidegate.yaml",
            &format!(
                "rules: {{redis: '{}', poll: 1h}}\nlisten: {{http: 127.0.0.1:0}}\n",
                redis.url()
            ),
        );
        Server::with_arguments(&["--config", &config])
    });
    for version in 1..4 {
        let pushed = nodes[0].request_admin_with(
            "PUT",
            "/v1/rules",
            &[("if-match", "*")],
            &rules_with_limit(version),
        );
        assert_eq!(pushed.status, 200, "{pushed:?}");
        nodes[1].signal("HUP");
        nodes[1].wait_for_log("reload: rules read again");
        assert_eq!(enforced_limit(&nodes[1]), Some(version));
    }
}

#[test]
fn sighup_before_the_server_is_ready_does_not_end_it() {
    if lacking(&[Tool::Server(Flavour::Redis)]) {
        return;
    }
    let redis = Redis::start();
    let proxy = FaultProxy::to(redis.address());
    // The start waits for a reply that the proxy withholds.
    proxy.stall();
    let folder = Folder::new();
    let config = folder.file(
        "tidegate.yaml",
        &format!(
            "store: {{redis: {{url: '{}'}}}}\nrules: {{redis: true}}\n\
             listen: {{http: 127.0.0.1:0, grpc: off, resp: off, admin: 127.0.0.1:0}}\n",
            proxy.url()
        ),
    );
    let mut command = tidegate();
    command.args(["serve", "--config", &config]).env("STATE_DIRECTORY", folder.path());
    let server = Process::spawn(command);
    wait_for("the signal is handled", || {
        let text = std::fs::read_to_string(format!("/proc/{}/status", server.id())).unwrap();
        let mask = text.lines().find_map(|line| line.strip_prefix("SigCgt:"))?.trim().to_owned();
        (u64::from_str_radix(&mask, 16).unwrap() & 1 == 1).then_some(())
    });
    server.signal("HUP");
    server.stderr().find("SIGHUP: reading rules, certificates and keys again");
    server.stdout().find("admin ");
    // The reload requested before the start is reported once the server watches the source of the rules.
    server.stderr().find("reload: rules not changed");
    server.signal("HUP");
    server.stderr().find("SIGHUP: reading rules, certificates and keys again");
    assert_eq!(server.exited(), None);
}
