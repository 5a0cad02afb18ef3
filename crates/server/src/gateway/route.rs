//! Which upstream a request is for.

use std::sync::Arc;

use hyper::Method;
use hyper::http::request::Parts;

use super::config::{GatewayConfig, Priority, Words};
use super::head;
use super::upstream::Upstream;

/// The routes in the order of the configuration.
#[derive(Debug)]
pub(super) struct Routes(Vec<Route>);

/// Requests that go the same way.
#[derive(Debug)]
pub(super) struct Route {
    pub(super) name: Arc<str>,
    host: Option<Words>,
    path: Option<Words>,
    methods: Vec<Method>,
    pub(super) upstream: Arc<Upstream>,
    pub(super) priority: Priority,
}

impl Routes {
    pub(super) fn new(config: &GatewayConfig, upstreams: &[Arc<Upstream>]) -> Self {
        let route = |route: &super::config::RouteConfig| Route {
            name: Arc::clone(&route.name),
            host: route.host.clone(),
            path: route.path.clone(),
            methods: route.methods.clone(),
            upstream: Arc::clone(&upstreams[route.upstream]),
            priority: route.priority,
        };
        Self(config.routes.iter().map(route).collect())
    }

    /// The first route that a settled request matches.
    pub(super) fn find(&self, head: &Parts) -> Option<&Route> {
        self.0.iter().find(|route| route.matches(head))
    }
}

impl Route {
    fn matches(&self, head: &Parts) -> bool {
        let host = |host: &Words| {
            let named = head::host(&head.headers);
            named.is_some_and(|named| match named.bytes().any(|byte| byte.is_ascii_uppercase()) {
                true => host.matches(&named.to_ascii_lowercase()),
                false => host.matches(named),
            })
        };
        self.host.as_ref().is_none_or(host)
            && self.path.as_ref().is_none_or(|path| path.matches(head.uri.path()))
            && (self.methods.is_empty() || self.methods.contains(&head.method))
    }
}

#[cfg(test)]
mod tests {
    use hyper::Request;

    use super::*;
    use crate::gateway::config::RouteConfig;

    fn route(
        name: &str,
        host: Option<&str>,
        path: Option<&str>,
        methods: &[Method],
    ) -> RouteConfig {
        RouteConfig {
            host: host.map(Words::new),
            path: path.map(Words::new),
            methods: methods.into(),
            ..RouteConfig::everything(name.into())
        }
    }

    #[test]
    fn the_first_route_that_matches_has_the_request() {
        let mut config = GatewayConfig::to(vec!["http://127.0.0.1:1".parse().unwrap()]);
        config.routes = vec![
            route("shop", Some("shop.example.com"), None, &[]),
            route("writes", None, Some("/v1/**"), &[Method::POST, Method::PUT]),
            route("any-host", Some("*.example.com"), Some("/"), &[]),
            route("api", None, Some("/v1/**"), &[]),
        ];
        let routes = Routes::new(&config, &Upstream::all(&config).unwrap());
        let found = |method: &str, host: &str, path: &str| {
            let request = Request::builder().method(method).uri(path).header("host", host);
            let head = request.body(()).unwrap().into_parts().0;
            routes.find(&head).map_or("-".to_owned(), |route| route.name.to_string())
        };
        assert_eq!(found("POST", "SHOP.example.com:8000", "/v1/a"), "shop");
        assert_eq!(found("POST", "x", "/v1/a?b=c"), "writes");
        assert_eq!(found("GET", "x", "/v1/a"), "api");
        assert_eq!(found("GET", "a.example.com", "/"), "any-host");
        assert_eq!(found("GET", "[::1]:80", "/"), "-");
        assert_eq!(found("GET", "example.com", "/other"), "-");
    }
}
