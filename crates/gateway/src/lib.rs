//! The gateway: a reverse proxy that checks the rules before it forwards a request.
//!
//! For each request the gateway finds the route, reads the client's identity and checks the rules. An admitted request
//! waits in the queue of its rule, if there is one, takes a place among the in-flight requests of its upstream, and is
//! sent to one server. Slots, places and connections are released when the response body ends, for whatever reason. If
//! the client disconnects before the response, they are held until the upstream has responded or closed.

mod client_stream;
mod common_request;
mod common_requests;
mod config;
mod direct_conn;
mod exchange;
mod forward;
pub mod fuzzing;
mod gateway;
mod head;
mod health_check;
mod http1_encoder;
mod http2_streams;
mod local_response;
mod pace;
mod pool;
mod proxied_requests;
mod proxy;
mod request_body;
mod reserved_headers;
mod response_body;
mod response_reader;
mod route;
mod threads;
mod tunnel;
mod upstream;
mod upstream_set;
mod upstream_socket;
mod upstream_stream;

pub use self::config::{
    ForwardPath, GatewayConfig, HealthConfig, Priority, ProxyTimeouts, RouteConfig, ServerUrl,
    UpstreamConfig,
};
pub use self::threads::{GatewayContext, GatewayThreads, listen};
pub use self::upstream_set::UpstreamSet;
