//! The paths to the upstream, each with its own processes.

use std::rc::Rc;

use tidegate_bench::server::BenchServer;

use crate::proxy;

/// The limit of a client address.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum GatewayLimit {
    /// 1,000,000 per second.
    NeverReached,
    /// 1,000 per hour.
    Hourly,
}

/// A path to the upstream: one proxy, or none. Without a server, the proxy is not installed.
pub(crate) struct Contender {
    pub(crate) name: &'static str,
    pub(crate) has_limit: bool,
    server: Option<Rc<BenchServer>>,
    /// Kept alive, because all contenders use it.
    _upstream: Rc<BenchServer>,
}

impl Contender {
    /// The names of all contenders except an earlier build.
    pub(crate) const NAMES: [&'static str; 7] = [
        "no proxy",
        "NGINX `proxy_pass`",
        crate::BASE,
        crate::TIDEGATE,
        "HAProxy stick table",
        "Envoy local limit",
        "Traefik rateLimit",
    ];

    /// Starts all contenders.
    pub(crate) fn all(limit: GatewayLimit) -> Vec<Self> {
        let answer = "sixty-eight bytes of text, which is what many small answers come to.";
        let upstream = proxy::nginx("", &format!("return 200 '{answer}';"));
        let upstream =
            Rc::new(upstream.expect("NGINX is installed; tools/setup-bench.sh installs it"));
        let port = upstream.port();
        let servers = [
            Some(Rc::clone(&upstream)),
            proxy::nginx_with_limit(port, None).map(Rc::new),
            proxy::nginx_with_limit(port, Some(limit)).map(Rc::new),
            Some(Rc::new(proxy::tidegate(port, limit))),
            proxy::haproxy(port, limit).map(Rc::new),
            proxy::envoy(port, limit).map(Rc::new),
            proxy::traefik(port, limit).map(Rc::new),
        ];
        let contender = |(index, server): (usize, Option<Rc<BenchServer>>)| Self {
            name: Self::NAMES[index],
            has_limit: index >= 2,
            server,
            _upstream: Rc::clone(&upstream),
        };
        let mut contenders: Vec<Self> = servers.into_iter().enumerate().map(contender).collect();
        if let Some(server) = proxy::tidegate_before(port, limit) {
            contenders.push(Self {
                name: "Tidegate before",
                has_limit: true,
                server: Some(Rc::new(server)),
                _upstream: upstream,
            });
        }
        contenders
    }

    pub(crate) fn is_installed(&self) -> bool {
        self.server.is_some()
    }

    pub(crate) fn url(&self) -> String {
        format!("http://127.0.0.1:{}/", self.server().port())
    }

    /// Returns the CPU time that the processes have used so far, in microseconds.
    pub(crate) fn cpu_micros(&self) -> f64 {
        self.server().cpu_micros()
    }

    fn server(&self) -> &BenchServer {
        self.server.as_ref().expect("only installed proxies are measured")
    }
}
