//! Which upstream a request is for.

use std::sync::Arc;

use hyper::Method;
use hyper::http::request::Parts;
use tidegate_limiter::tower::Lookup;

use super::config::{GatewayConfig, Priority, Words};
use super::upstream::Upstream;

/// The routes in the order of the configuration.
#[derive(Debug)]
pub(super) struct Routes {
    routes: Vec<Route>,
    host: Lookup,
    path: Lookup,
}

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
        let lookup = |name| Lookup::named(name).expect("every request has it");
        let routes = config.routes.iter().map(route).collect();
        Self { routes, host: lookup("host"), path: lookup("path") }
    }

    /// The first route that a settled request matches.
    ///
    /// Host and path are what rules see of them, so that no spelling leads around a route.
    pub(super) fn find(&self, head: &Parts) -> Option<&Route> {
        if let [only] = self.routes.as_slice()
            && only.is_everything()
        {
            return Some(only);
        }
        let (host, path) = (self.host.read(head), self.path.read(head));
        let (host, path) = (host.as_deref(), path.as_deref());
        self.routes.iter().find(|route| route.matches(host, path, &head.method))
    }
}

impl Route {
    fn is_everything(&self) -> bool {
        self.host.is_none() && self.path.is_none() && self.methods.is_empty()
    }

    fn matches(&self, host: Option<&str>, path: Option<&str>, method: &Method) -> bool {
        let like = |words: &Option<Words>, value: Option<&str>| {
            words.as_ref().is_none_or(|words| value.is_some_and(|value| words.matches(value)))
        };
        like(&self.host, host)
            && like(&self.path, path)
            && (self.methods.is_empty() || self.methods.contains(method))
    }
}

#[cfg(test)]
mod tests {
    use hyper::Request;

    use super::*;
    use crate::config::RouteConfig;

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
        // However it is spelt.
        assert_eq!(found("POST", "shop.example.com.", "/"), "shop");
        assert_eq!(found("GET", "x", "/%761/a"), "api");
        assert_eq!(found("GET", "[::1]:80", "/"), "-");
        assert_eq!(found("GET", "example.com", "/other"), "-");
    }
}
