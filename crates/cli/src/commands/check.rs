//! `tidegate check`: one decision by a running server.

use clap::Args;
use serde::Deserialize;
use serde_json::{Map, Value, json};
use tidegate_net::client::HttpClient;

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

/// The members of an answer that a person wants to read.
#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct Decided {
    pub(super) limit: Option<u64>,
    pub(super) remaining: Option<u64>,
    pub(super) retry_after: Option<u64>,
    pub(super) rule: Option<String>,
    pub(super) detail: Option<String>,
    pub(super) blocked: bool,
}

impl Check {
    pub(super) fn run(self, output: &mut Output<'_>) -> Result<Ending, Failure> {
        let mut body = json!({"rule": self.rule, "cost": self.cost});
        if let Some(client) = self.client {
            let parts = client.starts_with('{').then(|| serde_json::from_str::<Map<_, _>>(&client));
            body["client"] = match parts {
                Some(Ok(parts)) => Value::Object(parts),
                _ => Value::String(client),
            };
        }
        let answer = waiting(self.server.post("/v1/check", body.to_string()))??;
        let decided: Decided = serde_json::from_str(&answer.body).unwrap_or_default();
        match answer.status {
            200 | 429 => {}
            status => {
                let detail = decided.detail.unwrap_or_else(|| answer.body.trim().to_owned());
                return Err(Failure::failed(format_args!("{detail} (status {status})")));
            }
        }
        output.data(answer.body);
        output.note(summary(answer.status == 200, &decided));
        Ok(if answer.status == 200 { Ending::Fine } else { Ending::No })
    }
}

/// `allowed by "per-key", 4 of 5 left`.
fn summary(allowed: bool, decided: &Decided) -> String {
    let Decided { limit: Some(limit), remaining: Some(remaining), rule: Some(rule), .. } = decided
    else {
        return match (allowed, decided.blocked, decided.retry_after) {
            (true, ..) => "allowed, no limit applies".to_owned(),
            (false, true, Some(wait)) => {
                format!("denied, the client is blocked, try again in {wait} s")
            }
            (false, ..) => "denied".to_owned(),
        };
    };
    match (allowed, decided.retry_after) {
        (true, _) => format!("allowed by {rule:?}, {remaining} of {limit} left"),
        (false, Some(wait)) => {
            format!("denied by {rule:?}, {remaining} of {limit} left, try again in {wait} s")
        }
        (false, None) => {
            format!("denied by {rule:?}, which never admits more than {limit} at once")
        }
    }
}
