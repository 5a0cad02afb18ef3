//! Every way in which a request can end, with callers that cancel at any point.

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
use tidegate::store::Store;
use tidegate::tower::{RateLimitLayer, ResponseBody};
use tidegate::{Limiter, ManualClock, Span};
use tokio::task::{JoinSet, yield_now};
use tower::{Layer, Service, ServiceExt};

use super::rules;

/// Maximum concurrent requests of one client.
const MAX_IN_FLIGHT: u64 = 3;
const CLIENTS: [&str; 4] = ["alice", "bob", "carol", QUEUE_TEST_CLIENT];
/// A client that only the queue test uses, since refunds of other clients may still be in flight.
const QUEUE_TEST_CLIENT: &str = "dave";

/// The queue of `slow` takes hours, so waiting callers cancel. The queue of `paced` takes milliseconds.
const RULES: &str = "  - {name: in-flight, per: [api_key], limit: 3 in flight, hold: 1h}
  - {name: slow, match: {path: /slow}, per: [api_key], algorithm: leaky_bucket, limit: 1 per day, queue: 9}
  - {name: paced, match: {path: /paced}, per: [api_key], algorithm: leaky_bucket, limit: 1000 per second, queue: 9}";

/// Behaviour of the service, and then of the caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum RequestEnding {
    ServicePanicsOnCall,
    ServicePanics,
    ServiceFails,
    ServiceNeverReplies,
    CallerReadsHeadOnly,
    CallerStopsReading,
    BodyFails,
    BodyNeverEnds,
    CallerReadsAll,
    CallerStopsAtEndStream,
}

#[derive(Clone, Copy, Debug)]
struct RequestScript {
    client: usize,
    path: &'static str,
    ending: RequestEnding,
    /// Scheduler turns until the caller cancels.
    cancel_after: Option<u8>,
    /// Scheduler turns until the next request starts.
    turns_before_next: u8,
}

impl RequestScript {
    fn request(&self) -> Request<RequestScript> {
        let request = Request::get(self.path).header("x-api-key", CLIENTS[self.client]);
        request.body(*self).unwrap()
    }

    /// Returns whether the request ends only by cancellation.
    fn is_endless(&self) -> bool {
        self.path == "/slow"
            || matches!(
                self.ending,
                RequestEnding::ServiceNeverReplies | RequestEnding::BodyNeverEnds
            )
    }
}

fn scripts() -> impl Strategy<Value = Vec<RequestScript>> {
    use RequestEnding::*;
    let endings = prop::sample::select(vec![
        ServicePanicsOnCall,
        ServicePanics,
        ServiceFails,
        ServiceNeverReplies,
        CallerReadsHeadOnly,
        CallerStopsReading,
        BodyFails,
        BodyNeverEnds,
        CallerReadsAll,
        CallerStopsAtEndStream,
    ]);
    let paths = prop::sample::select(vec!["/", "/", "/slow", "/paced"]);
    let script = (0..CLIENTS.len() - 1, paths, endings, prop::option::of(0u8..20), 0u8..4);
    let script = script.prop_map(|(client, path, ending, cancel_after, turns_before_next)| {
        RequestScript { client, path, ending, cancel_after, turns_before_next }
    });
    prop::collection::vec(script, 1..40)
}

/// Requests that the service is handling, per client.
type RequestsInService = Arc<[AtomicU64; CLIENTS.len()]>;

struct ServiceGuard(RequestsInService, usize);

impl ServiceGuard {
    fn new(in_service: &RequestsInService, client: usize) -> Self {
        let count = in_service[client].fetch_add(1, Ordering::SeqCst);
        assert!(count < MAX_IN_FLIGHT, "more requests are handled than may be in flight");
        Self(Arc::clone(in_service), client)
    }
}

impl Drop for ServiceGuard {
    fn drop(&mut self) {
        self.0[self.1].fetch_sub(1, Ordering::SeqCst);
    }
}

#[derive(Clone, Default)]
struct ScriptedService(RequestsInService);

type ServiceFuture =
    Pin<Box<dyn Future<Output = Result<Response<ScriptedBody>, &'static str>> + Send>>;

impl Service<Request<RequestScript>> for ScriptedService {
    type Response = Response<ScriptedBody>;
    type Error = &'static str;
    type Future = ServiceFuture;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), &'static str>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<RequestScript>) -> ServiceFuture {
        let RequestScript { client, ending, .. } = *request.body();
        let guard = ServiceGuard::new(&self.0, client);
        assert!(ending != RequestEnding::ServicePanicsOnCall, "scripted failure");
        Box::pin(async move {
            yield_now().await;
            match ending {
                RequestEnding::ServicePanics => panic!("scripted failure"),
                RequestEnding::ServiceFails => Err("scripted failure"),
                RequestEnding::ServiceNeverReplies => std::future::pending().await,
                _ => Ok(Response::new(ScriptedBody {
                    frames_left: 3,
                    is_pending_turn: false,
                    ending,
                    guard: Some(guard),
                })),
            }
        })
    }
}

/// A body of three frames, with a pause before each.
struct ScriptedBody {
    frames_left: u8,
    is_pending_turn: bool,
    ending: RequestEnding,
    guard: Option<ServiceGuard>,
}

impl Body for ScriptedBody {
    type Data = Bytes;
    type Error = &'static str;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, &'static str>>> {
        self.is_pending_turn = !self.is_pending_turn;
        if self.is_pending_turn {
            cx.waker().wake_by_ref();
            return Poll::Pending;
        }
        if self.frames_left == 0 {
            if self.ending == RequestEnding::BodyNeverEnds {
                return Poll::Pending;
            }
            assert!(
                self.ending != RequestEnding::CallerStopsAtEndStream,
                "polled after is_end_stream returned true"
            );
            self.guard = None;
            let failed = self.ending == RequestEnding::BodyFails;
            return Poll::Ready(failed.then_some(Err("scripted failure")));
        }
        self.frames_left -= 1;
        if self.is_end_stream() {
            self.guard = None;
        }
        Poll::Ready(Some(Ok(Frame::data(Bytes::from("frame")))))
    }

    fn is_end_stream(&self) -> bool {
        self.ending == RequestEnding::CallerStopsAtEndStream && self.frames_left == 0
    }
}

/// Bodies that have ended and are not dropped yet.
type Ended = Arc<Mutex<Vec<ResponseBody<ScriptedBody>>>>;

async fn run_request<Svc>(service: Svc, script: RequestScript, ended: Ended)
where
    Svc: Service<
            Request<RequestScript>,
            Response = Response<ResponseBody<ScriptedBody>>,
            Error = &'static str,
        >,
{
    let Ok(response) = service.oneshot(script.request()).await else { return };
    if script.ending == RequestEnding::CallerReadsHeadOnly {
        return;
    }
    let mut body = response.into_body();
    if script.ending == RequestEnding::CallerStopsReading {
        let _ = body.frame().await;
        return;
    }
    while !body.is_end_stream() && matches!(body.frame().await, Some(Ok(_))) {}
    ended.lock().unwrap().push(body);
}

struct EndingsFixture<S: Store> {
    limiter: Limiter<S>,
    layer: RateLimitLayer<tidegate::tower::RulesDecider<S>>,
    service: ScriptedService,
    ended: Ended,
}

impl<S: Store> EndingsFixture<S> {
    fn new(limiter: Limiter<S>) -> Self {
        let layer = RateLimitLayer::new(limiter.clone()).max_wait(Span::from_secs(9 * 86_400));
        Self { limiter, layer, service: ScriptedService::default(), ended: Ended::default() }
    }

    /// Returns the remaining amount of a rule for a client.
    async fn remaining(&self, rule: &str, client: &str) -> u64 {
        let request = tidegate::Request::new().with("api_key", client).unwrap();
        let request = request.with("path", format!("/{rule}")).unwrap();
        let decision = self.limiter.peek(&request).await;
        let rule_outcome =
            decision.rule_outcomes().iter().find(|rule_outcome| &*rule_outcome.rule == rule);
        rule_outcome.unwrap().outcome.remaining
    }

    /// Waits until a rule has `wanted` remaining. Refunds may still be in flight.
    async fn wait_for_remaining(&self, rule: &str, client: &str, wanted: u64) {
        let refunded = async {
            while self.remaining(rule, client).await != wanted {
                yield_now().await;
            }
        };
        let in_time = tokio::time::timeout(tidegate_testkit::WAIT_TIMEOUT, refunded).await;
        assert!(in_time.is_ok(), "{client}: {rule} has a charge that was not refunded");
    }

    fn spawn(&self, tasks: &mut JoinSet<()>, script: RequestScript) -> tokio::task::AbortHandle {
        let service = self.layer.layer(self.service.clone());
        tasks.spawn(run_request(service, script, Arc::clone(&self.ended)))
    }

    /// Runs all scripts. `tick` advances the clock and is called once per turn.
    async fn run_scripts(&self, scripts: Vec<RequestScript>, tick: impl Fn()) {
        let (mut tasks, mut cancellations) = (JoinSet::new(), Vec::new());
        for script in scripts {
            let task = self.spawn(&mut tasks, script);
            let cancel_after = script.cancel_after.or(script.is_endless().then_some(30));
            cancellations.extend(cancel_after.map(|cancel_after| (cancel_after, task)));
            for _ in 0..=script.turns_before_next {
                run_turn(&mut cancellations, &tick).await;
            }
        }
        while !tasks.is_empty() {
            run_turn(&mut cancellations, &tick).await;
            while let Some(ended) = tasks.try_join_next() {
                expect_scripted_end(ended);
            }
        }
        assert_eq!(self.service.0.iter().map(|at| at.load(Ordering::SeqCst)).sum::<u64>(), 0);
        for client in CLIENTS {
            self.wait_for_remaining("in-flight", client, MAX_IN_FLIGHT).await;
        }
        self.expect_cancelled_last_waiter_frees_its_place().await;
        self.ended.lock().unwrap().clear();
    }

    /// Cancels the last queued request, and expects that its queue place and its slot are freed.
    async fn expect_cancelled_last_waiter_frees_its_place(&self) {
        let (client, ending) = (CLIENTS.len() - 1, RequestEnding::CallerReadsAll);
        let script = RequestScript {
            client,
            path: "/slow",
            ending,
            cancel_after: None,
            turns_before_next: 0,
        };
        let mut tasks = JoinSet::new();
        if self.remaining("slow", QUEUE_TEST_CLIENT).await == 10 {
            // The first request does not wait.
            self.spawn(&mut tasks, script);
            expect_scripted_end(tasks.join_next().await.unwrap());
        }
        let task = self.spawn(&mut tasks, script);
        self.wait_for_remaining("slow", QUEUE_TEST_CLIENT, 8).await;
        self.wait_for_remaining("in-flight", QUEUE_TEST_CLIENT, MAX_IN_FLIGHT - 1).await;
        task.abort();
        while tasks.join_next().await.is_some() {}
        self.wait_for_remaining("slow", QUEUE_TEST_CLIENT, 9).await;
        self.wait_for_remaining("in-flight", QUEUE_TEST_CLIENT, MAX_IN_FLIGHT).await;
    }
}

/// Runs other tasks once, and aborts the callers that have no turns left.
async fn run_turn(cancellations: &mut Vec<(u8, tokio::task::AbortHandle)>, tick: &impl Fn()) {
    tick();
    yield_now().await;
    cancellations.retain_mut(|(cancel_after, task)| {
        let turns_left = cancel_after.checked_sub(1);
        *cancel_after = turns_left.unwrap_or(0);
        turns_left.is_some() || {
            task.abort();
            false
        }
    });
}

fn expect_scripted_end(ended: Result<(), tokio::task::JoinError>) {
    if let Err(error) = ended {
        let scripted = error.is_cancelled() || error.to_string().contains("scripted failure");
        assert!(scripted, "{error}");
    }
}

fn config(cases: u32) -> ProptestConfig {
    ProptestConfig { cases, failure_persistence: None, ..ProptestConfig::default() }
}

proptest! {
    #![proptest_config(config(200))]

    #[test]
    fn no_slot_is_held_after_requests_end_in_any_way(scripts in scripts()) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        runtime.block_on(async {
            let time = ManualClock::default();
            let limiter = Limiter::builder().rules(rules(RULES)).clock(time.clock()).build();
            EndingsFixture::new(limiter).run_scripts(scripts, || time.advance(Span::from_micros(300))).await;
        });
    }
}

#[cfg(feature = "redis")]
#[test]
fn no_slot_is_held_in_redis_after_requests_end_in_any_way() {
    use tidegate::redis::{RedisConfig, RedisStore};
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
    let fixture = EndingsFixture::new(limiter);
    let mut runner = proptest::test_runner::TestRunner::new(config(40));
    let outcome = runner.run(&scripts(), |scripts| {
        runtime.block_on(async {
            // Reset the queue, since a client with a full queue would test nothing.
            for client in &CLIENTS[..CLIENTS.len() - 1] {
                let request = tidegate::Request::new().with("api_key", *client).unwrap();
                fixture.limiter.reset("slow", &request).await.unwrap();
            }
            fixture.run_scripts(scripts, || {}).await;
        });
        Ok(())
    });
    outcome.unwrap();
}
