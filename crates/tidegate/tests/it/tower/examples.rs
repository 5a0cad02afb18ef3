//! The examples do what they say.

use std::net::SocketAddr;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tonic::Code;

use super::grpc::{call, client};

#[allow(dead_code, unreachable_pub, reason = "a program of its own, borrowed here")]
#[path = "../../../examples/axum.rs"]
mod axum_example;
#[allow(dead_code, unreachable_pub, reason = "a program of its own, borrowed here")]
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

/// More than the examples allow in one go, even if a slow machine lets a token or two come back.
const PLENTY: usize = 50;

#[tokio::test]
async fn axum_answers_up_to_the_limit_and_then_429() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(axum_example::serve(listener));

    let first = get(address, "/hello").await;
    assert!(first.starts_with("HTTP/1.1 200 OK\r\n"), "{first}");
    assert!(first.contains("\r\nx-ratelimit-limit: 5\r\n"), "{first}");
    for _ in 0..PLENTY {
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
async fn tonic_answers_up_to_the_limit_and_then_resource_exhausted() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(tonic_example::serve(listener));

    let mut health = client(address).await;
    call(&mut health, "alice").await.unwrap();
    for _ in 0..PLENTY {
        if let Err(status) = call(&mut health, "alice").await {
            assert_eq!(status.code(), Code::ResourceExhausted);
            call(&mut health, "bob").await.unwrap();
            return;
        }
    }
    panic!("never denied");
}
