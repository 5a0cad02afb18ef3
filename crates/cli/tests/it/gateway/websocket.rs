//! A WebSocket of the Python package `websockets` through the gateway.

use std::path::Path;
use std::process::Command;

use tidegate_testkit::{Process, Tool, lacking};

use super::GatewayServer;

fn python(arguments: &[&str]) -> Command {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/it/gateway");
    let mut command = Process::command("python3");
    command.env("PYTHONPATH", Tool::Websockets.path().unwrap());
    command.env("PYTHONDONTWRITEBYTECODE", "1");
    command.arg(folder.join("websocket.py")).args(arguments);
    command
}

#[test]
fn websocket_messages_pass_through_the_gateway() {
    if lacking(&[Tool::Websockets]) {
        return;
    }
    let upstream = Process::spawn(python(&["serve"]));
    let port = upstream.stdout().next().unwrap();
    let gateway = GatewayServer::forward_to(&format!("http://127.0.0.1:{port}"));
    let client = Process::spawn(python(&["call", &gateway.address().port().to_string()]));
    assert!(client.wait().success(), "{}", client.log_tail());
    assert_eq!(client.stdout().next().as_deref(), Some("fine"));
}
