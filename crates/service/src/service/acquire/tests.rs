use proptest::prelude::*;
use tidegate_core::{HeaderStyle, Request};
use tidegate_limiter::{Limiter, ManualClock, MemoryStore};
use tidegate_rules::RuleSet;

use super::*;

const RULES: &str = "
rules:
  - {name: exports, match: {path: /exports}, per: [user], limit: 2 in flight, hold: 30s}
  - {name: all-exports, match: {path: /exports}, limit: 3 in flight, hold: 10s}
  - {name: api, per: [user], limit: 100 per hour}
  - {name: closed, match: {path: /closed}, limit: 0 per hour}
  - {name: tried, match: {path: /closed}, limit: 5 in flight, mode: shadow}
";

struct SlotService {
    time: ManualClock,
    service: Service,
}

impl SlotService {
    fn new(rules: &str) -> Self {
        let time = ManualClock::default();
        let store = Arc::new(AnyStore::Memory(Arc::new(MemoryStore::new(time.clock()))));
        let rules = RuleSet::parse("rules.yaml", rules).unwrap();
        let limiter = Limiter::builder().rules(rules).clock(time.clock()).store(store).build();
        Self { time, service: Service::new(limiter, HeaderStyle::default()) }
    }

    async fn acquire(&self, user: &str, path: &str) -> AcquireReply {
        let request = Request::new().with("user", user).unwrap().with("path", path).unwrap();
        self.service.acquire(Protocol::Http, Call { request, ..Call::default() }).await.unwrap()
    }

    /// Returns the token of slots that were acquired and delivered.
    async fn hold(&self, user: &str) -> Option<String> {
        let taken = self.acquire(user, "/exports").await.slot?;
        taken.undelivered.mark_delivered();
        Some(taken.token)
    }

    /// Returns the free slots of a rule for a client.
    async fn left(&self, rule: &str, user: &str) -> u64 {
        let request = Request::new().with("user", user).unwrap().cost(0);
        let call = Call { rule: Some(rule.into()), request, ..Call::default() };
        let reply = self.service.check(Protocol::Http, call).await.unwrap();
        reply.decision.rule_outcomes()[0].outcome.remaining
    }

    async fn renew(&self, token: &str) -> Result<(usize, Span), CallStatus> {
        let renewed = self.service.renew(Protocol::Http, token).await;
        renewed.map(|renewed| (renewed.held, renewed.hold)).map_err(|error| error.status)
    }

    async fn release(&self, token: &str) -> Result<usize, CallStatus> {
        self.service.release(Protocol::Http, token).await.map_err(|error| error.status)
    }
}

#[tokio::test]
async fn slots_of_all_rules_are_released_together_and_once() {
    let slots = SlotService::new(RULES);
    let (one, two) = (slots.hold("alice").await.unwrap(), slots.hold("alice").await.unwrap());
    assert_ne!(one, two);
    assert_eq!(slots.hold("alice").await, None);
    assert_eq!((slots.left("exports", "alice").await, slots.left("all-exports", "").await), (0, 1));
    assert_eq!(slots.release(&one).await, Ok(2));
    assert_eq!(slots.release(&one).await, Ok(0), "already released");
    assert_eq!((slots.left("exports", "alice").await, slots.left("all-exports", "").await), (1, 2));
    assert_eq!(slots.left("api", "alice").await, 98, "tokens of a rate limit are not refunded");
    assert_eq!(slots.release(&two).await, Ok(2));
    assert_eq!((slots.left("exports", "alice").await, slots.left("all-exports", "").await), (2, 3));
}

#[tokio::test]
async fn renewal_extends_the_hold_and_counts_expired_slots_again() {
    let slots = SlotService::new(RULES);
    let token = slots.hold("alice").await.unwrap();
    for _ in 0..10 {
        slots.time.advance(Span::from_secs(9));
        assert_eq!(slots.renew(&token).await, Ok((2, Span::from_secs(10))), "the shorter of two");
    }
    slots.time.advance(Span::from_secs(10));
    assert_eq!(slots.left("all-exports", "").await, 3);
    assert_eq!(slots.left("exports", "alice").await, 1, "its hold is longer");
    assert_eq!(slots.renew(&token).await, Ok((2, Span::from_secs(10))));
    assert_eq!(slots.left("all-exports", "").await, 2);
    assert_eq!(slots.release(&token).await, Ok(2));
    assert_eq!(slots.renew(&token).await, Err(CallStatus::Gone));
    assert_eq!(slots.release(&token).await, Ok(0));
}

#[tokio::test]
async fn undelivered_slots_are_released() {
    let slots = SlotService::new(RULES);
    for _ in 0..10 {
        let acquired = slots.acquire("alice", "/exports").await;
        assert_eq!(acquired.slot.as_ref().unwrap().hold, Span::from_secs(10));
        drop(acquired);
    }
    assert_eq!((slots.left("exports", "alice").await, slots.left("all-exports", "").await), (2, 3));
}

#[tokio::test]
async fn denied_request_and_request_without_concurrency_rule_hold_no_slot() {
    let slots = SlotService::new(RULES);
    let other = slots.acquire("alice", "/orders").await;
    assert!(other.reply.decision.is_allowed() && other.slot.is_none());
    let denied = slots.acquire("alice", "/closed").await;
    assert!(!denied.reply.decision.is_allowed() && denied.slot.is_none());
    assert_eq!(slots.left("tried", "alice").await, 5, "nor of a shadow rule");
}

#[tokio::test]
async fn more_concurrency_rules_than_a_token_holds_are_rejected_without_a_charge() {
    let rule = |number| format!("  - {{name: r{number}, limit: 5 in flight}}\n");
    let rules = |count| format!("rules:\n{}", (0..count).map(rule).collect::<String>());
    let largest = SlotService::new(&rules(SlotTokenCipher::MAX_SLOTS));
    let token = largest.hold("alice").await.unwrap();
    assert_eq!(largest.release(&token).await, Ok(SlotTokenCipher::MAX_SLOTS));
    let slots = SlotService::new(&rules(SlotTokenCipher::MAX_SLOTS + 1));
    let error = slots.service.acquire(Protocol::Http, Call::default()).await.unwrap_err();
    assert_eq!(
        error.to_string(),
        "rules: found 33 rules with a limit in flight, wanted at most 32 for one request"
    );
    assert_eq!(slots.left("r0", "").await, 5);
}

#[tokio::test]
async fn foreign_token_is_rejected_and_not_part_of_the_error() {
    let (slots, elsewhere) = (SlotService::new(RULES), SlotService::new(RULES));
    let token = elsewhere.hold("alice").await.unwrap();
    let status_and_text = |error: CallError| (error.status, error.to_string());
    let rejected = slots.service.release(Protocol::Http, &token).await.unwrap_err();
    let rejected = status_and_text(rejected);
    let wanted = format!(
        "slot: found a text of {} bytes that this fleet did not issue, wanted the slot of an acquire",
        token.len()
    );
    assert_eq!(rejected, (CallStatus::Invalid, wanted.clone()));
    let rejected = slots.service.renew(Protocol::Http, &token).await.unwrap_err();
    assert_eq!(status_and_text(rejected).1, wanted);
    assert_eq!(slots.release("").await, Err(CallStatus::Invalid));
}

proptest! {
    #[test]
    fn made_up_and_altered_tokens_release_no_slot(
        words in proptest::collection::vec("[A-Za-z0-9_-]{0,90}", 1..8),
        positions in proptest::collection::vec(any::<prop::sample::Index>(), 1..8),
    ) {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        runtime.block_on(async {
            let slots = SlotService::new(RULES);
            let token = slots.hold("alice").await.unwrap();
            let altered = positions.iter().map(|position| {
                let mut bytes = token.clone().into_bytes();
                let at = position.index(bytes.len());
                bytes[at] = if bytes[at] == b'A' { b'B' } else { b'A' };
                String::from_utf8(bytes).unwrap()
            });
            for word in words.iter().cloned().chain(altered) {
                assert!(slots.renew(&word).await.is_err());
                assert!(slots.release(&word).await.is_err());
            }
            assert_eq!(slots.left("exports", "alice").await, 1);
            assert_eq!(slots.release(&token).await, Ok(2));
        });
    }
}
