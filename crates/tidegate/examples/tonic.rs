//! Five calls a minute for each API key, with tonic.
//!
//! `cargo run -p tidegate --example tonic`, then call `grpc.health.v1.Health/Check` six times.

use std::error::Error;

use tidegate::tower::RateLimitLayer;
use tidegate::{Limiter, Quota};
use tokio::net::TcpListener;
use tonic::transport::Server;
use tonic::transport::server::TcpIncoming;

/// Serves until the listener fails.
pub async fn serve(listener: TcpListener) -> Result<(), Box<dyn Error + Send + Sync>> {
    let limits = RateLimitLayer::per_key(Limiter::per_key(Quota::per_minute(5))?, |request| {
        Some(request.headers.get("x-api-key")?.to_str().ok()?.into())
    });

    let (_reporter, health) = tonic_health::server::health_reporter();
    let incoming = TcpIncoming::from(listener);
    Server::builder().layer(limits).add_service(health).serve_with_incoming(incoming).await?;
    Ok(())
}

#[allow(clippy::print_stdout, reason = "prints the address of the listener")]
#[tokio::main]
async fn main() -> Result<(), Box<dyn Error + Send + Sync>> {
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    println!("http://{}", listener.local_addr()?);
    serve(listener).await
}
