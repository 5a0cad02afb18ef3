//! `tidegate check`: one decision by a running server.

use clap::Args;
use serde::Serialize;
use serde_json::{Map, Value};
use tidegate_api::{CheckRequest, DecisionBody, ProblemBody};
use tidegate_net::client::{ClientResponse, HttpClient};

use crate::commands::{Ending, Failure, Output, waiting};

/// Asks a running server for one decision, and charges it.
///
/// The answer is printed as JSON. Exit status: 0 allowed, 1 denied, 2 no decision.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Check {
    /// The rule to check, alone and whatever its match says
    rule: String,

    /// Who comes: the value of the attribute that the rule counts by, or a JSON object of
    /// attributes when there are several. Not needed for a rule with one bucket for all
    client: Option<String>,

    /// What it costs; 0 looks without spending
    #[arg(long, value_name = "N", default_value_t = 1)]
    cost: u64,

    /// The server to ask
    #[arg(long, value_name = "URL", value_parser = crate::config::http_client, default_value = "http://127.0.0.1:8080")]
    server: HttpClient,
}

const EXAMPLES: &str = "\
Examples:
  tidegate check per-key alice
  tidegate check per-key alice --cost 0
  tidegate check per-user-and-path '{\"user\": \"alice\", \"path\": \"/v1/orders\"}'
  tidegate check global --server http://10.0.0.5:8080 && deploy";

impl Check {
    pub(crate) fn run(self, output: &mut Output<'_>) -> Result<Ending, Failure> {
        let client = self.client.map(|client| {
            let parts = client.starts_with('{').then(|| serde_json::from_str::<Map<_, _>>(&client));
            match parts {
                Some(Ok(parts)) => Value::Object(parts),
                _ => Value::String(client),
            }
        });
        let request =
            CheckRequest { rule: Some(self.rule), client, attributes: None, cost: Some(self.cost) };
        let answer = post_check(&self.server, &request)?;
        if !matches!(answer.status, 200 | 429) {
            let ProblemBody::<String> { mut detail, .. } =
                serde_json::from_str(&answer.body).unwrap_or_default();
            if detail.is_empty() {
                detail = answer.body.trim().to_owned();
            }
            return Err(Failure::failed(format_args!("{detail} (status {})", answer.status)));
        }
        let decision: DecisionBody = serde_json::from_str(&answer.body).unwrap_or_default();
        output.data(answer.body);
        output.note(summary(answer.status == 200, &decision));
        Ok(if answer.status == 200 { Ending::Fine } else { Ending::No })
    }
}

/// Sends a check.
pub(crate) fn post_check<C: Serialize>(
    server: &HttpClient,
    request: &CheckRequest<String, C>,
) -> Result<ClientResponse, Failure> {
    let body = serde_json::to_string(request).map_err(Failure::failed)?;
    Ok(waiting(server.post("/v1/check", body))??)
}

/// `allowed by "per-key", 4 of 5 left`.
fn summary(allowed: bool, decision: &DecisionBody) -> String {
    let DecisionBody { limit: Some(limit), remaining: Some(remaining), rule: Some(rule), .. } =
        decision
    else {
        return match (allowed, decision.blocked, decision.retry_after.flatten()) {
            (true, ..) => "allowed, no limit applies".to_owned(),
            (false, true, Some(wait)) => {
                format!("denied, the client is blocked, try again in {wait} s")
            }
            (false, ..) => "denied".to_owned(),
        };
    };
    match (allowed, decision.retry_after.flatten()) {
        (true, _) => format!("allowed by {rule:?}, {remaining} of {limit} left"),
        (false, Some(wait)) => {
            format!("denied by {rule:?}, {remaining} of {limit} left, try again in {wait} s")
        }
        (false, None) => {
            format!("denied by {rule:?}, which never admits more than {limit} at once")
        }
    }
}
