//! What a client is told whose limit is in parts.

use tidegate_core::{Algorithm, Limit, Outcome, Span, Verdict};

use super::row::Row;
use crate::store::{Charge, StoreError};

/// What became of a request.
pub(super) enum End {
    Looked,
    Spent,
    /// With the shortest wait that a part has told for this cost.
    Denied(Option<Span>),
}

/// What the client is told: the limit as a whole, as far as its parts were seen.
///
/// # Errors
/// The request did not pass, and a part could not be asked.
pub(super) fn answer(
    charge: &Charge<'_>,
    row: &Row,
    end: &End,
    away: Option<StoreError>,
) -> Result<Outcome, StoreError> {
    let (limit, cost) = (charge.limit.capacity(), charge.cost.max(1));
    let seen = || row.seen.iter().flatten();
    // Those that were not asked are taken to be like the one that was charged: all are used alike.
    let charged = seen().find(|outcome| outcome.slip().is_some());
    let unseen = u64::try_from(row.parts.len() - seen().count()).unwrap_or(u64::MAX);
    let guess = charged.map_or(0, |outcome| outcome.remaining.saturating_mul(unseen));
    let most = match end {
        End::Looked => limit,
        End::Spent => limit.saturating_sub(cost),
        // Others were faster; what they took may be coming back.
        End::Denied(_) => limit.min(cost - 1),
    };
    let remaining = row.left().saturating_add(guess).min(most);
    let reset_after = seen().map(|outcome| outcome.reset_after).max().unwrap_or(Span::ZERO);
    let passes = match end {
        End::Looked => cost <= remaining,
        End::Spent => true,
        End::Denied(_) => false,
    };
    let verdict = match away {
        _ if passes => Verdict::Allow { delay: Span::ZERO, slip: None },
        Some(error) => return Err(error),
        None => {
            let told = match end {
                End::Denied(told) => *told,
                // A look asks for 1.
                End::Looked if cost == 1 => seen().filter_map(Outcome::retry_after).min(),
                End::Looked | End::Spent => None,
            };
            let wait = || together(charge.limit, cost, remaining, reset_after);
            let wait = told.unwrap_or_else(wait).max(Span::MICROSECOND);
            Verdict::Deny { retry_after: (cost <= limit).then_some(wait) }
        }
    };
    Ok(Outcome { limit, remaining, reset_after, verdict })
}

/// How long it takes, at a guess, until a cost fits into all parts together.
fn together(limit: &Limit, cost: u64, remaining: u64, reset_after: Span) -> Span {
    if limit.algorithm() != Algorithm::TokenBucket {
        return reset_after;
    }
    // As much as is missing comes back in its part of the time in which all of it does.
    let used = u128::from(limit.capacity().saturating_sub(remaining).max(1));
    let missing = u128::from(cost.saturating_sub(remaining));
    let wait = (u128::from(reset_after.as_micros()) * missing).div_ceil(used);
    Span::from_micros(u64::try_from(wait).unwrap_or(u64::MAX))
}
