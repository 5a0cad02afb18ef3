//! A proxy with its files from `deploy/`, except for addresses and timeouts.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;

use tidegate_testkit::{Port, Process, Tool};

use crate::kit::Folder;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ProxyKind {
    Nginx,
    Caddy,
    Traefik,
}

impl ProxyKind {
    pub(crate) fn tool(self) -> Tool {
        match self {
            Self::Nginx => Tool::Nginx,
            Self::Caddy => Tool::Caddy,
            Self::Traefik => Tool::Traefik,
        }
    }

    /// Returns the path of a file in the folder of this proxy in `deploy/`.
    pub(crate) fn file(self, name: &str) -> PathBuf {
        let folder = match self {
            Self::Nginx => "nginx",
            Self::Caddy => "caddy",
            Self::Traefik => "traefik",
        };
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../../deploy").join(folder).join(name)
    }
}

/// Timeout of a proxy for its call to Tidegate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AuthorizeTimeout {
    /// The timeout in `deploy/`.
    Deployed,
    /// Long enough for a busy machine.
    Long,
}

impl AuthorizeTimeout {
    fn text(self) -> &'static str {
        match self {
            Self::Deployed => "200ms",
            Self::Long => "60s",
        }
    }
}

pub(crate) struct Proxy {
    port: Port,
    _process: Process,
    _other_ports: Vec<Port>,
    _folder: Folder,
}

impl Proxy {
    /// Starts a proxy. It may not accept connections yet when this returns.
    pub(crate) fn start(
        kind: ProxyKind,
        timeout: AuthorizeTimeout,
        tidegate: SocketAddr,
        app: SocketAddr,
    ) -> Self {
        let folder = Folder::new();
        let port = Port::free();
        let other_ports = [Port::free(), Port::free()];
        let local = |port: &Port| format!("127.0.0.1:{}", port.number());
        let replacements = [
            ("127.0.0.1:8000", local(&port)),
            ("127.0.0.1:8001", local(&other_ports[0])),
            ("127.0.0.1:8002", local(&other_ports[1])),
            ("127.0.0.1:8080", tidegate.to_string()),
            ("127.0.0.1:3000", app.to_string()),
            ("200ms", timeout.text().to_owned()),
        ];
        let mut command = Process::command(kind.tool().path().unwrap());
        command.current_dir(folder.path());
        match kind {
            ProxyKind::Nginx => {
                let file = copy_with_replacements(kind, "nginx.conf", &folder, &replacements);
                // One process: workers of a killed master would keep running.
                command.args(["-p", folder.path(), "-c", &file, "-g", "master_process off;"]);
            }
            ProxyKind::Caddy => {
                let file = kind.file("Caddyfile");
                command.args(["run", "--config", file.to_str().unwrap()]);
                let variables = [
                    ("PROXY_PORT", port.number().to_string()),
                    ("TIDEGATE_ADDRESS", tidegate.to_string()),
                    ("APP_ADDRESS", app.to_string()),
                    ("TIDEGATE_TIMEOUT", timeout.text().to_owned()),
                    ("HOME", folder.path().to_owned()),
                ];
                command.envs(variables);
                remove_variables(&mut command, &["XDG_DATA_HOME", "XDG_CONFIG_HOME"]);
            }
            ProxyKind::Traefik => {
                copy_with_replacements(kind, "dynamic.yaml", &folder, &replacements);
                let file = copy_with_replacements(kind, "traefik.yaml", &folder, &replacements);
                command.arg(format!("--configFile={file}"));
            }
        }
        let process = Process::spawn(command);
        Self { port, _process: process, _other_ports: other_ports.into(), _folder: folder }
    }

    pub(crate) fn address(&self) -> SocketAddr {
        SocketAddr::from(([127, 0, 0, 1], self.port.number()))
    }
}

/// Copies a file from `deploy/` with other addresses and timeouts, and returns the path of the copy.
fn copy_with_replacements(
    kind: ProxyKind,
    name: &str,
    folder: &Folder,
    replacements: &[(&str, String)],
) -> String {
    let text = std::fs::read_to_string(kind.file(name)).unwrap();
    let text = replacements.iter().fold(text, |text, (from, to)| text.replace(from, to));
    folder.file(name, &text)
}

fn remove_variables(command: &mut Command, names: &[&str]) {
    for name in names {
        command.env_remove(name);
    }
}
