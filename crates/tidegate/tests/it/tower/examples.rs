//! The example programs enforce the limits that they declare.

use std::net::SocketAddr;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tonic::Code;

use super::grpc::{call, connect_client};

#[allow(dead_code, unreachable_pub, reason = "a separate program, included for its functions")]
#[path = "../../../examples/axum.rs"]
mod axum_example;
#[allow(dead_code, unreachable_pub, reason = "a separate program, included for its functions")]
#[path = "../../../examples/tonic.rs"]
mod tonic_example;

async fn get(address: SocketAddr, path: &str) -> String {
    let mut server = TcpStream::connect(address).await.unwrap();
    let request = format!("GET {path} HTTP/1.1\r\nhost: test\r\nconnection: close\r\n\r\n");
    server.write_all(request.as_bytes()).await.unwrap();
    let mut response = String::new();
    server.read_to_string(&mut response).await.unwrap();
    response
}

/// More requests than the examples admit, even if some tokens refill on a slow machine.
const REQUESTS_ABOVE_LIMIT: usize = 50;

#[tokio::test]
async fn axum_example_admits_up_to_the_limit_and_then_returns_429() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(axum_example::serve(listener));

    let first = get(address, "/hello").await;
    assert!(first.starts_with("HTTP/1.1 200 OK\r\n"), "{first}");
    assert!(first.contains("\r\nx-ratelimit-limit: 5\r\n"), "{first}");
    for _ in 0..REQUESTS_ABOVE_LIMIT {
        let response = get(address, "/hello").await;
        if response.starts_with("HTTP/1.1 429 Too Many Requests\r\n") {
            assert!(response.contains("\r\nretry-after: "), "{response}");
            assert!(response.contains(r#""violated-policies":["hello"]"#), "{response}");
            return;
        }
    }
    panic!("never denied");
}

#[tokio::test]
async fn tonic_example_admits_up_to_the_limit_and_then_returns_resource_exhausted() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(tonic_example::serve(listener));

    let mut health = connect_client(address).await;
    call(&mut health, "alice").await.unwrap();
    for _ in 0..REQUESTS_ABOVE_LIMIT {
        if let Err(status) = call(&mut health, "alice").await {
            assert_eq!(status.code(), Code::ResourceExhausted);
            call(&mut health, "bob").await.unwrap();
            return;
        }
    }
    panic!("never denied");
}
