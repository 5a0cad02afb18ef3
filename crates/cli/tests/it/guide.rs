//! The guide's first page and that of the gateway: commands on them are run, and print what the page says.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use tidegate_testkit::{Flavour, Port, Tool, lacking};

use crate::kit::Folder;

const PAGE: &str = include_str!("../../../../docs/guide/README.md");
const GATEWAY: &str = include_str!("../../../../docs/guide/gateway.md");

/// The ports on the page and in the files that it uses, each of which a test gives another number.
const PORTS: [&str; 14] = [
    "8080", "8081", "6380", "9090", "8090", "3000", "8000", "10000", "9901", "7001", "7002",
    "7003", "7004", "7005",
];
const LAST_PORT: &str = "7006";

/// How long proxies wait for Tidegate, and how long they do in a test.
const DEADLINES: [(&str, &str); 3] =
    [("timeout: 0.1s", "timeout: 30s"), (" 100ms;", " 30s;"), (" 200ms;", " 30s;")];

/// Ends what a part of the page left running, however it ends itself.
const PROLOGUE: &str =
    "set -eo pipefail\ntrap 'kill $(jobs -p) 2>/dev/null; wait' EXIT\ntrap exit TERM\n";

pub(crate) fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// The commands under a heading of a page, and what they print.
fn part(page: &str, heading: &str) -> (String, String) {
    let (_, rest) = page.split_once(&format!("\n## {heading}\n")).unwrap();
    let part = rest.split("\n## ").next().unwrap();
    let block = |fence: &str| {
        let (_, rest) = part.split_once(&format!("\n```{fence}\n")).unwrap();
        rest.split("\n```").next().unwrap().to_owned()
    };
    (block("sh"), block("text") + "\n")
}

/// Other numbers for the ports, in commands and files alike.
struct Ports(BTreeMap<&'static str, Port>);

impl Ports {
    fn free() -> Self {
        Self(PORTS.into_iter().chain([LAST_PORT]).map(|port| (port, Port::free())).collect())
    }

    fn number(&self, port: &str) -> u16 {
        self.0[port].number()
    }

    /// Puts them into a text: numbers that stand alone.
    fn placed_in(&self, text: &str) -> String {
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

/// Copies a folder of the repository with other ports and longer deadlines.
fn copy(name: &str, folder: &Path, ports: &Ports) {
    let target = folder.join(name);
    std::fs::create_dir_all(&target).unwrap();
    for file in std::fs::read_dir(root().join(name)).unwrap() {
        let file = file.unwrap().path();
        if file.is_file() {
            let mut text = ports.placed_in(&std::fs::read_to_string(&file).unwrap());
            // On a busy machine an answer may take longer than anybody should wait for one.
            for (deadline, longer) in DEADLINES {
                text = text.replace(deadline, longer);
            }
            std::fs::write(target.join(file.file_name().unwrap()), text).unwrap();
        }
    }
}

/// A `tidegate` whose listeners are elsewhere when nothing is said about them.
fn install(folder: &Path, ports: &Ports) {
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

/// Runs the commands under a heading of a page, and compares what they print.
pub(crate) fn assert_as_the_page_says(page: &str, heading: &str) {
    let (folder, ports) = (Folder::new(), Ports::free());
    let home = Path::new(folder.path());
    for name in ["deploy/envoy", "deploy/nginx", "docs/guide/recipes"] {
        copy(name, home, &ports);
    }
    install(home, &ports);
    let (commands, expected) = part(page, heading);
    let script = PROLOGUE.to_owned() + &ports.placed_in(&commands);
    let fetched = std::env::home_dir().unwrap().join(".cache/tidegate-tools/bin");
    let path = std::env::var_os("PATH").unwrap();
    let path = [home.join("bin"), fetched, "/usr/sbin".into()]
        .into_iter()
        .chain(std::env::split_paths(&path));
    let mut command = Command::new("setpriv");
    command.args(["--pdeathsig", "TERM", "bash", "-c", &script]).current_dir(home);
    command.env("PATH", std::env::join_paths(path).unwrap()).stdin(Stdio::null());
    let output = command.output().unwrap();
    let shown = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let logs = || {
        let mut logs = shown(&output.stderr);
        for file in std::fs::read_dir(home).unwrap().map(|file| file.unwrap().path()) {
            if file.extension().is_some_and(|kind| kind == "log") {
                let text = std::fs::read_to_string(&file).unwrap();
                write!(logs, "{}:\n{text}\n", file.display()).unwrap();
            }
        }
        logs
    };
    assert_eq!(shown(&output.stdout), ports.placed_in(&expected), "{heading}: {}", logs());
    assert!(output.status.success(), "{heading}: {}", logs());
}

#[test]
fn envoy() {
    if !lacking(&[Tool::Envoy]) {
        assert_as_the_page_says(PAGE, "Envoy");
    }
}

#[test]
fn nginx() {
    if !lacking(&[Tool::Nginx]) {
        assert_as_the_page_says(PAGE, "NGINX");
    }
}

#[test]
fn a_redis_cluster() {
    if !lacking(&[Tool::Server(Flavour::Redis)]) {
        assert_as_the_page_says(PAGE, "A Redis Cluster");
    }
}

#[test]
fn a_server_to_operate() {
    assert_as_the_page_says(PAGE, "A server to operate");
}

#[test]
fn a_gateway() {
    assert_as_the_page_says(GATEWAY, "With rules of your own");
}

#[test]
fn every_link_of_the_guide_leads_somewhere() {
    let folders = ["docs/guide", "docs/reference"].map(|folder| root().join(folder));
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
