//! Routes from requests to upstreams.

use std::sync::Arc;

use hyper::Method;
use hyper::http::request::Parts;
use tidegate_core::EncodedSlashes;
use tidegate_limiter::tower::Lookup;
use tidegate_rules::{PatternSet, ValuePattern};

use crate::config::{ForwardPath, GatewayConfig, Priority, RouteConfig};
use crate::upstream::Upstream;

/// More routes than these are matched together rather than one after another.
const MAX_SEPARATE_ROUTES: usize = 8;

/// All routes, in the order of the configuration.
#[derive(Debug)]
pub(crate) struct RouteTable {
    routes: Vec<Route>,
    /// `None` for a few routes.
    patterns: Option<RoutePatterns>,
    host: Lookup,
    path: Lookup,
}

/// A route: a filter of requests, and the upstream that gets them.
#[derive(Debug)]
pub(crate) struct Route {
    pub(crate) name: Arc<str>,
    host: Option<ValuePattern>,
    path: Option<ValuePattern>,
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
        let routes: Vec<Route> = config.routes.iter().map(route).collect();
        let patterns = (routes.len() > MAX_SEPARATE_ROUTES).then(|| RoutePatterns::new(&routes));
        Self { routes, patterns, host: lookup("host"), path: lookup("path") }
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
        match &self.patterns {
            Some(patterns) => patterns.find(&self.routes, host, path, &head.method),
            None => self.routes.iter().find(|route| route.matches(host, path, &head.method)),
        }
    }
}

/// The hosts and paths of all routes, by position of the route.
#[derive(Debug)]
struct RoutePatterns {
    hosts: PatternSet,
    paths: PatternSet,
    /// Number of patterns of each route.
    counts: Box<[u8]>,
}

impl RoutePatterns {
    fn new(routes: &[Route]) -> Self {
        let set = |pattern: fn(&Route) -> Option<&ValuePattern>| {
            let patterns = routes.iter().enumerate();
            PatternSet::new(patterns.filter_map(|(index, route)| Some((index, pattern(route)?))))
        };
        let count = |route: &Route| u8::from(route.host.is_some()) + u8::from(route.path.is_some());
        Self {
            hosts: set(|route| route.host.as_ref()),
            paths: set(|route| route.path.as_ref()),
            counts: routes.iter().map(count).collect(),
        }
    }

    /// Returns the first route that matches. The host and the path are each searched once for all routes.
    fn find<'r>(
        &self,
        routes: &'r [Route],
        host: Option<&str>,
        path: Option<&str>,
        method: &Method,
    ) -> Option<&'r Route> {
        let mut unmatched = self.counts.clone();
        for (patterns, value) in [(&self.hosts, host), (&self.paths, path)] {
            let Some(value) = value else { continue };
            patterns.matching(value, |route| {
                if let Some(count) = unmatched.get_mut(route) {
                    *count -= 1;
                }
            });
        }
        let mut routes = routes.iter().zip(&unmatched);
        let first = routes.find(|(route, count)| **count == 0 && route.accepts_method(method));
        first.map(|(route, _)| route)
    }
}

impl Route {
    fn matches_all(&self) -> bool {
        self.host.is_none() && self.path.is_none() && self.methods.is_empty()
    }

    fn matches(&self, host: Option<&str>, path: Option<&str>, method: &Method) -> bool {
        let accepts = |pattern: &Option<ValuePattern>, value: Option<&str>| {
            let pattern = pattern.as_ref();
            pattern.is_none_or(|pattern| value.is_some_and(|value| pattern.matches(value)))
        };
        accepts(&self.host, host) && accepts(&self.path, path) && self.accepts_method(method)
    }

    fn accepts_method(&self, method: &Method) -> bool {
        self.methods.is_empty() || self.methods.contains(method)
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
            host: host.map(ValuePattern::like),
            path: path.map(ValuePattern::like),
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

    #[test]
    fn many_routes_match_as_if_they_were_compared_one_by_one() {
        let mut config =
            GatewayConfig::single_upstream(vec!["http://127.0.0.1:1".parse().unwrap()]);
        let hosts = [None, Some("a.example"), Some("*.example"), Some("**b**e")];
        let paths = [None, Some("/a"), Some("/a/**"), Some("/**/b/*/c"), Some("/*/b")];
        let methods = [&[][..], &[Method::POST], &[Method::GET, Method::PUT]];
        let all = hosts.iter().flat_map(|host| paths.iter().map(move |path| (*host, *path)));
        config.routes = (0..100)
            .zip(all.cycle())
            .map(|(n, (host, path))| route(&n.to_string(), host, path, methods[n % 3]))
            .collect();
        // The order decides: rotate, so that each route is the first one once.
        for _ in 0..config.routes.len() {
            let routes = RouteTable::new(&config, &Upstream::from_config(&config).unwrap());
            let patterns = routes.patterns.as_ref().unwrap();
            for host in [None, Some("a.example"), Some("b.example"), Some("x")] {
                for path in [None, Some("/a"), Some("/a/b"), Some("/a/x/b/y/c"), Some("/")] {
                    for method in [Method::GET, Method::POST, Method::DELETE] {
                        let name = |route: &Route| Arc::clone(&route.name);
                        let together = patterns.find(&routes.routes, host, path, &method);
                        let mut each = routes.routes.iter();
                        let one_by_one = each.find(|route| route.matches(host, path, &method));
                        assert_eq!(together.map(name), one_by_one.map(name));
                    }
                }
            }
            config.routes.rotate_left(7);
        }
    }
}
