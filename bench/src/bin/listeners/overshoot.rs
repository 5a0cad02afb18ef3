//! Overload of every limiter that decides for other programs: the admissions are counted.

use tidegate_bench::measure::progress;
use tidegate_bench::overshoot::{OvershootRun, OvershootTable, TOTAL_CONNECTIONS, TOTAL_REQUESTS};
use tidegate_bench::server::BenchServer;
use tidegate_proto::envoy::extensions::common::ratelimit::v3::{
    RateLimitDescriptor, rate_limit_descriptor::Entry,
};
use tidegate_proto::envoy::service::ratelimit::v3::RateLimitRequest;
use tidegate_proto::envoy::service::ratelimit::v3::rate_limit_response::Code;
use tidegate_proto::envoy::service::ratelimit::v3::rate_limit_service_client::RateLimitServiceClient;
use tonic::transport::Endpoint;

use crate::peers::{self, PeerLimit};

const CL_THROTTLE: &[&str] = &["CL.THROTTLE", "client", "999", "1000", "3600"];
const THROTTLE: &[&str] = &["THROTTLE", "client", "1000", "1000", "3600"];
const TG_CHECK: &[&str] = &["TG.CHECK", "api", "client"];

pub(crate) fn print_table() {
    let limit = PeerLimit::Hourly;
    let mut table = OvershootTable::new("overshoot");
    let mut add = |name: &str, nodes: usize, count: Option<OvershootRun>| {
        progress(&format!("overshoot: {name}"));
        table.add(name, nodes, count);
    };
    let tidegate = peers::tidegate_with_hourly_limit("resp");
    add("Tidegate in memory, TG.CHECK", 1, Some(over_resp(&[tidegate], TG_CHECK, 0)));
    let tidegate = peers::tidegate_with_hourly_limit("resp");
    add("Tidegate in memory, CL.THROTTLE", 1, Some(over_resp(&[tidegate], CL_THROTTLE, 0)));
    let redis = peers::redis(None);
    let tidegate = [0, 1].map(|_| peers::tidegate_on_redis("resp", redis.port(), limit));
    add("Tidegate, exact through Redis, TG.CHECK", 2, Some(over_resp(&tidegate, TG_CHECK, 0)));
    let redis = peers::redis(None);
    let tidegate = [0, 1].map(|_| peers::tidegate_on_redis("grpc", redis.port(), limit));
    add("Tidegate, exact through Redis, Envoy RLS", 2, Some(over_rls(&tidegate)));
    let cell = peers::redis_cell().map(|server| over_resp(&[server], CL_THROTTLE, 0));
    add("redis-cell 0.2.2", 1, cell);
    let throttlecrab = peers::throttlecrab("redis").map(|server| over_resp(&[server], THROTTLE, 1));
    add("throttlecrab 0.4.40", 1, throttlecrab);
    let redis = peers::redis(None);
    let nodes = [0, 1].map(|_| peers::envoyproxy_ratelimit(redis.port(), limit));
    let ratelimit: Option<Vec<BenchServer>> = nodes.into_iter().collect();
    add("envoyproxy/ratelimit", 2, ratelimit.map(|servers| over_rls(&servers)));
    let redis = peers::redis(None);
    let nodes = [0, 1].map(|_| peers::rate_limiter_flexible(None, Some(redis.port()), limit));
    let flexible: Option<Vec<BenchServer>> = nodes.into_iter().collect();
    add("rate-limiter-flexible 11.4.0 on Redis", 2, flexible.map(|servers| over_http(&servers)));
    progress("");
    table.print("every listener, admissions over the limit");
}

fn over_http(servers: &[BenchServer]) -> OvershootRun {
    let url = |server: &BenchServer| format!("http://127.0.0.1:{}/?user=client", server.port());
    OvershootRun::over_http(&servers.iter().map(url).collect::<Vec<_>>())
}

/// Sends the requests by threads with a connection each. `allowed` is the first number of the reply to an admitted command.
fn over_resp(servers: &[BenchServer], command: &[&str], allowed: i64) -> OvershootRun {
    let share = TOTAL_REQUESTS / TOTAL_CONNECTIONS;
    let connections: Vec<redis::Connection> = (0..TOTAL_CONNECTIONS as usize)
        .map(|index| {
            let port = servers[index % servers.len()].port();
            let client = redis::Client::open(format!("redis://127.0.0.1:{port}")).unwrap();
            client.get_connection().unwrap()
        })
        .collect();
    OvershootRun::measure(|| {
        let admitted = std::thread::scope(|scope| {
            let callers: Vec<_> = connections
                .into_iter()
                .map(|mut connection| {
                    scope.spawn(move || {
                        let (name, arguments) = command.split_first().unwrap();
                        let mut command = redis::cmd(name);
                        command.arg(arguments);
                        let mut is_admitted = || {
                            let reply: Vec<i64> = command.query(&mut connection).unwrap();
                            reply[0] == allowed
                        };
                        (0..share).filter(|_| is_admitted()).count() as u64
                    })
                })
                .collect();
            callers.into_iter().map(|caller| caller.join().unwrap()).sum()
        });
        (share * TOTAL_CONNECTIONS, admitted)
    })
}

/// Sends the requests by calls of Envoy's rate limit service, with one call at a time on each connection.
fn over_rls(servers: &[BenchServer]) -> OvershootRun {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    let share = TOTAL_REQUESTS / TOTAL_CONNECTIONS;
    let entry = Entry { key: "user".to_owned(), value: "client".to_owned() };
    let descriptor = RateLimitDescriptor { entries: vec![entry], ..RateLimitDescriptor::default() };
    let request = RateLimitRequest {
        domain: "bench".to_owned(),
        descriptors: vec![descriptor],
        ..RateLimitRequest::default()
    };
    OvershootRun::measure(|| {
        let callers: Vec<_> = (0..TOTAL_CONNECTIONS as usize)
            .map(|index| {
                let (port, request) = (servers[index % servers.len()].port(), request.clone());
                runtime.spawn(async move {
                    let endpoint = Endpoint::from_shared(format!("http://127.0.0.1:{port}"));
                    let channel = endpoint.unwrap().connect().await.unwrap();
                    let mut client = RateLimitServiceClient::new(channel);
                    let mut admitted = 0;
                    for _ in 0..share {
                        let response = client.should_rate_limit(request.clone()).await.unwrap();
                        admitted += u64::from(response.into_inner().overall_code() == Code::Ok);
                    }
                    admitted
                })
            })
            .collect();
        let admitted = callers.into_iter().map(|caller| runtime.block_on(caller).unwrap()).sum();
        (share * TOTAL_CONNECTIONS, admitted)
    })
}
