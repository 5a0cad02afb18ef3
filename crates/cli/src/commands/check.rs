//! `tidegate check`: requests one decision from a running server.

use clap::Args;
use serde::Serialize;
use serde_json::{Map, Value};
use tidegate_api::{CheckRequest, DecisionBody, ProblemBody};
use tidegate_net::client::{ClientResponse, HttpClient};

use crate::commands::{CommandError, CommandOutput, ExitStatus, block_on};

/// Requests one decision from a running server. The cost is charged.
///
/// Prints the reply as JSON. Exit status: 0 allowed, 1 denied, 2 no decision.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct CheckCommand {
    /// Name of the rule. Only this rule is checked, and its match is ignored
    rule: String,

    /// The client: the value of the rule's `per` attribute, or a JSON object if `per` has several.
    /// Not needed for a rule without `per`
    client: Option<String>,

    /// Cost of the check; 0 is a peek and charges nothing
    #[arg(long, value_name = "N", default_value_t = 1)]
    cost: u64,

    /// URL of the HTTP listener
    #[arg(long, value_name = "URL", value_parser = crate::config::http_client, default_value = "http://127.0.0.1:8080")]
    server: HttpClient,
}

const EXAMPLES: &str = "\
Examples:
  tidegate check per-key alice
  tidegate check per-key alice --cost 0
  tidegate check per-user-and-path '{\"user\": \"alice\", \"path\": \"/v1/orders\"}'
  tidegate check global --server http://10.0.0.5:8080 && deploy";

impl CheckCommand {
    pub(crate) fn run(self, output: &mut CommandOutput<'_>) -> Result<ExitStatus, CommandError> {
        let client = self.client.map(|client| {
            let parts = client.starts_with('{').then(|| serde_json::from_str::<Map<_, _>>(&client));
            match parts {
                Some(Ok(parts)) => Value::Object(parts),
                _ => Value::String(client),
            }
        });
        let request =
            CheckRequest { rule: Some(self.rule), client, attributes: None, cost: Some(self.cost) };
        let reply = post_check(&self.server, &request)?;
        if !matches!(reply.status, 200 | 429) {
            let ProblemBody::<String> { mut detail, .. } =
                serde_json::from_str(&reply.body).unwrap_or_default();
            if detail.is_empty() {
                detail = reply.body.trim().to_owned();
            }
            return Err(CommandError::failed(format_args!("{detail} (status {})", reply.status)));
        }
        let decision: DecisionBody = serde_json::from_str(&reply.body).unwrap_or_default();
        output.data(reply.body);
        output.note(summary(reply.status == 200, &decision));
        Ok(if reply.status == 200 { ExitStatus::Success } else { ExitStatus::Negative })
    }
}

/// Sends a check to the HTTP listener.
pub(crate) fn post_check<C: Serialize>(
    server: &HttpClient,
    request: &CheckRequest<String, C>,
) -> Result<ClientResponse, CommandError> {
    let body = serde_json::to_string(request).map_err(CommandError::failed)?;
    Ok(block_on(server.post("/v1/check", body))??)
}

/// Returns a summary: `allowed by "per-key", 4 of 5 left`.
fn summary(allowed: bool, decision: &DecisionBody) -> String {
    let DecisionBody { limit: Some(limit), remaining: Some(remaining), rule: Some(rule), .. } =
        decision
    else {
        return match (allowed, decision.blocked, decision.retry_after.flatten()) {
            (true, ..) if decision.allow_listed => {
                "allowed, the client is on the allow list".to_owned()
            }
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
