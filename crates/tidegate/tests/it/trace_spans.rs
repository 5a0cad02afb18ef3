//! Spans of checks: their nesting and fields, and their absence without a subscriber for them.

use std::collections::HashMap;
use std::fmt::{Debug, Write as _};
use std::sync::{Arc, Mutex};

use tidegate::trace::{SPAN_TARGET, in_call_span};
use tidegate::{CheckRequest, CheckTarget, Limiter, Request, RuleSet};
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Metadata, Subscriber};

/// Collects the spans of one test, in the order of their creation.
#[derive(Clone, Default)]
struct SpanCollector(Arc<Mutex<CollectedSpans>>);

#[derive(Default)]
struct CollectedSpans {
    spans: Vec<CollectedSpan>,
    entered: Vec<u64>,
    by_id: HashMap<u64, usize>,
}

struct CollectedSpan {
    text: String,
    parent: Option<u64>,
}

struct FieldWriter<'t>(&'t mut String);

impl Visit for FieldWriter<'_> {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        let _ = write!(self.0, " {}={value:?}", field.name());
    }
}

impl Subscriber for SpanCollector {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.is_span() && metadata.target() == SPAN_TARGET
    }

    fn new_span(&self, attributes: &Attributes<'_>) -> Id {
        let mut collected = self.0.lock().unwrap();
        let mut text = attributes.metadata().name().to_owned();
        attributes.record(&mut FieldWriter(&mut text));
        let parent = match attributes.parent() {
            Some(parent) => Some(parent.into_u64()),
            None if attributes.is_contextual() => collected.entered.last().copied(),
            None => None,
        };
        collected.spans.push(CollectedSpan { text, parent });
        let id = collected.spans.len() as u64;
        let index = collected.spans.len() - 1;
        collected.by_id.insert(id, index);
        Id::from_u64(id)
    }

    fn record(&self, id: &Id, values: &Record<'_>) {
        let mut collected = self.0.lock().unwrap();
        let index = collected.by_id[&id.into_u64()];
        values.record(&mut FieldWriter(&mut collected.spans[index].text));
    }

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, _: &Event<'_>) {}

    fn enter(&self, id: &Id) {
        self.0.lock().unwrap().entered.push(id.into_u64());
    }

    fn exit(&self, id: &Id) {
        let exited = self.0.lock().unwrap().entered.pop();
        assert_eq!(exited, Some(id.into_u64()));
    }
}

impl SpanCollector {
    /// Returns one line per span: the texts of its parents and its own, from the outermost one.
    fn lines(&self) -> Vec<String> {
        let collected = self.0.lock().unwrap();
        let line = |span: &CollectedSpan| {
            let (mut texts, mut parent) = (vec![span.text.clone()], span.parent);
            while let Some(id) = parent {
                let span = &collected.spans[collected.by_id[&id]];
                texts.insert(0, span.text.clone());
                parent = span.parent;
            }
            texts.join(" > ")
        };
        collected.spans.iter().map(line).collect()
    }
}

fn limiter() -> Limiter {
    let rules = "
rules:
  - {name: login, match: {path: /login}, per: [user], limit: 1 per hour}
  - {name: api, per: [user], limit: 100 per hour}
";
    Limiter::builder().rules(RuleSet::parse("rules.yaml", rules).unwrap()).build()
}

fn request(path: &'static str) -> Request<'static> {
    Request::new().with("user", "secret-user").unwrap().with("path", path).unwrap()
}

#[tokio::test(flavor = "current_thread")]
async fn check_has_spans_of_listener_rule_and_store() {
    let collector = SpanCollector::default();
    let _active = tracing::subscriber::set_default(collector.clone());
    let limiter = limiter();
    let (login, other) = (request("/login"), request("/"));
    in_call_span("http", limiter.check(&other)).await;
    in_call_span("grpc", limiter.check(&login)).await;
    limiter.check(&login).await;
    let both =
        [&login, &other].map(|request| CheckRequest { request, target: CheckTarget::AllMatching });
    limiter.check_all(&both).await;
    let lines = collector.lines();
    let expected = [
        "call listener=\"http\"",
        "call listener=\"http\" > check rule=\"api\" allowed=true",
        "call listener=\"http\" > check rule=\"api\" allowed=true > store charges=1",
        "call listener=\"grpc\"",
        "call listener=\"grpc\" > check rule=\"login\" allowed=true",
        "call listener=\"grpc\" > check rule=\"login\" allowed=true > store charges=2",
        "check rule=\"login\" allowed=false",
        "check rule=\"login\" allowed=false > store charges=2",
    ];
    assert_eq!(lines[..expected.len()], expected);
    assert!(
        lines[expected.len()..]
            .iter()
            .all(|line| line.starts_with("check rule=\"login\" allowed=false")),
        "{lines:?}"
    );
    assert!(!lines.iter().any(|line| line.contains("secret-user")), "{lines:?}");
}
