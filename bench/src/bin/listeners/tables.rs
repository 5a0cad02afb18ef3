//! The tables: contenders and goals.

use tidegate_bench::host::SERVER_CORE;
use tidegate_bench::server::BenchServer;

use crate::contender::{Contender, GoalKind, ListenerGoal, ListenerTable};
use crate::load::{self, ListenerLoad};
use crate::peers::{self, PeerLimit};

pub(crate) const ALL: [ListenerTable; 10] = [
    ListenerTable {
        name: "http",
        title: "HTTP/1.1, 50 connections",
        is_pinned: true,
        contenders: http,
        goals: &[
            at_least(TIDEGATE, 1.0, "empty hyper"),
            at_least(TIDEGATE, 1.0, "NGINX limit_req"),
        ],
    },
    ListenerTable {
        name: "grpc_50x1",
        title: "gRPC, 50 connections x 1 stream",
        is_pinned: true,
        contenders: || grpc(50, 1),
        goals: &[at_least(TIDEGATE, 1.1, "empty tonic")],
    },
    ListenerTable {
        name: "grpc_4x64",
        title: "gRPC, 4 connections x 64 streams",
        is_pinned: true,
        contenders: || grpc(4, 64),
        goals: &[at_least(TIDEGATE, 1.2, "empty tonic")],
    },
    ListenerTable {
        name: "resp_1",
        title: "RESP, 50 connections, one at a time",
        is_pinned: true,
        contenders: || resp(1),
        goals: &[ListenerGoal { contender: TG_CHECK, kind: GoalKind::CpuMicros(6.0) }],
    },
    ListenerTable {
        name: "resp_16",
        title: "RESP, 50 connections, pipelines of 16",
        is_pinned: true,
        contenders: || resp(16),
        goals: &[
            at_least(TG_CHECK, 1.0, "redis GET"),
            at_least(TG_CHECK, 3.0, "redis-cell 0.2.2"),
            at_least(TG_CHECK, 6.0, THROTTLECRAB),
        ],
    },
    ListenerTable {
        name: "redis_grpc_50x1",
        title: "Envoy RLS through Redis, 50 connections x 1 stream",
        is_pinned: false,
        contenders: || redis_grpc(50, 1),
        goals: &[CPU_GOAL],
    },
    ListenerTable {
        name: "redis_grpc_4x64",
        title: "Envoy RLS through Redis, 4 connections x 64 streams",
        is_pinned: false,
        contenders: || redis_grpc(4, 64),
        goals: &[CPU_GOAL],
    },
    ListenerTable {
        name: "redis_http",
        title: "HTTP/1.1 through Redis, 50 connections",
        is_pinned: false,
        contenders: redis_http,
        goals: &[],
    },
    ListenerTable {
        name: "end_to_end",
        title: "End to end, with the load generator",
        is_pinned: false,
        contenders: end_to_end,
        goals: &[ListenerGoal { contender: PIPELINE_64, kind: GoalKind::ChecksPerSecond(1e6) }],
    },
    ListenerTable {
        name: "end_to_end_pinned",
        title: "End to end, one core for the load generator",
        is_pinned: true,
        contenders: end_to_end_pinned,
        goals: &[],
    },
];

const TIDEGATE: &str = "Tidegate";
const TG_CHECK: &str = "Tidegate TG.CHECK";
const EXACT: &str = "Tidegate, exact through Redis";
const RATELIMIT: &str = "envoyproxy/ratelimit";
const THROTTLECRAB: &str = "throttlecrab 0.4.40";
const PIPELINE_64: &str = "Tidegate, RESP TG.CHECK, pipelines of 64";
const BATCHES: &str = "Tidegate, HTTP batches of 100";
const CPU_GOAL: ListenerGoal =
    ListenerGoal { contender: EXACT, kind: GoalKind::CpuPart { base: RATELIMIT, part: 0.2 } };

const fn at_least(contender: &'static str, factor: f64, base: &'static str) -> ListenerGoal {
    ListenerGoal { contender, kind: GoalKind::Rate { base, factor } }
}

fn line(name: &'static str, server: Option<BenchServer>, load: ListenerLoad) -> Contender {
    Contender { name, server, load }
}

fn http() -> Vec<Contender> {
    let check = || ListenerLoad::http("/v1/check", load::CHECK_BODY);
    let throttle = ListenerLoad::http("/throttle", load::THROTTLE_BODY);
    let flexible = peers::rate_limiter_flexible(Some(SERVER_CORE), None, PeerLimit::NeverReached);
    vec![
        line("empty hyper", peers::empty("http"), check()),
        line(TIDEGATE, peers::tidegate("http"), check()),
        line("Tidegate before", peers::tidegate_before("http"), check()),
        line("Tidegate, /v1/authorize", peers::tidegate("http"), ListenerLoad::authorize()),
        line(THROTTLECRAB, peers::throttlecrab("http"), throttle),
        line("NGINX limit_req", peers::nginx(), ListenerLoad::get()),
        line("rate-limiter-flexible 11.4.0", flexible, ListenerLoad::get()),
    ]
}

fn rls(connections: u32, streams: u32) -> ListenerLoad {
    ListenerLoad::grpc(load::RLS_PATH, load::rate_limit_request(), connections, streams)
}

fn grpc(connections: u32, streams: u32) -> Vec<Contender> {
    let rls = || rls(connections, streams);
    let throttle = load::throttle_request();
    let throttle = ListenerLoad::grpc(load::THROTTLECRAB_PATH, throttle, connections, streams);
    vec![
        line("empty tonic", peers::empty("grpc"), rls()),
        line(TIDEGATE, peers::tidegate("grpc"), rls()),
        line("Tidegate before", peers::tidegate_before("grpc"), rls()),
        line(THROTTLECRAB, peers::throttlecrab("grpc"), throttle),
    ]
}

fn resp(pipeline: u32) -> Vec<Contender> {
    let load = |command| ListenerLoad::resp(pipeline, command);
    let redis = Some(peers::redis(Some(SERVER_CORE)));
    vec![
        line("redis GET", redis, load(load::GET_COMMAND)),
        line(TG_CHECK, peers::tidegate("resp"), load(load::TG_CHECK_COMMAND)),
        line(
            "Tidegate TG.CHECK before",
            peers::tidegate_before("resp"),
            load(load::TG_CHECK_COMMAND),
        ),
        line("Tidegate CL.THROTTLE", peers::tidegate("resp"), load(load::CL_THROTTLE_COMMAND)),
        line("redis-cell 0.2.2", peers::redis_cell(), load(load::CL_THROTTLE_COMMAND)),
        line(THROTTLECRAB, peers::throttlecrab("redis"), load(load::THROTTLECRAB_COMMAND)),
    ]
}

/// Starts a Redis, and a server on it.
fn on_redis(start: impl FnOnce(u16) -> Option<BenchServer>) -> Option<BenchServer> {
    let redis = peers::redis(None);
    Some(start(redis.port())?.with_resource(redis))
}

fn redis_grpc(connections: u32, streams: u32) -> Vec<Contender> {
    let limit = PeerLimit::NeverReached;
    let exact = on_redis(|redis| Some(peers::tidegate_on_redis("grpc", redis, limit)));
    let ratelimit = on_redis(|redis| peers::envoyproxy_ratelimit(redis, limit));
    let rls = || rls(connections, streams);
    vec![
        line(RATELIMIT, ratelimit, rls()),
        line(EXACT, exact, rls()),
        line("Tidegate in memory", peers::tidegate_unpinned("grpc"), rls()),
    ]
}

fn redis_http() -> Vec<Contender> {
    let limit = PeerLimit::NeverReached;
    let flexible = on_redis(|redis| peers::rate_limiter_flexible(None, Some(redis), limit));
    let exact = on_redis(|redis| Some(peers::tidegate_on_redis("http", redis, limit)));
    let check = ListenerLoad::http("/v1/check", load::CHECK_BODY);
    vec![
        line("rate-limiter-flexible 11.4.0", flexible, ListenerLoad::get()),
        line(EXACT, exact, check),
    ]
}

fn end_to_end() -> Vec<Contender> {
    let resp = || peers::tidegate_unpinned("resp");
    vec![
        line(
            "redis GET, pipelines of 64",
            Some(peers::redis(None)),
            ListenerLoad::resp(64, load::GET_COMMAND),
        ),
        line(PIPELINE_64, resp(), ListenerLoad::resp(64, load::TG_CHECK_COMMAND)),
        line(BATCHES, peers::tidegate_unpinned("http"), ListenerLoad::batch()),
    ]
}

fn end_to_end_pinned() -> Vec<Contender> {
    let redis = Some(peers::redis(Some(SERVER_CORE)));
    vec![
        line("redis GET, pipelines of 64", redis, ListenerLoad::resp(64, load::GET_COMMAND)),
        line(PIPELINE_64, peers::tidegate("resp"), ListenerLoad::resp(64, load::TG_CHECK_COMMAND)),
    ]
}
