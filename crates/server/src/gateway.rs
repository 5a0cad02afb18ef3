//! The gateway: a reverse proxy that decides before it forwards.

mod config;

pub(crate) use self::config::{
    GatewayConfig, HealthConfig, Priority, RouteConfig, ServerUrl, Timeouts, UpstreamConfig, Words,
};
