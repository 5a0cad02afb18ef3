//! The files in `deploy/`: this version of the server accepts them.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::kit::{Folder, Server, exit_code_and_output, run};

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

/// Returns the `tidegate.yaml` and the rules of each example for several machines, with the text that sets its environment.
fn fleet_examples() -> [(serde_json::Value, String, String); 2] {
    let manifests = read_deploy_file("kubernetes/tidegate.yaml");
    let documents = manifests.split("\n---\n").map(parse_yaml);
    let data =
        documents.map(|document| document["data"].clone()).find(serde_json::Value::is_object);
    let data = data.unwrap();
    let text = |name: &str| data[name].as_str().unwrap().to_owned();
    [
        (parse_yaml(&text("tidegate.yaml")), text("rules.yaml"), manifests),
        (
            parse_yaml(&read_deploy_file("docker/tidegate.yaml")),
            read_deploy_file("docker/rules.yaml"),
            read_deploy_file("docker/compose.yaml"),
        ),
    ]
}

fn parse_yaml(text: &str) -> serde_json::Value {
    serde_saphyr::from_str(text).unwrap()
}

#[test]
fn listeners_of_fleet_examples_have_their_secret_or_are_off() {
    for (config, _, environment) in fleet_examples() {
        let is_open = |listener: &str| !["off", "false"].contains(&&*listen(&config, listener));
        assert!(!is_open("resp") || environment.contains("TIDEGATE_RESP_PASSWORD:"), "{config}");
        assert!(!is_open("admin") || environment.contains("TIDEGATE_TOKEN"), "{config}");
    }
}

/// Returns the address of a listener as text. YAML parsers read `off` as a text or a boolean.
fn listen(config: &serde_json::Value, listener: &str) -> String {
    config["listen"][listener].to_string().trim_matches('"').to_owned()
}

#[test]
fn kubernetes_listeners_are_reachable_only_from_selected_pods() {
    let text = read_deploy_file("kubernetes/tidegate.yaml");
    let policy = text.split("\n---\n").map(parse_yaml);
    let policy = policy.into_iter().find(|document| document["kind"] == "NetworkPolicy").unwrap();
    for ingress in policy["spec"]["ingress"].as_array().unwrap() {
        assert!(ingress["from"].as_array().is_some_and(|from| !from.is_empty()), "{ingress}");
    }
}

#[test]
fn rules_of_fleet_examples_limit_a_client_that_sends_a_new_key_with_each_request() {
    for (_, rules, _) in fleet_examples() {
        let server = Server::with_rules(&rules);
        let denied = (0..5_000).any(|number| {
            let check =
                format!(r#"{{"attributes":{{"api_key":"{number}","ip":"192.0.2.7"}},"cost":20}}"#);
            server.check(&check).status == 429
        });
        assert!(denied, "{rules}");
    }
}

/// Returns the blocks of YAML in the README and in the guides, and the rules of recipes.
fn documented_yaml() -> Vec<(String, serde_json::Value)> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let folders = [root.join("docs/guide"), root.join("docs/guide/recipes")];
    let files = folders.iter().flat_map(|folder| std::fs::read_dir(folder).unwrap());
    let files = files.map(|file| file.unwrap().path()).chain([root.join("README.md")]);
    let mut blocks = Vec::new();
    for file in files {
        let (name, extension) = (file.display().to_string(), file.extension());
        let Ok(text) = std::fs::read_to_string(&file) else { continue };
        let texts: Vec<&str> = match extension.and_then(|extension| extension.to_str()) {
            Some("yaml") => vec![&text],
            Some("md") => {
                let blocks = text.split("\n```yaml\n").skip(1);
                blocks.map(|block| block.split("\n```").next().unwrap()).collect()
            }
            _ => continue,
        };
        blocks.extend(texts.into_iter().map(|text| (name.clone(), parse_yaml(text))));
    }
    assert!(blocks.len() > 20, "{}", blocks.len());
    blocks
}

/// Calls a function with each value of this key, at any depth.
fn for_each_value(yaml: &serde_json::Value, key: &str, visit: &mut dyn FnMut(&serde_json::Value)) {
    match yaml {
        serde_json::Value::Object(map) => map.iter().for_each(|(name, value)| {
            if name == key {
                visit(value);
            }
            for_each_value(value, key, visit);
        }),
        serde_json::Value::Array(list) => {
            list.iter().for_each(|value| for_each_value(value, key, visit));
        }
        _ => {}
    }
}

#[test]
fn no_documented_client_chooses_its_tier_or_its_identity() {
    for (file, yaml) in documented_yaml() {
        for_each_value(&yaml, "tiers", &mut |tiers| {
            let by = tiers["by"].as_str().unwrap();
            assert!(by.starts_with("claim."), "{file}: tier by {by}");
        });
        for_each_value(&yaml["identity"], "attributes", &mut |attributes| {
            for (name, source) in attributes.as_object().unwrap() {
                let source = source.as_str().unwrap();
                assert!(source.starts_with("header."), "{file}: {name} from {source}");
            }
        });
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
