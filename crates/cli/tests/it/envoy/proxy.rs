//! An Envoy with the configuration of `deploy/envoy`, and an application behind it.

use std::fmt::Write;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::Path;

use tidegate_testkit::{Port, Process, Tool, wait_for};

use super::application::EchoApplication;
use crate::kit::{Connection, Folder, Response};

/// Addresses of two clients. All of 127.0.0.0/8 is local.
pub(crate) const FIRST_CLIENT: IpAddr = IpAddr::V4(Ipv4Addr::new(127, 0, 0, 1));
pub(crate) const SECOND_CLIENT: IpAddr = IpAddr::V4(Ipv4Addr::new(127, 0, 0, 2));

/// The timeout of Envoy for one call of Tidegate.
pub(crate) enum ServiceTimeout {
    /// 100 ms, as in `deploy/envoy`.
    AsDeployed,
    /// 30 s: on a busy machine Envoy would otherwise fail open.
    Long,
}

/// A running Envoy with an application behind it.
pub(crate) struct EnvoyProxy {
    // Fields are dropped in this order: the connections of the application end with Envoy.
    envoy: Process,
    _application: EchoApplication,
    listener: Port,
    admin: Port,
    _folder: Folder,
}

impl EnvoyProxy {
    /// Starts an Envoy that calls Tidegate on this port of its gRPC listener.
    pub(crate) fn start(tidegate: u16, timeout: ServiceTimeout) -> Self {
        Self::start_edited(tidegate, timeout, str::to_owned)
    }

    /// Starts an Envoy as [`start`](Self::start) does, after another change of its configuration.
    pub(crate) fn start_edited(
        tidegate: u16,
        timeout: ServiceTimeout,
        edit: impl FnOnce(&str) -> String,
    ) -> Self {
        let application = EchoApplication::start();
        let (listener, admin) = (Port::free(), Port::free());
        let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../deploy/envoy/envoy.yaml");
        let mut text = std::fs::read_to_string(file).unwrap();
        let mut set = |key: &str, from: &str, to: &str| {
            let from = format!("{key}: {from}");
            assert_eq!(text.matches(&from).count(), 1, "{from}");
            text = text.replace(&from, &format!("{key}: {to}"));
        };
        set("port_value", "10000", &listener.number().to_string());
        set("port_value", "9901", &admin.number().to_string());
        set("port_value", "3000", &application.address.port().to_string());
        set("port_value", "8081", &tidegate.to_string());
        if let ServiceTimeout::Long = timeout {
            set("timeout", "0.1s", "30s");
        }
        let folder = Folder::new();
        let config = folder.file("envoy.yaml", &edit(&text));
        let mut command = Process::command(Tool::Envoy.path().unwrap());
        command.args(["--config-path", &config, "--disable-hot-restart", "--concurrency", "1"]);
        command.args(["--log-level", "warning"]);
        let envoy = Process::spawn(command);
        let started = Self { envoy, _application: application, listener, admin, _folder: folder };
        wait_for("envoy is ready", || started.is_ready().then_some(()));
        started
    }

    fn is_ready(&self) -> bool {
        assert!(self.envoy.exited().is_none(), "envoy ended:\n{}", self.envoy.log_tail());
        let admin = SocketAddr::from((Ipv4Addr::LOCALHOST, self.admin.number()));
        let Ok(mut connection) = Connection::connect_from(FIRST_CLIENT, admin) else {
            return false;
        };
        connection.send("GET", "/ready", "");
        connection.receive(false).status == 200
    }

    /// Sends one request of a client on a new connection.
    pub(crate) fn send(
        &self,
        client: IpAddr,
        method: &str,
        path: &str,
        headers: &[(&str, &str)],
    ) -> Response {
        let mut head = format!("{method} {path} HTTP/1.1\r\nhost: edge\r\ncontent-length: 0\r\n");
        for (name, value) in headers {
            write!(head, "{name}: {value}\r\n").unwrap();
        }
        self.send_head(client, format!("{head}\r\n").as_bytes())
    }

    /// Sends one request with an API key of any bytes, on a new connection.
    pub(crate) fn send_key(&self, client: IpAddr, path: &str, key: &[u8]) -> Response {
        let line = format!("GET {path} HTTP/1.1\r\nhost: edge\r\nx-api-key: ");
        self.send_head(client, &[line.as_bytes(), key, b"\r\n\r\n"].concat())
    }

    fn send_head(&self, client: IpAddr, head: &[u8]) -> Response {
        let listener = SocketAddr::from((Ipv4Addr::LOCALHOST, self.listener.number()));
        let mut connection = Connection::connect_from(client, listener).unwrap();
        connection.write(head);
        connection.receive(false)
    }

    /// Returns the number of requests that Envoy forwarded because Tidegate did not response.
    pub(crate) fn failed_open(&self) -> u64 {
        let admin = SocketAddr::from((Ipv4Addr::LOCALHOST, self.admin.number()));
        let mut connection = Connection::connect_from(FIRST_CLIENT, admin).unwrap();
        let path = "/stats?filter=ratelimit.failure_mode_allowed";
        let request = format!("GET {path} HTTP/1.1\r\nhost: admin\r\nconnection: close\r\n\r\n");
        connection.write(request.as_bytes());
        let response = connection.read_to_end();
        let counter = response.lines().find_map(|line| line.split_once("failure_mode_allowed: "));
        counter.map_or(0, |(_, count)| count.trim().parse().unwrap())
    }
}
