//! `/v1/lab`: the simulator, for who wants to see what a limit makes of traffic.
//!
//! Nothing of this server is touched: limits, clients and time are made up. What one question may cost is
//! bounded before it is answered.

use clap::ValueEnum;
use hyper::body::Incoming;
use hyper::{Request, Response, StatusCode};
use serde::Serialize;
use tidegate::rule::{Accuracy, Every, MaxAhead, Synced};
use tidegate::{Quota, Span};

use super::Admin;
use crate::service::{Fault, quoted};
use crate::simulate::{Asked, Counting, Crowd, LATE, MANY, Phase, Plan, Report, Traffic, Weather};
use crate::transport::http::body;
use crate::transport::http::encode::{self, Body, JSON};
use crate::transport::http::json::{Json, fields, text};

/// Longest body in bytes: some twenty numbers.
const MAX_BODY: usize = 16 * 1024;
/// Most that is simulated for one question, in requests times limits: a fraction of a tenth of a second.
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

/// What was found, and how long that took.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Found {
    #[serde(flatten)]
    report: Report,
    took_micros: u64,
}

/// Answers `POST /v1/lab`.
pub(super) async fn answer(admin: &Admin, request: Request<Incoming>) -> Response<Body> {
    if let Some(refusal) = encode::unless_post(request.method()) {
        return refusal;
    }
    let body = match body::read(request, MAX_BODY).await {
        Ok(body) => body,
        Err(refusal) => return refusal,
    };
    let asked = match Json::read(&body).and_then(read) {
        Ok(asked) => asked,
        Err(fault) => return encode::fault(&fault),
    };
    let plan = match asked.plan() {
        Ok(plan) => plan,
        Err(unfit) => return encode::problem(StatusCode::BAD_REQUEST, &unfit.to_string()),
    };
    let work = plan.work();
    if work > MOST_WORK {
        let wanted = format!("at most {MOST_WORK}: less rate, time, clients, nodes or syncs");
        return encode::fault(&Fault::invalid("body", format!("{work} steps"), wanted));
    }
    // Who drags a slider has several on their way; they take turns.
    let Ok(_room) = admin.labs.acquire().await else {
        return encode::overloaded("the server is going down");
    };
    let clock = admin.service.clock();
    let started = clock.now();
    match ran(plan).await {
        Some(report) => {
            let took_micros = clock.now().since(started).as_micros();
            encode::json(200, JSON, &Found { report, took_micros })
        }
        None => encode::problem(StatusCode::INTERNAL_SERVER_ERROR, "the simulation broke off"),
    }
}

/// Runs a plan where nobody waits for it: on a thread of its own, which knows no runtime. What nodes
/// do in the background belongs to the simulation.
async fn ran(plan: Plan) -> Option<Report> {
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
fn read(json: Json<'_>) -> Result<Asked, Fault> {
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
            Err(Fault::invalid(name, other.shown(), wanted))
        }
    };
    let millis =
        |name: &str, json, usual, range| number(name, json, usual, range).map(Span::from_millis);
    let nodes = number("nodes", nodes, 1, (1, 50))?;
    let every = Every::RANGE;
    let every = (every.0.as_micros() / 1_000, every.1.as_micros() / 1_000);
    let every = millis("syncMillis", sync, 200, every)?;
    let synced = Synced {
        every: Every::new(every).unwrap_or_default(),
        max_ahead: max_ahead.map_or(Ok(MaxAhead::default()), ahead)?,
    };
    let accuracy = match accuracy.map(|json| text("accuracy", json)).transpose()?.as_deref() {
        None | Some("exact") => Accuracy::Exact,
        Some("leased") => Accuracy::Leased,
        Some("synced") => Accuracy::Synced(synced),
        Some("split") => Accuracy::Split,
        Some(other) => {
            let wanted = "exact, leased, synced or split";
            return Err(Fault::invalid("accuracy", quoted(other), wanted));
        }
    };
    let amount = number("limit", limit, 20, (1, 1_000_000))?;
    let window = millis("windowMillis", window, 1_000, (10, HOUR))?;
    Ok(Asked {
        quota: Quota::per(amount, window),
        countings: match algorithms {
            None => vec![Counting::FixedWindow, Counting::SlidingLog],
            Some(algorithms) => countings(algorithms)?,
        },
        burst: burst.map(|burst| number("burst", Some(burst), 1, (1, 1_000_000))).transpose()?,
        queue: None,
        // A fleet is told apart by how it keeps the limit.
        accuracies: if nodes > 1 { vec![accuracy] } else { only(accuracy) },
        phase: Phase::Together,
        on_store_failure: Vec::new(),
        weather: Weather::default(),
        crowd: Crowd {
            traffic: traffic.map_or(Ok(Traffic::Boundary), |json| word("traffic", json))?,
            percent: number("attackPercent", percent, LATE, (0, 99))?,
            count: number("count", count, MANY, (1, 100_000))?,
            rate: Quota::per_second(number("rate", rate, 50, (1, 100_000))?),
            clients: number("clients", clients, 1, (1, 10_000))?,
            nodes,
            length: Some(millis("lengthMillis", length, 2_000, (1, HOUR))?),
            seed: number("seed", seed, 1, (0, u64::MAX))?,
        },
    })
}

/// One node keeps a limit exactly unless something else is wanted.
fn only(accuracy: Accuracy) -> Vec<Accuracy> {
    if accuracy == Accuracy::Exact { Vec::new() } else { vec![accuracy] }
}

/// A word of a list, as the command line has it.
fn word<T: ValueEnum>(place: &str, json: Json<'_>) -> Result<T, Fault> {
    let text = text(place, json)?;
    T::from_str(&text, false).map_err(|_| {
        let known = T::value_variants().iter().filter_map(T::to_possible_value);
        let known: Vec<String> = known.map(|value| value.get_name().to_owned()).collect();
        Fault::invalid(place, quoted(&text), format!("one of {}", known.join(", ")))
    })
}

fn countings(json: Json<'_>) -> Result<Vec<Counting>, Fault> {
    let most = Counting::value_variants().len();
    match json {
        Json::List(items) if (1..=most).contains(&items.len()) => {
            items.into_iter().map(|item| word("algorithms", item)).collect()
        }
        Json::List(items) => Err(Fault::invalid(
            "algorithms",
            format!("{} of them", items.len()),
            format!("from 1 to {most}"),
        )),
        other => Err(Fault::invalid("algorithms", other.shown(), "a list of algorithms")),
    }
}

fn ahead(json: Json<'_>) -> Result<MaxAhead, Fault> {
    match json {
        Json::Whole(tokens @ 1..) => Ok(MaxAhead::Tokens(tokens)),
        Json::Text(word) if word == "unbounded" => Ok(MaxAhead::Unbounded),
        other => {
            Err(Fault::invalid("maxAhead", other.shown(), "a number above 0, unbounded or null"))
        }
    }
}

#[cfg(test)]
mod tests;
