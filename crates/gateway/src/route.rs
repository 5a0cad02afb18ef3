//! Routes from requests to upstreams.

use std::sync::Arc;

use hyper::Method;
use hyper::http::request::Parts;
use tidegate_core::EncodedSlashes;
use tidegate_limiter::tower::Lookup;

use crate::config::{ForwardPath, GatewayConfig, HostOrPathPattern, Priority, RouteConfig};
use crate::upstream::Upstream;

/// All routes, in the order of the configuration.
#[derive(Debug)]
pub(crate) struct RouteTable {
    routes: Vec<Route>,
    host: Lookup,
    path: Lookup,
}

/// A route: a filter of requests, and the upstream that gets them.
#[derive(Debug)]
pub(crate) struct Route {
    pub(crate) name: Arc<str>,
    host: Option<HostOrPathPattern>,
    path: Option<HostOrPathPattern>,
    methods: Vec<Method>,
    pub(crate) upstream: Arc<Upstream>,
    pub(crate) priority: Priority,
    pub(crate) encoded_slashes: EncodedSlashes,
    pub(crate) forward_path: ForwardPath,
}

impl RouteTable {
    pub(crate) fn new(config: &GatewayConfig, upstreams: &[Arc<Upstream>]) -> Self {
        let route = |route: &RouteConfig| Route {
            name: Arc::clone(&route.name),
            host: route.host.clone(),
            path: route.path.clone(),
            methods: route.methods.clone(),
            upstream: Arc::clone(&upstreams[route.upstream]),
            priority: route.priority,
            encoded_slashes: route.encoded_slashes,
            forward_path: route.forward_path,
        };
        let lookup = |name| Lookup::named(name).expect("host and path are known attributes");
        let routes = config.routes.iter().map(route).collect();
        Self { routes, host: lookup("host"), path: lookup("path") }
    }

    /// Returns the first route that matches a normalized request.
    ///
    /// The request has its canonical path, as for rules, so that another spelling of a path does not bypass a route.
    pub(crate) fn find(&self, head: &Parts) -> Option<&Route> {
        if let [only] = self.routes.as_slice()
            && only.matches_all()
        {
            return Some(only);
        }
        let (host, path) = (self.host.read(head), self.path.read(head));
        let (host, path) = (host.as_deref(), path.as_deref());
        self.routes.iter().find(|route| route.matches(host, path, &head.method))
    }
}

impl Route {
    fn matches_all(&self) -> bool {
        self.host.is_none() && self.path.is_none() && self.methods.is_empty()
    }

    fn matches(&self, host: Option<&str>, path: Option<&str>, method: &Method) -> bool {
        let accepts = |pattern: &Option<HostOrPathPattern>, value: Option<&str>| {
            let pattern = pattern.as_ref();
            pattern.is_none_or(|pattern| value.is_some_and(|value| pattern.matches(value)))
        };
        accepts(&self.host, host)
            && accepts(&self.path, path)
            && (self.methods.is_empty() || self.methods.contains(method))
    }
}

#[cfg(test)]
mod tests {
    use hyper::Request;

    use super::*;

    fn route(
        name: &str,
        host: Option<&str>,
        path: Option<&str>,
        methods: &[Method],
    ) -> RouteConfig {
        RouteConfig {
            host: host.map(HostOrPathPattern::new),
            path: path.map(HostOrPathPattern::new),
            methods: methods.into(),
            ..RouteConfig::catch_all(name.into())
        }
    }

    #[test]
    fn request_goes_to_the_first_matching_route() {
        let mut config =
            GatewayConfig::single_upstream(vec!["http://127.0.0.1:1".parse().unwrap()]);
        config.routes = vec![
            route("shop", Some("shop.example.com"), None, &[]),
            route("writes", None, Some("/v1/**"), &[Method::POST, Method::PUT]),
            route("any-host", Some("*.example.com"), Some("/"), &[]),
            route("api", None, Some("/v1/**"), &[]),
        ];
        let routes = RouteTable::new(&config, &Upstream::from_config(&config).unwrap());
        let found = |method: &str, host: &str, path: &str| {
            let request = Request::builder().method(method).uri(path).header("host", host);
            let head = request.body(()).unwrap().into_parts().0;
            routes.find(&head).map_or("-".to_owned(), |route| route.name.to_string())
        };
        assert_eq!(found("POST", "SHOP.example.com:8000", "/v1/a"), "shop");
        assert_eq!(found("POST", "x", "/v1/a?b=c"), "writes");
        assert_eq!(found("GET", "x", "/v1/a"), "api");
        assert_eq!(found("GET", "a.example.com", "/"), "any-host");
        // Another spelling of the same host.
        assert_eq!(found("POST", "shop.example.com.", "/"), "shop");
        assert_eq!(found("GET", "[::1]:80", "/"), "-");
        assert_eq!(found("GET", "example.com", "/other"), "-");
    }
}
