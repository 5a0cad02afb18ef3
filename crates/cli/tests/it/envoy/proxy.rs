//! An Envoy with the configuration of `deploy/envoy`, and an application behind it.

use std::fmt::Write;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::Path;

use tidegate_testkit::{Port, Process, Tool, wait_for};

use super::application::Application;
use crate::kit::{Connection, Folder, Response};

/// Two clients: the whole of 127.0.0.0/8 is this machine.
pub(crate) const HERE: IpAddr = IpAddr::V4(Ipv4Addr::new(127, 0, 0, 1));
pub(crate) const THERE: IpAddr = IpAddr::V4(Ipv4Addr::new(127, 0, 0, 2));

/// How long Envoy waits for Tidegate.
pub(crate) enum Patience {
    AsDeployed,
    /// On a busy machine an answer may be late, and Envoy would let the request pass.
    Long,
}

/// A running Envoy.
pub(crate) struct Edge {
    // Dropped in this order: the application's connections end with Envoy.
    envoy: Process,
    _application: Application,
    edge: Port,
    admin: Port,
    _folder: Folder,
}

impl Edge {
    /// Starts an Envoy that asks the Tidegate whose gRPC listener is on this port.
    pub(crate) fn start(tidegate: u16, patience: Patience) -> Self {
        let application = Application::start();
        let (edge, admin) = (Port::free(), Port::free());
        let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../deploy/envoy/envoy.yaml");
        let mut text = std::fs::read_to_string(file).unwrap();
        let mut set = |key: &str, from: &str, to: &str| {
            let from = format!("{key}: {from}");
            assert_eq!(text.matches(&from).count(), 1, "{from}");
            text = text.replace(&from, &format!("{key}: {to}"));
        };
        set("port_value", "10000", &edge.number().to_string());
        set("port_value", "9901", &admin.number().to_string());
        set("port_value", "3000", &application.address.port().to_string());
        set("port_value", "8081", &tidegate.to_string());
        if let Patience::Long = patience {
            set("timeout", "0.1s", "30s");
        }
        let folder = Folder::new();
        let config = folder.file("envoy.yaml", &text);
        let mut command = Process::command(Tool::Envoy.path().unwrap());
        command.args(["--config-path", &config, "--disable-hot-restart", "--concurrency", "1"]);
        command.args(["--log-level", "warning"]);
        let envoy = Process::spawn(command);
        let started = Self { envoy, _application: application, edge, admin, _folder: folder };
        wait_for("envoy is ready", || started.is_ready().then_some(()));
        started
    }

    fn is_ready(&self) -> bool {
        assert!(self.envoy.exited().is_none(), "envoy ended:\n{}", self.envoy.log_tail());
        let admin = SocketAddr::from((Ipv4Addr::LOCALHOST, self.admin.number()));
        let Ok(mut connection) = Connection::from(HERE, admin) else { return false };
        connection.send("GET", "/ready", "");
        connection.receive(false).status == 200
    }

    /// One request of a client, on a connection of its own.
    pub(crate) fn ask(
        &self,
        client: IpAddr,
        method: &str,
        path: &str,
        headers: &[(&str, &str)],
    ) -> Response {
        let edge = SocketAddr::from((Ipv4Addr::LOCALHOST, self.edge.number()));
        let mut connection = Connection::from(client, edge).unwrap();
        let mut head = format!("{method} {path} HTTP/1.1\r\nhost: edge\r\ncontent-length: 0\r\n");
        for (name, value) in headers {
            write!(head, "{name}: {value}\r\n").unwrap();
        }
        connection.write(format!("{head}\r\n").as_bytes());
        connection.receive(false)
    }

    /// How many requests Envoy let pass because it had no answer.
    pub(crate) fn passed_unasked(&self) -> u64 {
        let admin = SocketAddr::from((Ipv4Addr::LOCALHOST, self.admin.number()));
        let mut connection = Connection::from(HERE, admin).unwrap();
        let path = "/stats?filter=ratelimit.failure_mode_allowed";
        let request = format!("GET {path} HTTP/1.1\r\nhost: admin\r\nconnection: close\r\n\r\n");
        connection.write(request.as_bytes());
        let answer = connection.rest();
        let counted = answer.lines().find_map(|line| line.split_once("failure_mode_allowed: "));
        counted.map_or(0, |(_, count)| count.trim().parse().unwrap())
    }
}
