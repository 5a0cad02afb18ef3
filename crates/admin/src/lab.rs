//! `/v1/lab`: simulations of limits under traffic.
//!
//! Limits, clients and time are simulated; the state of this server does not change. The work of a simulation is bounded
//! before it runs.

use clap::ValueEnum;
use hyper::body::Incoming;
use hyper::{Request, Response, StatusCode};
use tidegate_api::LabReport;
use tidegate_core::{CallError, Quota, Span, quote};
use tidegate_net::http::json::{Json, fields, text};
use tidegate_net::http::response::{self, Body, JSON};
use tidegate_net::http1::read_body;
use tidegate_rules::{MaxAhead, SyncInterval};
use tidegate_sim::{
    AccuracyKind, AlgorithmKind, FaultPlan, SimulationPlan, SimulationReport, SimulationSpec,
    SyncPhase, TrafficKind, Workload,
};

use crate::AdminApi;

/// Most bytes of a body: some twenty numbers.
const MAX_BODY_BYTES: usize = 16 * 1024;
/// Most work of one simulation, in requests times limits on one node: a few tenths of a second.
const MAX_WORK: u64 = 500_000;
/// Longest simulated time in milliseconds: one hour.
const MAX_SIMULATED_MILLIS: u64 = 3_600_000;

const FIELDS: [&str; 15] = [
    "traffic",
    "algorithms",
    "limit",
    "windowMillis",
    "burst",
    "attackPercent",
    "count",
    "rate",
    "clients",
    "nodes",
    "accuracy",
    "syncMillis",
    "maxAhead",
    "lengthMillis",
    "seed",
];

/// Handles `POST /v1/lab`.
pub(crate) async fn handle(admin: &AdminApi, request: Request<Incoming>) -> Response<Body> {
    if let Some(rejection) = response::require_post(request.method()) {
        return rejection;
    }
    let body = match read_body(request, MAX_BODY_BYTES).await {
        Ok(body) => body,
        Err(rejection) => return rejection,
    };
    let spec = match Json::read(&body).and_then(parse_spec) {
        Ok(spec) => spec,
        Err(error) => return response::call_error(&error),
    };
    let plan = match spec.plan() {
        Ok(plan) => plan,
        Err(error) => return response::problem(StatusCode::BAD_REQUEST, &error.to_string()),
    };
    let work = plan.work();
    if work > MAX_WORK {
        let wanted = format!("at most {MAX_WORK}: less rate, time, clients, nodes or syncs");
        return response::call_error(&CallError::invalid("body", format!("{work} steps"), wanted));
    }
    // A page that drags a slider sends several requests at once; they are queued.
    let Ok(_permit) = admin.simulations.acquire().await else {
        return response::overloaded("the server is shutting down");
    };
    let clock = admin.service.clock();
    let started = clock.now();
    match run_plan(plan).await {
        Some(report) => {
            let took_micros = clock.now().since(started).as_micros();
            response::json(200, JSON, &LabReport { result: report.result, took_micros })
        }
        None => response::problem(StatusCode::INTERNAL_SERVER_ERROR, "the simulation failed"),
    }
}

/// Runs a plan on a new thread without a runtime, so that it blocks no other request and the background tasks of
/// simulated nodes run in virtual time. Returns `None` if the thread can't be started or panics.
async fn run_plan(plan: SimulationPlan) -> Option<SimulationReport> {
    let (sender, report) = tokio::sync::oneshot::channel();
    let thread = std::thread::Builder::new().name("tidegate-lab".to_owned());
    let spawned = thread.spawn(move || {
        // The client may have disconnected.
        let _ = sender.send(plan.run(&mut |_| {}));
    });
    spawned.ok()?;
    report.await.ok()
}

/// Parses the simulation of a body. Every field has a default.
fn parse_spec(json: Json<'_>) -> Result<SimulationSpec, CallError> {
    let wanted = FIELDS.join(", ");
    let [
        traffic,
        algorithms,
        limit,
        window,
        burst,
        percent,
        count,
        rate,
        clients,
        nodes,
        accuracy,
        sync,
        max_ahead,
        length,
        seed,
    ] = fields(json, FIELDS, &wanted)?;
    let number = |name: &str, json: Option<Json<'_>>, default: u64, (min, max)| match json {
        None => Ok(default),
        Some(Json::Whole(number)) if (min..=max).contains(&number) => Ok(number),
        Some(other) => {
            let wanted = format!("a whole number from {min} to {max}");
            Err(CallError::invalid(name, other.shown(), wanted))
        }
    };
    let millis = |name: &str, json, default, range| {
        number(name, json, default, range).map(Span::from_millis)
    };
    let nodes = number("nodes", nodes, 1, (1, 50))?;
    let every = SyncInterval::RANGE;
    let every = (every.0.as_micros() / 1_000, every.1.as_micros() / 1_000);
    let every = millis("syncMillis", sync, 200, every)?;
    let accuracy = accuracy.map_or(Ok(AccuracyKind::Exact), |json| {
        let text = text("accuracy", json)?;
        AccuracyKind::from_str(&text, false).map_err(|_| {
            CallError::invalid("accuracy", quote(&text), "exact, leased, synced or split")
        })
    })?;
    let amount = number("limit", limit, 20, (1, 1_000_000))?;
    let window = millis("windowMillis", window, 1_000, (10, MAX_SIMULATED_MILLIS))?;
    // With one node and exact limits, the names of the results do not contain the accuracy.
    let names_accuracy = nodes > 1 || accuracy != AccuracyKind::Exact;
    let is_synced = accuracy == AccuracyKind::Synced;
    Ok(SimulationSpec {
        quota: Quota::per(amount, window),
        algorithms: match algorithms {
            None => vec![AlgorithmKind::FixedWindow, AlgorithmKind::SlidingLog],
            Some(algorithms) => algorithm_kinds(algorithms)?,
        },
        burst: burst.map(|burst| number("burst", Some(burst), 1, (1, 1_000_000))).transpose()?,
        queue: None,
        accuracies: names_accuracy.then_some(accuracy).into_iter().collect(),
        sync_intervals: is_synced.then_some(every).into_iter().collect(),
        max_ahead: max_ahead.map_or(Ok(MaxAhead::default()), parse_max_ahead)?,
        sync_phase: SyncPhase::Together,
        on_store_failure: Vec::new(),
        faults: FaultPlan::default(),
        workload: Workload {
            traffic: traffic
                .map_or(Ok(TrafficKind::Boundary), |json| parse_variant("traffic", json))?,
            attack_percent: number(
                "attackPercent",
                percent,
                Workload::DEFAULT_ATTACK_PERCENT,
                (0, 99),
            )?,
            burst_size: number("count", count, Workload::DEFAULT_BURST_SIZE, (1, 100_000))?,
            rate: Quota::per_second(number("rate", rate, 50, (1, 100_000))?),
            clients: number("clients", clients, 1, (1, 10_000))?,
            nodes,
            length: Some(millis("lengthMillis", length, 2_000, (1, MAX_SIMULATED_MILLIS))?),
            seed: number("seed", seed, 1, (0, u64::MAX))?,
        },
    })
}

/// Parses a variant by its name on the command line.
fn parse_variant<T: ValueEnum>(path: &str, json: Json<'_>) -> Result<T, CallError> {
    let text = text(path, json)?;
    T::from_str(&text, false).map_err(|_| {
        let known = T::value_variants().iter().filter_map(T::to_possible_value);
        let known: Vec<String> = known.map(|value| value.get_name().to_owned()).collect();
        CallError::invalid(path, quote(&text), format!("one of {}", known.join(", ")))
    })
}

fn algorithm_kinds(json: Json<'_>) -> Result<Vec<AlgorithmKind>, CallError> {
    let max = AlgorithmKind::value_variants().len();
    match json {
        Json::List(items) if (1..=max).contains(&items.len()) => {
            items.into_iter().map(|item| parse_variant("algorithms", item)).collect()
        }
        Json::List(items) => Err(CallError::invalid(
            "algorithms",
            format!("{} of them", items.len()),
            format!("from 1 to {max}"),
        )),
        other => Err(CallError::invalid("algorithms", other.shown(), "a list of algorithms")),
    }
}

fn parse_max_ahead(json: Json<'_>) -> Result<MaxAhead, CallError> {
    match json {
        Json::Whole(tokens @ 1..) => Ok(MaxAhead::Tokens(tokens)),
        Json::Text(word) if word == "unbounded" => Ok(MaxAhead::Unbounded),
        other => Err(CallError::invalid(
            "maxAhead",
            other.shown(),
            "a number above 0, unbounded or null",
        )),
    }
}

#[cfg(test)]
mod tests;
