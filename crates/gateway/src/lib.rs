//! The gateway: a reverse proxy that decides before it forwards.
//!
//! A request is read, its route found, its client told apart and the rules asked. What is let pass waits for
//! its turn, if a rule says so, enters its upstream, if there is room, and goes to one of its servers.
//! Whatever it holds it holds until the answer's body is over, however that comes about.

mod answer;
mod body;
mod calls;
mod config;
mod connection;
mod forward;
mod hangup;
mod head;
mod health;
mod pool;
mod route;
mod streams;
mod threads;
mod tunnel;
mod upstream;
mod wire;

use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use bytes::Bytes;
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::header::CONNECTION;
use hyper::http::request::Parts;
use hyper::upgrade::OnUpgrade;
use hyper::{Request, Response, StatusCode, Version};
use parking_lot::Mutex;
use tidegate_core::{Reply, Span};
use tidegate_limiter::Clock;
use tidegate_net::http::response;
use tidegate_net::listener::{ConnectionTimeouts, Peer};
use tidegate_service::call::Protocol;
use tidegate_service::identity::{Caller, Identity};
use tidegate_service::service::{Admitted, Service};
use tidegate_service::stats::UpstreamSample;

use self::answer::ResponseFormat;
use self::body::{Down, Up};
use self::calls::{Call, Calls};
pub use self::config::{
    GatewayConfig, HealthConfig, Priority, RouteConfig, ServerUrl, Timeouts, UpstreamConfig, Words,
};
use self::forward::{Answered, Failure, Forward, UnderWay};
use self::hangup::Hangup;
use self::head::Sender;
use self::pool::Pool;
use self::route::{Route, Routes};
pub use self::threads::{Front, Threads, listen};
use self::tunnel::Tunnel;
use self::upstream::{Entered, Outcome, Upstream};

/// How long an idle connection is left open when the gateway closes: its client may be about to send.
const PARTING: Span = Span::from_secs(3);

/// How often it is looked whether a client is still there whose body is too long to be read ahead.
const LOOK: Span = Span::SECOND;

/// Where requests go, for all threads together.
#[derive(Debug)]
pub struct Upstreams {
    config: GatewayConfig,
    all: Vec<Arc<Upstream>>,
    routes: Arc<Routes>,
    clock: Clock,
}

impl Upstreams {
    /// Reads what the configuration names.
    ///
    /// # Errors
    /// Files for TLS can't be used.
    pub fn new(config: GatewayConfig, clock: Clock) -> Result<Self, String> {
        let all = Upstream::all(&config)?;
        let routes = Arc::new(Routes::new(&config, &all));
        Ok(Self { config, all, routes, clock })
    }

    /// Asks servers whether they are well, for as long as it is polled.
    pub async fn watch(self: Arc<Self>) {
        let servers = self.servers();
        let checks = health::checks(&self.config, &self.all).into_iter();
        let checks = checks
            .map(|(server, health)| health::watch(server, health, servers, self.clock.clone()));
        futures_util::future::join_all(checks).await;
    }

    /// How long connections of clients may take.
    pub fn timeouts(&self) -> ConnectionTimeouts {
        let idle = self.config.timeouts.idle;
        ConnectionTimeouts {
            request: idle,
            idle_grace: Some(PARTING),
            ..ConnectionTimeouts::default()
        }
    }

    /// Returns a sample of each upstream.
    pub fn samples(&self) -> Vec<UpstreamSample> {
        let now = self.clock.now();
        self.all.iter().map(|upstream| upstream.sample(now)).collect()
    }

    fn servers(&self) -> usize {
        self.all.iter().map(|upstream| upstream.servers.len()).sum()
    }
}

/// The gateway as one thread has it.
#[derive(Debug)]
pub(crate) struct Gateway {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    service: Arc<Service>,
    identity: Arc<Identity>,
    routes: Arc<Routes>,
    forward: Forward,
    max_wait: Span,
    tell_upstream: bool,
}

/// What requests of one connection have in common.
#[derive(Debug)]
struct Asked {
    peer: Peer,
    sender: Sender,
    http2: bool,
    calls: Arc<Calls>,
    hangup: Arc<Hangup>,
    /// What the connection becomes when HTTP is over on it.
    tunnel: Mutex<Option<Tunnel<Guards>>>,
}

/// What a request holds until its answer is over. Released by being dropped, so that every way to end is
/// the same.
#[derive(Debug)]
struct Guards {
    _under_way: UnderWay,
    _entered: Entered,
    _admitted: Admitted,
    _call: Call,
}

/// What the rules say to a request, or the answer to one that can't be put to them.
type Decided = Result<(Reply, Admitted), Response<Full<Bytes>>>;

impl Gateway {
    pub(crate) fn new(
        upstreams: &Upstreams,
        service: Arc<Service>,
        identity: Arc<Identity>,
        clock: Clock,
    ) -> Self {
        let config = &upstreams.config;
        let pool = Arc::new(Pool::new(upstreams.servers()));
        let forward = Forward { pool, clock, timeouts: config.timeouts };
        let (max_wait, tell_upstream) = (config.max_wait, config.tell_upstream);
        let routes = Arc::clone(&upstreams.routes);
        let inner = Inner { service, identity, routes, forward, max_wait, tell_upstream };
        Self { inner: Arc::new(inner) }
    }

    /// Closes upstream connections that nobody uses, for as long as it is polled.
    pub(crate) async fn sweep(self: Arc<Self>) {
        let Forward { pool, clock, .. } = &self.inner.forward;
        loop {
            clock.sleep_until(clock.now() + pool::SWEEP).await;
            pool.sweep();
        }
    }
}

impl Inner {
    /// Answers one request.
    async fn answer(&self, request: Request<Incoming>, asked: &Asked) -> Response<Down<Guards>> {
        let call = asked.calls.begin();
        let (head, body) = request.into_parts();
        let format = ResponseFormat::of(&head);
        let mut response = match self.pass(head, Up::new(body), asked, call, &format).await {
            Ok(response) => response,
            Err(own) => format.convert(own).map(Down::Own),
        };
        let leaves = asked.calls.activity.is_closing() || self.service.is_draining();
        if leaves && !asked.http2 && response.status() != StatusCode::SWITCHING_PROTOCOLS {
            response.headers_mut().insert(CONNECTION, connection::LAST);
        }
        response
    }

    /// Passes a request on, and its answer back.
    ///
    /// # Errors
    /// An answer of our own.
    async fn pass(
        &self,
        mut head: Parts,
        mut body: Up,
        asked: &Asked,
        mut call: Call,
        format: &ResponseFormat,
    ) -> Result<Response<Down<Guards>>, Response<Full<Bytes>>> {
        head::settle(&mut head).map_err(answer::refusal)?;
        let client = head.extensions.remove::<OnUpgrade>();
        let route = self.routes.find(&head).ok_or_else(answer::no_route)?;
        let (reply, mut admitted) = match self.decide_now(&head, route, asked) {
            Some(decided) => decided?,
            // Boxed, so that who need not wait does not carry its room around.
            None => Box::pin(self.decide(&head, route, asked)).await?,
        };
        if !reply.decision.is_allowed() {
            return Ok(format.denial(&reply).map(Down::Own));
        }
        if admitted.waits() {
            Box::pin(self.hold(&admitted, &mut body, &asked.hangup)).await?;
        }
        // The fault is ours, so it costs the client nothing.
        let entered = route.upstream.enter(route.priority).ok_or_else(|| {
            route.upstream.count(Outcome::Shed);
            answer::shed()
        })?;
        admitted.serve();
        let upgrades = head::onward(&mut head, &asked.sender);
        if self.tell_upstream {
            answer::put(&mut head.headers, reply.headers());
        }
        let sent = self.forward.send(&route.upstream, Request::from_parts(head, body)).await;
        let Answered { mut response, kept, under_way } = sent.map_err(|failure| {
            route.upstream.count(Outcome::Failed);
            let mut own = answer::failure(failure);
            answer::tell(own.headers_mut(), reply.headers());
            own
        })?;
        call.answered();
        route.upstream.count(Outcome::of(response.status()));
        // What the server speaks is between it and us.
        *response.version_mut() = Version::HTTP_11;
        let switched = response.status() == StatusCode::SWITCHING_PROTOCOLS;
        let server = switched.then(|| hyper::upgrade::on(&mut response));
        head::back(response.headers_mut(), switched);
        answer::tell(response.headers_mut(), reply.headers());
        let guards =
            Guards { _under_way: under_way, _entered: entered, _admitted: admitted, _call: call };
        if let Some(server) = server {
            let (Some(client), true) = (client, upgrades) else {
                let detail = "the upstream switched protocols, which nobody had asked for";
                return Err(response::problem(StatusCode::BAD_GATEWAY, detail));
            };
            *asked.tunnel.lock() = Some(Tunnel { client, server, guards });
            return Ok(response.map(|_| Down::Own(Full::default())));
        }
        Ok(response.map(|body| Down::passing(body, kept, guards)))
    }

    /// Holds a request until its turn has come. A client that leaves meanwhile is seen to leave, and all of
    /// this is dropped.
    ///
    /// # Errors
    /// The client left, and could still be told so if it had not.
    async fn hold(
        &self,
        admitted: &Admitted,
        body: &mut Up,
        hangup: &Hangup,
    ) -> Result<(), Response<Full<Bytes>>> {
        let left = || answer::failure(Failure::BadBody);
        let mut waiting = pin!(admitted.wait());
        let whole = tokio::select! {
            biased;
            () = &mut waiting => return Ok(()),
            whole = body.read_ahead() => whole.map_err(|_| left())?,
        };
        if whole {
            waiting.await;
            return Ok(());
        }
        let clock = &self.forward.clock;
        loop {
            tokio::select! {
                biased;
                () = &mut waiting => break,
                () = clock.sleep_until(clock.now() + LOOK) => {
                    if hangup.is_gone() {
                        return Err(left());
                    }
                }
            }
        }
        hangup.never_mind();
        Ok(())
    }

    /// Asks the rules, where that takes no waiting.
    fn decide_now(&self, head: &Parts, route: &Route, asked: &Asked) -> Option<Decided> {
        if !self.service.is_synchronous() {
            return None;
        }
        let deciding = pin!(self.decide(head, route, asked));
        match deciding.poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(decided) => Some(decided),
            Poll::Pending => None,
        }
    }

    /// Asks the rules.
    ///
    /// # Errors
    /// The answer to a request that can't be put to them.
    async fn decide(&self, head: &Parts, route: &Route, asked: &Asked) -> Decided {
        let by = self.service.active_rules();
        let caller = Caller {
            way: Some((&route.name, &route.upstream.name)),
            ..Caller::new(asked.peer.address.ip(), asked.peer.service.as_deref())
        };
        let request =
            self.identity.describe(by.attribute_plan(), head, caller).map_err(|fault| {
                response::fault(&self.service.count_rejected(Protocol::Gateway, fault))
            })?;
        Ok(self.service.admit(&by, Protocol::Gateway, &request, self.max_wait).await)
    }
}
