//! A proxy that runs as its file in `deploy/` says, but for the ports and how patient it is.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;

use tidegate_testkit::{Port, Process, Tool};

use crate::kit::Folder;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Nginx,
    Caddy,
    Traefik,
}

impl Kind {
    pub(crate) fn tool(self) -> Tool {
        match self {
            Self::Nginx => Tool::Nginx,
            Self::Caddy => Tool::Caddy,
            Self::Traefik => Tool::Traefik,
        }
    }

    /// A file of its folder in `deploy/`.
    pub(crate) fn file(self, name: &str) -> PathBuf {
        let folder = match self {
            Self::Nginx => "nginx",
            Self::Caddy => "caddy",
            Self::Traefik => "traefik",
        };
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../../deploy").join(folder).join(name)
    }
}

/// How long a proxy waits for Tidegate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Patience {
    /// As in `deploy/`.
    Short,
    /// Until a busy machine has found the time.
    Long,
}

impl Patience {
    fn shown(self) -> &'static str {
        match self {
            Self::Short => "200ms",
            Self::Long => "60s",
        }
    }
}

pub(crate) struct Proxy {
    port: Port,
    _process: Process,
    _others: Vec<Port>,
    _folder: Folder,
}

impl Proxy {
    /// Starts one. It may take a moment before it answers.
    pub(crate) fn start(
        kind: Kind,
        patience: Patience,
        tidegate: SocketAddr,
        app: SocketAddr,
    ) -> Self {
        let folder = Folder::new();
        let port = Port::free();
        let others = [Port::free(), Port::free()];
        let at = |port: &Port| format!("127.0.0.1:{}", port.number());
        let places = [
            ("127.0.0.1:8000", at(&port)),
            ("127.0.0.1:8001", at(&others[0])),
            ("127.0.0.1:8002", at(&others[1])),
            ("127.0.0.1:8080", tidegate.to_string()),
            ("127.0.0.1:3000", app.to_string()),
            ("200ms", patience.shown().to_owned()),
        ];
        let mut command = Process::command(kind.tool().path().unwrap());
        command.current_dir(folder.path());
        match kind {
            Kind::Nginx => {
                let file = moved(kind, "nginx.conf", &folder, &places);
                // One process: the children of a master that is killed go on without it.
                command.args(["-p", folder.path(), "-c", &file, "-g", "master_process off;"]);
            }
            Kind::Caddy => {
                let file = kind.file("Caddyfile");
                command.args(["run", "--config", file.to_str().unwrap()]);
                let places = [
                    ("PROXY_PORT", port.number().to_string()),
                    ("TIDEGATE_ADDRESS", tidegate.to_string()),
                    ("APP_ADDRESS", app.to_string()),
                    ("TIDEGATE_TIMEOUT", patience.shown().to_owned()),
                    ("HOME", folder.path().to_owned()),
                ];
                command.envs(places);
                forget(&mut command, &["XDG_DATA_HOME", "XDG_CONFIG_HOME"]);
            }
            Kind::Traefik => {
                moved(kind, "dynamic.yaml", &folder, &places);
                let file = moved(kind, "traefik.yaml", &folder, &places);
                command.arg(format!("--configFile={file}"));
            }
        }
        let process = Process::spawn(command);
        Self { port, _process: process, _others: others.into(), _folder: folder }
    }

    pub(crate) fn address(&self) -> SocketAddr {
        SocketAddr::from(([127, 0, 0, 1], self.port.number()))
    }
}

/// A copy of a file in `deploy/` with other addresses and times.
fn moved(kind: Kind, name: &str, folder: &Folder, places: &[(&str, String)]) -> String {
    let text = std::fs::read_to_string(kind.file(name)).unwrap();
    let text = places.iter().fold(text, |text, (from, to)| text.replace(from, to));
    folder.file(name, &text)
}

fn forget(command: &mut Command, names: &[&str]) {
    for name in names {
        command.env_remove(name);
    }
}
