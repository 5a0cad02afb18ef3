//! Runs the commands in the guide, and compares their output with the page.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use tidegate_testkit::{Flavour, Port, Tool, lacking};

use crate::kit::Folder;

const GUIDE_PAGE: &str = include_str!("../../../../docs/guide/README.md");
const GATEWAY_PAGE: &str = include_str!("../../../../docs/guide/gateway.md");

/// Ports on the pages and in their files. A test replaces each by a free port.
const PORTS: [&str; 14] = [
    "8080", "8081", "6380", "9090", "8090", "3000", "8000", "10000", "9901", "7001", "7002",
    "7003", "7004", "7005",
];
const LAST_PORT: &str = "7006";

/// Timeouts of proxies for Tidegate, and their replacements in a test.
const TIMEOUTS: [(&str, &str); 3] =
    [("timeout: 0.1s", "timeout: 30s"), (" 100ms;", " 30s;"), (" 200ms;", " 30s;")];

/// Stops the background processes of a section when its script ends.
const PROLOGUE: &str =
    "set -eo pipefail\ntrap 'kill $(jobs -p) 2>/dev/null; wait' EXIT\ntrap exit TERM\n";

pub(crate) fn repository_root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// Returns the commands under a heading of a page, and their documented output.
fn section(page: &str, heading: &str) -> (String, String) {
    let (_, rest) = page.split_once(&format!("\n## {heading}\n")).unwrap();
    let section = rest.split("\n## ").next().unwrap();
    let block = |fence: &str| {
        let (_, rest) = section.split_once(&format!("\n```{fence}\n")).unwrap();
        rest.split("\n```").next().unwrap().to_owned()
    };
    (block("sh"), block("text") + "\n")
}

/// Replacements for the documented ports, in commands and files.
struct PortMap(BTreeMap<&'static str, Port>);

impl PortMap {
    fn allocate() -> Self {
        Self(PORTS.into_iter().chain([LAST_PORT]).map(|port| (port, Port::free())).collect())
    }

    fn number(&self, port: &str) -> u16 {
        self.0[port].number()
    }

    /// Replaces the documented ports in a text. A port inside of a longer number is not replaced.
    fn replace_in(&self, text: &str) -> String {
        let mut replaced = String::with_capacity(text.len());
        let mut digits = String::new();
        let flush = |digits: &mut String, replaced: &mut String| {
            match self.0.get(digits.as_str()) {
                Some(port) => write!(replaced, "{}", port.number()).unwrap(),
                None => replaced.push_str(digits),
            }
            digits.clear();
        };
        for letter in text.chars() {
            if letter.is_ascii_digit() {
                digits.push(letter);
            } else {
                flush(&mut digits, &mut replaced);
                replaced.push(letter);
            }
        }
        flush(&mut digits, &mut replaced);
        replaced
    }
}

/// Copies a folder of the repository, with replaced ports and longer timeouts.
fn copy_folder(name: &str, folder: &Path, ports: &PortMap) {
    let target = folder.join(name);
    std::fs::create_dir_all(&target).unwrap();
    for file in std::fs::read_dir(repository_root().join(name)).unwrap() {
        let file = file.unwrap().path();
        if file.is_file() {
            let mut text = ports.replace_in(&std::fs::read_to_string(&file).unwrap());
            // The documented timeouts are too short for a busy machine.
            for (timeout, longer) in TIMEOUTS {
                text = text.replace(timeout, longer);
            }
            std::fs::write(target.join(file.file_name().unwrap()), text).unwrap();
        }
    }
}

/// Installs a `tidegate` script that uses the replaced ports by default.
fn install(folder: &Path, ports: &PortMap) {
    let [http, grpc, resp, admin] = ["8080", "8081", "6380", "9090"].map(|port| ports.number(port));
    let script = format!(
        r#"#!/bin/bash
listeners=(--http 127.0.0.1:{http} --grpc 127.0.0.1:{grpc} --resp 127.0.0.1:{resp} --admin 127.0.0.1:{admin})
case $1 in
  serve) for ((i = 0; i < 8; i += 2)); do [[ " $* " == *" ${{listeners[i]}} "* ]] || set -- "$@" "${{listeners[@]:i:2}}"; done ;;
  check) set -- "$@" --server http://127.0.0.1:{http} ;;
  block) set -- block --server http://127.0.0.1:{admin} "${{@:2}}" ;;
esac
exec {binary} "$@"
"#,
        binary = env!("CARGO_BIN_EXE_tidegate")
    );
    let path = folder.join("bin/tidegate");
    std::fs::create_dir_all(folder.join("bin")).unwrap();
    std::fs::write(&path, script).unwrap();
    std::fs::set_permissions(&path, PermissionsExt::from_mode(0o755)).unwrap();
}

/// Runs the commands under a heading of a page, and compares their output with the page.
pub(crate) fn assert_section_output(page: &str, heading: &str) {
    let (folder, ports) = (Folder::new(), PortMap::allocate());
    let home = Path::new(folder.path());
    for name in ["deploy/envoy", "deploy/nginx", "docs/guide/recipes"] {
        copy_folder(name, home, &ports);
    }
    install(home, &ports);
    let (commands, expected) = section(page, heading);
    let script = PROLOGUE.to_owned() + &ports.replace_in(&commands);
    let fetched = std::env::home_dir().unwrap().join(".cache/tidegate-tools/bin");
    let path = std::env::var_os("PATH").unwrap();
    let path = [home.join("bin"), fetched, "/usr/sbin".into()]
        .into_iter()
        .chain(std::env::split_paths(&path));
    let mut command = Command::new("setpriv");
    command.args(["--pdeathsig", "TERM", "bash", "-c", &script]).current_dir(home);
    command.env("PATH", std::env::join_paths(path).unwrap()).stdin(Stdio::null());
    let output = command.output().unwrap();
    let to_text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let logs = || {
        let mut logs = to_text(&output.stderr);
        for file in std::fs::read_dir(home).unwrap().map(|file| file.unwrap().path()) {
            if file.extension().is_some_and(|kind| kind == "log") {
                let text = std::fs::read_to_string(&file).unwrap();
                write!(logs, "{}:\n{text}\n", file.display()).unwrap();
            }
        }
        logs
    };
    assert_eq!(to_text(&output.stdout), ports.replace_in(&expected), "{heading}: {}", logs());
    assert!(output.status.success(), "{heading}: {}", logs());
}

#[test]
fn envoy_section_prints_the_documented_output() {
    if !lacking(&[Tool::Envoy]) {
        assert_section_output(GUIDE_PAGE, "Envoy");
    }
}

#[test]
fn nginx_section_prints_the_documented_output() {
    if !lacking(&[Tool::Nginx]) {
        assert_section_output(GUIDE_PAGE, "NGINX");
    }
}

#[test]
fn redis_cluster_section_prints_the_documented_output() {
    if !lacking(&[Tool::Server(Flavour::Redis)]) {
        assert_section_output(GUIDE_PAGE, "A Redis Cluster");
    }
}

#[test]
fn server_section_prints_the_documented_output() {
    assert_section_output(GUIDE_PAGE, "A server to operate");
}

#[test]
fn gateway_section_prints_the_documented_output() {
    assert_section_output(GATEWAY_PAGE, "With rules of your own");
}

#[test]
fn guide_links_point_to_existing_files() {
    let folders = ["docs/guide", "docs/reference"].map(|folder| repository_root().join(folder));
    let files = folders.iter().flat_map(|folder| std::fs::read_dir(folder).unwrap());
    let files = files.map(|file| file.unwrap().path());
    for file in files.filter(|file| file.extension().is_some_and(|kind| kind == "md")) {
        let text = std::fs::read_to_string(&file).unwrap();
        let home = file.parent().unwrap();
        for link in text.split("](").skip(1).map(|rest| rest.split(')').next().unwrap()) {
            let target = link.split('#').next().unwrap();
            if !target.is_empty() && !link.contains("://") {
                assert!(home.join(target).exists(), "{}: {link}", file.display());
            }
        }
    }
}
