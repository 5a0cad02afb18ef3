//! The files in `deploy/`: this version of the server accepts them.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::kit::{Folder, exit_code_and_output, run};

/// Returns the path of a file in `deploy/`.
fn deploy_path(file: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../deploy").join(file)
}

fn read_deploy_file(file: &str) -> String {
    std::fs::read_to_string(deploy_path(file)).unwrap()
}

/// Checks that `tidegate validate` accepts a file.
fn assert_valid(path: &str) {
    let (code, _, stderr) = run(&["validate", path]);
    assert_eq!(code, 0, "{stderr}");
}

#[test]
fn docker_files_are_valid() {
    for file in ["docker/tidegate.yaml", "docker/rules.yaml"] {
        assert_valid(deploy_path(file).to_str().unwrap());
    }
    let compose: serde_json::Value =
        serde_saphyr::from_str(&read_deploy_file("docker/compose.yaml")).unwrap();
    for node in ["tidegate-1", "tidegate-2"] {
        for volume in compose["services"][node]["volumes"].as_array().unwrap() {
            let file = volume.as_str().unwrap().split(':').next().unwrap();
            assert!(deploy_path("docker").join(file).is_file(), "{file}");
        }
    }
    // The image starts the server with arguments that this version accepts.
    let dockerfile = read_deploy_file("docker/Dockerfile");
    assert!(dockerfile.contains(r#"CMD ["serve", "--config", "/etc/tidegate/tidegate.yaml"]"#));
}

#[test]
fn kubernetes_manifests_have_valid_configuration_ports_and_probes() {
    let text = read_deploy_file("kubernetes/tidegate.yaml");
    let documents: Vec<serde_json::Value> =
        text.split("\n---\n").map(|document| serde_saphyr::from_str(document).unwrap()).collect();
    let manifest = |kind: &str| documents.iter().find(|document| document["kind"] == kind).unwrap();
    let folder = Folder::new();
    let data = manifest("ConfigMap")["data"].as_object().unwrap();
    let files: Vec<String> =
        data.iter().map(|(name, text)| folder.file(name, text.as_str().unwrap())).collect();
    files.iter().for_each(|file| assert_valid(file));

    let container = &manifest("Deployment")["spec"]["template"]["spec"]["containers"][0];
    assert_eq!(container["args"][0], "serve");
    let ports = |list: &serde_json::Value, key: &str| -> Vec<u64> {
        list.as_array().unwrap().iter().map(|port| port[key].as_u64().unwrap()).collect()
    };
    let open = ports(&container["ports"], "containerPort");
    for port in &open {
        assert!(data["tidegate.yaml"].as_str().unwrap().contains(&format!(":{port}\n")), "{port}");
    }
    let service_ports = ports(&manifest("Service")["spec"]["ports"], "port");
    assert!(service_ports.iter().all(|port| open.contains(port)), "{service_ports:?}");
    assert!(!service_ports.contains(&9090), "the admin listener is not for callers");
    for probe in ["readinessProbe", "livenessProbe"] {
        let path = container[probe]["httpGet"]["path"].as_str().unwrap();
        assert!(["/readyz", "/healthz"].contains(&path), "{path}");
    }
}

#[test]
fn systemd_unit_is_valid() {
    let unit = read_deploy_file("systemd/tidegate.service");
    assert!(unit.contains("ExecStart=/usr/local/bin/tidegate serve --config "), "{unit}");
    assert!(unit.contains("ExecReload=/bin/kill -HUP $MAINPID"), "{unit}");
    // Containers have no systemd, so only the lines above are checked there.
    if Command::new("systemd-analyze").arg("--version").output().is_err() {
        return;
    }
    let folder = Folder::new();
    let unit = unit.replace("/usr/local/bin/tidegate", env!("CARGO_BIN_EXE_tidegate"));
    let file = folder.file("tidegate.service", &unit);
    let verified = Command::new("systemd-analyze").args(["verify", "--man=no", &file]).output();
    let (code, _, stderr) = exit_code_and_output(verified.unwrap());
    assert_eq!((code, &*stderr), (0, ""));
}
