//! `/v1/lab`: the simulator, for who wants to see what a limit makes of traffic.
//!
//! Nothing of this server is touched: limits, clients and time are made up. What one question may cost is
//! bounded before it is answered.

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

use crate::Admin;

/// Longest body in bytes: some twenty numbers.
const MAX_BODY: usize = 16 * 1024;
/// Most work of one simulation, in requests times limits on one node: a few tenths of a second.
const MOST_WORK: u64 = 500_000;
/// Longest that a simulated time may be.
const HOUR: u64 = 3_600_000;

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

/// Answers `POST /v1/lab`.
pub(crate) async fn answer(admin: &Admin, request: Request<Incoming>) -> Response<Body> {
    if let Some(refusal) = response::require_post(request.method()) {
        return refusal;
    }
    let body = match read_body(request, MAX_BODY).await {
        Ok(body) => body,
        Err(refusal) => return refusal,
    };
    let asked = match Json::read(&body).and_then(read) {
        Ok(asked) => asked,
        Err(fault) => return response::call_error(&fault),
    };
    let plan = match asked.plan() {
        Ok(plan) => plan,
        Err(unfit) => return response::problem(StatusCode::BAD_REQUEST, &unfit.to_string()),
    };
    let work = plan.work();
    if work > MOST_WORK {
        let wanted = format!("at most {MOST_WORK}: less rate, time, clients, nodes or syncs");
        return response::call_error(&CallError::invalid("body", format!("{work} steps"), wanted));
    }
    // Who drags a slider has several on their way; they take turns.
    let Ok(_room) = admin.labs.acquire().await else {
        return response::overloaded("the server is going down");
    };
    let clock = admin.service.clock();
    let started = clock.now();
    match ran(plan).await {
        Some(report) => {
            let took_micros = clock.now().since(started).as_micros();
            response::json(200, JSON, &LabReport { result: report.result, took_micros })
        }
        None => response::problem(StatusCode::INTERNAL_SERVER_ERROR, "the simulation broke off"),
    }
}

/// Runs a plan where nobody waits for it: on a thread of its own, which knows no runtime. What nodes
/// do in the background belongs to the simulation.
async fn ran(plan: SimulationPlan) -> Option<SimulationReport> {
    let (told, report) = tokio::sync::oneshot::channel();
    let thread = std::thread::Builder::new().name("tidegate-lab".to_owned());
    let spawned = thread.spawn(move || {
        // Whoever asked may be gone.
        let _ = told.send(plan.run(&mut |_| {}));
    });
    spawned.ok()?;
    report.await.ok()
}

/// Reads what is to be simulated; whatever is not said has a default.
fn read(json: Json<'_>) -> Result<SimulationSpec, CallError> {
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
    let number = |name: &str, json: Option<Json<'_>>, usual: u64, (least, most)| match json {
        None => Ok(usual),
        Some(Json::Whole(number)) if (least..=most).contains(&number) => Ok(number),
        Some(other) => {
            let wanted = format!("a whole number from {least} to {most}");
            Err(CallError::invalid(name, other.shown(), wanted))
        }
    };
    let millis =
        |name: &str, json, usual, range| number(name, json, usual, range).map(Span::from_millis);
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
    let window = millis("windowMillis", window, 1_000, (10, HOUR))?;
    // The lines of one node that keeps the limit exactly do not name the accuracy.
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
        max_ahead: max_ahead.map_or(Ok(MaxAhead::default()), ahead)?,
        sync_phase: SyncPhase::Together,
        on_store_failure: Vec::new(),
        faults: FaultPlan::default(),
        workload: Workload {
            traffic: traffic.map_or(Ok(TrafficKind::Boundary), |json| word("traffic", json))?,
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
            length: Some(millis("lengthMillis", length, 2_000, (1, HOUR))?),
            seed: number("seed", seed, 1, (0, u64::MAX))?,
        },
    })
}

/// A word of a list, as the command line has it.
fn word<T: ValueEnum>(place: &str, json: Json<'_>) -> Result<T, CallError> {
    let text = text(place, json)?;
    T::from_str(&text, false).map_err(|_| {
        let known = T::value_variants().iter().filter_map(T::to_possible_value);
        let known: Vec<String> = known.map(|value| value.get_name().to_owned()).collect();
        CallError::invalid(place, quote(&text), format!("one of {}", known.join(", ")))
    })
}

fn algorithm_kinds(json: Json<'_>) -> Result<Vec<AlgorithmKind>, CallError> {
    let most = AlgorithmKind::value_variants().len();
    match json {
        Json::List(items) if (1..=most).contains(&items.len()) => {
            items.into_iter().map(|item| word("algorithms", item)).collect()
        }
        Json::List(items) => Err(CallError::invalid(
            "algorithms",
            format!("{} of them", items.len()),
            format!("from 1 to {most}"),
        )),
        other => Err(CallError::invalid("algorithms", other.shown(), "a list of algorithms")),
    }
}

fn ahead(json: Json<'_>) -> Result<MaxAhead, CallError> {
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
