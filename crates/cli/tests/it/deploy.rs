//! What `deploy/` has for those who run the server: it has to be what this version takes.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::kit::{Folder, run, shown};

fn deploy(file: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../deploy").join(file)
}

fn read(file: &str) -> String {
    std::fs::read_to_string(deploy(file)).unwrap()
}

/// Says what is wrong with a file, if anything is.
fn assert_valid(path: &str) {
    let (code, _, stderr) = run(&["validate", path]);
    assert_eq!(code, 0, "{stderr}");
}

#[test]
fn the_files_of_the_container_are_valid() {
    for file in ["docker/tidegate.yaml", "docker/rules.yaml"] {
        assert_valid(deploy(file).to_str().unwrap());
    }
    let compose: serde_json::Value = serde_saphyr::from_str(&read("docker/compose.yaml")).unwrap();
    for node in ["tidegate-1", "tidegate-2"] {
        for volume in compose["services"][node]["volumes"].as_array().unwrap() {
            let file = volume.as_str().unwrap().split(':').next().unwrap();
            assert!(deploy("docker").join(file).is_file(), "{file}");
        }
    }
    // What the image starts is what the command line takes.
    let dockerfile = read("docker/Dockerfile");
    assert!(dockerfile.contains(r#"CMD ["serve", "--config", "/etc/tidegate/tidegate.yaml"]"#));
}

#[test]
fn the_manifests_carry_a_valid_configuration_and_ask_for_paths_that_are_there() {
    let text = read("kubernetes/tidegate.yaml");
    let documents: Vec<serde_json::Value> =
        text.split("\n---\n").map(|document| serde_saphyr::from_str(document).unwrap()).collect();
    let of = |kind: &str| documents.iter().find(|document| document["kind"] == kind).unwrap();
    let folder = Folder::new();
    let data = of("ConfigMap")["data"].as_object().unwrap();
    let files: Vec<String> =
        data.iter().map(|(name, text)| folder.file(name, text.as_str().unwrap())).collect();
    files.iter().for_each(|file| assert_valid(file));

    let container = &of("Deployment")["spec"]["template"]["spec"]["containers"][0];
    assert_eq!(container["args"][0], "serve");
    let ports = |list: &serde_json::Value, key: &str| -> Vec<u64> {
        list.as_array().unwrap().iter().map(|port| port[key].as_u64().unwrap()).collect()
    };
    let open = ports(&container["ports"], "containerPort");
    for port in &open {
        assert!(data["tidegate.yaml"].as_str().unwrap().contains(&format!(":{port}\n")), "{port}");
    }
    let offered = ports(&of("Service")["spec"]["ports"], "port");
    assert!(offered.iter().all(|port| open.contains(port)), "{offered:?}");
    assert!(!offered.contains(&9090), "the admin listener is not for callers");
    for probe in ["readinessProbe", "livenessProbe"] {
        let path = container[probe]["httpGet"]["path"].as_str().unwrap();
        assert!(["/readyz", "/healthz"].contains(&path), "{path}");
    }
}

#[test]
fn the_unit_is_one_that_systemd_takes() {
    let unit = read("systemd/tidegate.service");
    assert!(unit.contains("ExecStart=/usr/local/bin/tidegate serve --config "), "{unit}");
    assert!(unit.contains("ExecReload=/bin/kill -HUP $MAINPID"), "{unit}");
    // Containers have no systemd; there the line above has to do.
    if Command::new("systemd-analyze").arg("--version").output().is_err() {
        return;
    }
    let folder = Folder::new();
    let here = unit.replace("/usr/local/bin/tidegate", env!("CARGO_BIN_EXE_tidegate"));
    let file = folder.file("tidegate.service", &here);
    let verified = Command::new("systemd-analyze").args(["verify", "--man=no", &file]).output();
    let (code, _, stderr) = shown(verified.unwrap());
    assert_eq!((code, &*stderr), (0, ""));
}
