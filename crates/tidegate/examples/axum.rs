//! Five requests a minute for each address, with axum.
//!
//! `cargo run -p tidegate --example axum`, then ask six times with `curl -i`.

use std::error::Error;
use std::net::SocketAddr;

use axum::Router;
use axum::extract::ConnectInfo;
use axum::routing::get;
use tidegate::tower::RateLimitLayer;
use tidegate::{Limiter, RuleSet};
use tokio::net::TcpListener;

const RULES: &str = "
rules:
  - name: hello
    match: {path: /hello}
    per: [ip]
    limit: 5 per minute
";

/// Serves until the listener fails.
pub async fn serve(listener: TcpListener) -> Result<(), Box<dyn Error + Send + Sync>> {
    let limiter = Limiter::builder().rules(RuleSet::parse("hello.yaml", RULES)?).build();
    let limits = RateLimitLayer::new(limiter)
        .ip(|request| Some(request.extensions.get::<ConnectInfo<SocketAddr>>()?.ip()));

    let app = Router::new().route("/hello", get(|| async { "hello\n" })).layer(limits);
    axum::serve(listener, app.into_make_service_with_connect_info::<SocketAddr>()).await?;
    Ok(())
}

#[allow(clippy::print_stdout, reason = "prints the address of the listener")]
#[tokio::main]
async fn main() -> Result<(), Box<dyn Error + Send + Sync>> {
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    println!("http://{}/hello", listener.local_addr()?);
    serve(listener).await
}
