//! Each way a request can end, with callers that give up at any point.

use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};

use bytes::Bytes;
use http::{Request, Response};
use http_body::{Body, Frame};
use http_body_util::BodyExt;
use proptest::prelude::*;
use tidegate::tower::{RateLimitLayer, ResponseBody};
use tidegate::{Limiter, ManualClock, Span, Store};
use tokio::task::{JoinSet, yield_now};
use tower::{Layer, Service, ServiceExt};

use super::rules;

/// At most so many of one client are at work.
const IN_FLIGHT: u64 = 3;
const CLIENTS: [&str; 4] = ["alice", "bob", "carol", QUIET];
/// A client of its own: what others give up may still be on its way to the store.
const QUIET: &str = "dave";

/// A place in this queue comes up in hours: who is in it leaves it. In the other it comes at once.
const RULES: &str = "  - {name: in-flight, per: [api_key], limit: 3 in flight, hold: 1h}
  - {name: slow, match: {path: /slow}, per: [api_key], algorithm: leaky_bucket, limit: 1 per day, queue: 9}
  - {name: paced, match: {path: /paced}, per: [api_key], algorithm: leaky_bucket, limit: 1000 per second, queue: 9}";

/// What the service does, and then the caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ending {
    PanicsWhenCalled,
    Panics,
    Fails,
    NeverAnswers,
    HeadIsEnough,
    StopsReading,
    BodyFails,
    BodyNeverEnds,
    ReadsAll,
    ReadsUntilTold,
}

#[derive(Clone, Copy, Debug)]
struct Script {
    client: usize,
    path: &'static str,
    ending: Ending,
    /// After how many turns of others the caller gives up.
    patience: Option<u8>,
    /// How many turns of others until the next one comes.
    pause: u8,
}

impl Script {
    fn request(&self) -> Request<Script> {
        let request = Request::get(self.path).header("x-api-key", CLIENTS[self.client]);
        request.body(*self).unwrap()
    }

    /// Whether it is over only when the caller gives up.
    fn is_endless(&self) -> bool {
        self.path == "/slow" || matches!(self.ending, Ending::NeverAnswers | Ending::BodyNeverEnds)
    }
}

fn scripts() -> impl Strategy<Value = Vec<Script>> {
    use Ending::*;
    let endings = prop::sample::select(vec![
        PanicsWhenCalled,
        Panics,
        Fails,
        NeverAnswers,
        HeadIsEnough,
        StopsReading,
        BodyFails,
        BodyNeverEnds,
        ReadsAll,
        ReadsUntilTold,
    ]);
    let paths = prop::sample::select(vec!["/", "/", "/slow", "/paced"]);
    let script = (0..CLIENTS.len() - 1, paths, endings, prop::option::of(0u8..20), 0u8..4);
    let script = script.prop_map(|(client, path, ending, patience, pause)| Script {
        client,
        path,
        ending,
        patience,
        pause,
    });
    prop::collection::vec(script, 1..40)
}

/// How many of each client the service works for.
type AtWork = Arc<[AtomicU64; CLIENTS.len()]>;

struct Present(AtWork, usize);

impl Present {
    fn new(at_work: &AtWork, client: usize) -> Self {
        let present = at_work[client].fetch_add(1, Ordering::SeqCst);
        assert!(present < IN_FLIGHT, "more are at work than may be in flight");
        Self(Arc::clone(at_work), client)
    }
}

impl Drop for Present {
    fn drop(&mut self) {
        self.0[self.1].fetch_sub(1, Ordering::SeqCst);
    }
}

#[derive(Clone, Default)]
struct Actor(AtWork);

type Acting = Pin<Box<dyn Future<Output = Result<Response<Chunks>, &'static str>> + Send>>;

impl Service<Request<Script>> for Actor {
    type Response = Response<Chunks>;
    type Error = &'static str;
    type Future = Acting;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), &'static str>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Script>) -> Acting {
        let Script { client, ending, .. } = *request.body();
        let present = Present::new(&self.0, client);
        assert!(ending != Ending::PanicsWhenCalled, "as the script says");
        Box::pin(async move {
            yield_now().await;
            match ending {
                Ending::Panics => panic!("as the script says"),
                Ending::Fails => Err("as the script says"),
                Ending::NeverAnswers => std::future::pending().await,
                _ => Ok(Response::new(Chunks {
                    left: 3,
                    due: false,
                    ending,
                    present: Some(present),
                })),
            }
        })
    }
}

/// A body of three words, with a pause before each.
struct Chunks {
    left: u8,
    due: bool,
    ending: Ending,
    present: Option<Present>,
}

impl Body for Chunks {
    type Data = Bytes;
    type Error = &'static str;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, &'static str>>> {
        self.due = !self.due;
        if self.due {
            cx.waker().wake_by_ref();
            return Poll::Pending;
        }
        if self.left == 0 {
            if self.ending == Ending::BodyNeverEnds {
                return Poll::Pending;
            }
            assert!(
                self.ending != Ending::ReadsUntilTold,
                "polled after it said that it has ended"
            );
            self.present = None;
            let failed = self.ending == Ending::BodyFails;
            return Poll::Ready(failed.then_some(Err("as the script says")));
        }
        self.left -= 1;
        if self.is_end_stream() {
            self.present = None;
        }
        Poll::Ready(Some(Ok(Frame::data(Bytes::from("word")))))
    }

    fn is_end_stream(&self) -> bool {
        self.ending == Ending::ReadsUntilTold && self.left == 0
    }
}

/// Bodies that have ended and that nobody has dropped yet.
type Ended = Arc<Mutex<Vec<ResponseBody<Chunks>>>>;

async fn live<Svc>(service: Svc, script: Script, ended: Ended)
where
    Svc: Service<Request<Script>, Response = Response<ResponseBody<Chunks>>, Error = &'static str>,
{
    let Ok(response) = service.oneshot(script.request()).await else { return };
    if script.ending == Ending::HeadIsEnough {
        return;
    }
    let mut body = response.into_body();
    if script.ending == Ending::StopsReading {
        let _ = body.frame().await;
        return;
    }
    while !body.is_end_stream() && matches!(body.frame().await, Some(Ok(_))) {}
    ended.lock().unwrap().push(body);
}

struct Stage<S: Store> {
    limiter: Limiter<S>,
    layer: RateLimitLayer<tidegate::tower::RulesDecider<S>>,
    actor: Actor,
    ended: Ended,
}

impl<S: Store> Stage<S> {
    fn new(limiter: Limiter<S>) -> Self {
        let layer = RateLimitLayer::new(limiter.clone()).max_wait(Span::from_secs(9 * 86_400));
        Self { limiter, layer, actor: Actor::default(), ended: Ended::default() }
    }

    /// What a rule has left for a client.
    async fn left(&self, rule: &str, client: &str) -> u64 {
        let request = tidegate::Request::new().with("api_key", client).unwrap();
        let request = request.with("path", format!("/{rule}")).unwrap();
        let decision = self.limiter.peek(&request).await;
        let policy = decision.rule_outcomes().iter().find(|policy| &*policy.rule == rule);
        policy.unwrap().outcome.remaining
    }

    /// Returns once a rule has so much left: what is given back may be on its way.
    async fn settled(&self, rule: &str, client: &str, wanted: u64) {
        let settled = async {
            while self.left(rule, client).await != wanted {
                yield_now().await;
            }
        };
        let settled = tokio::time::timeout(tidegate_testkit::WAIT_TIMEOUT, settled).await;
        assert!(settled.is_ok(), "{client} has something of {rule} that nobody gave back");
    }

    fn spawn(&self, tasks: &mut JoinSet<()>, script: Script) -> tokio::task::AbortHandle {
        let service = self.layer.layer(self.actor.clone());
        tasks.spawn(live(service, script, Arc::clone(&self.ended)))
    }

    /// Plays all scripts. `tick` is called again and again, to let time pass.
    async fn play(&self, scripts: Vec<Script>, tick: impl Fn()) {
        let (mut tasks, mut leaving) = (JoinSet::new(), Vec::new());
        for script in scripts {
            let task = self.spawn(&mut tasks, script);
            let patience = script.patience.or(script.is_endless().then_some(30));
            leaving.extend(patience.map(|patience| (patience, task)));
            for _ in 0..=script.pause {
                turn(&mut leaving, &tick).await;
            }
        }
        while !tasks.is_empty() {
            turn(&mut leaving, &tick).await;
            while let Some(ended) = tasks.try_join_next() {
                expect_scripted(ended);
            }
        }
        assert_eq!(self.actor.0.iter().map(|at| at.load(Ordering::SeqCst)).sum::<u64>(), 0);
        for client in CLIENTS {
            self.settled("in-flight", client, IN_FLIGHT).await;
        }
        self.leave_the_queue().await;
        self.ended.lock().unwrap().clear();
    }

    /// Whoever is last in a queue gives its place back, and its slot in flight.
    async fn leave_the_queue(&self) {
        let (client, ending) = (CLIENTS.len() - 1, Ending::ReadsAll);
        let script = Script { client, path: "/slow", ending, patience: None, pause: 0 };
        let mut tasks = JoinSet::new();
        if self.left("slow", QUIET).await == 10 {
            // The first one has nobody to wait for.
            self.spawn(&mut tasks, script);
            expect_scripted(tasks.join_next().await.unwrap());
        }
        let task = self.spawn(&mut tasks, script);
        self.settled("slow", QUIET, 8).await;
        self.settled("in-flight", QUIET, IN_FLIGHT - 1).await;
        task.abort();
        while tasks.join_next().await.is_some() {}
        self.settled("slow", QUIET, 9).await;
        self.settled("in-flight", QUIET, IN_FLIGHT).await;
    }
}

/// Lets others go on, and those go who have lost patience.
async fn turn(leaving: &mut Vec<(u8, tokio::task::AbortHandle)>, tick: &impl Fn()) {
    tick();
    yield_now().await;
    leaving.retain_mut(|(patience, task)| {
        let left = patience.checked_sub(1);
        *patience = left.unwrap_or(0);
        left.is_some() || {
            task.abort();
            false
        }
    });
}

fn expect_scripted(ended: Result<(), tokio::task::JoinError>) {
    if let Err(error) = ended {
        let scripted = error.is_cancelled() || error.to_string().contains("as the script says");
        assert!(scripted, "{error}");
    }
}

fn config(cases: u32) -> ProptestConfig {
    ProptestConfig { cases, failure_persistence: None, ..ProptestConfig::default() }
}

proptest! {
    #![proptest_config(config(200))]

    #[test]
    fn each_way_that_requests_end_nobody_is_in_flight_afterwards(scripts in scripts()) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        runtime.block_on(async {
            let time = ManualClock::default();
            let limiter = Limiter::builder().rules(rules(RULES)).clock(time.clock()).build();
            Stage::new(limiter).play(scripts, || time.advance(Span::from_micros(300))).await;
        });
    }
}

#[cfg(feature = "redis")]
#[test]
fn each_way_that_requests_end_nobody_is_in_flight_in_redis_afterwards() {
    use tidegate::{RedisConfig, RedisStore};
    use tidegate_testkit::{Flavour, Redis, Tool, WAIT_TIMEOUT, lacking};

    if lacking(&[Tool::Server(Flavour::Redis)]) {
        return;
    }
    let server = Redis::start();
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let store = runtime.block_on(async {
        let config: RedisConfig = server.url().parse().unwrap();
        let store = RedisStore::connect(
            config
                .with_timeout(WAIT_TIMEOUT)
                .unwrap()
                .with_connect_timeout(crate::CONNECT_TIMEOUT)
                .unwrap(),
        )
        .await;
        Arc::new(store.unwrap())
    });
    let limiter = Limiter::builder().rules(rules(RULES)).store(store).build();
    let stage = Stage::new(limiter);
    let mut runner = proptest::test_runner::TestRunner::new(config(40));
    let played = runner.run(&scripts(), |scripts| {
        runtime.block_on(async {
            // Whom nobody lets through any more would tell little.
            for client in &CLIENTS[..CLIENTS.len() - 1] {
                let request = tidegate::Request::new().with("api_key", *client).unwrap();
                stage.limiter.forget("slow", &request).await.unwrap();
            }
            stage.play(scripts, || {}).await;
        });
        Ok(())
    });
    played.unwrap();
}
