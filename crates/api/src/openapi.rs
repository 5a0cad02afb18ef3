//! The generator of `openapi.json`: schemas come from the types of this crate, paths from [`operations`].

mod document;
mod operations;

use schemars::generate::SchemaGenerator;
use schemars::{JsonSchema, Schema, json_schema};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

pub use document::document;
pub use operations::operations;

/// The media type of problem bodies.
pub const PROBLEM: &str = "application/problem+json";
/// The media type of plain text.
pub const TEXT: &str = "text/plain; charset=utf-8";
const JSON: &str = "application/json";

/// The listener that serves an operation, and the tag of the operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ApiListener {
    /// The listener for checks.
    Http,
    /// The listener for operators.
    Admin,
}

impl ApiListener {
    /// Returns the tag of the operations.
    #[must_use]
    pub const fn tag(self) -> &'static str {
        match self {
            Self::Http => "http",
            Self::Admin => "admin",
        }
    }
}

/// A method of a path.
#[derive(Clone, Debug)]
pub struct ApiOperation {
    /// The method in lower case.
    pub method: &'static str,
    /// The path, with parameters in braces.
    pub path: &'static str,
    /// The listener that serves it.
    pub listener: ApiListener,
    id: &'static str,
    summary: &'static str,
    description: Option<&'static str>,
    is_public: bool,
    parameters: Vec<ApiParameter>,
    request: Vec<(&'static str, BodySchema)>,
    request_examples: Vec<(&'static str, Value)>,
    /// The replies by status.
    pub replies: Vec<ApiReply>,
}

/// A parameter of an operation.
#[derive(Clone, Debug)]
struct ApiParameter {
    /// `query`, `path` or `header`; `in` in the document.
    location: &'static str,
    name: &'static str,
    description: &'static str,
    is_required: bool,
    schema: Value,
    example: Option<&'static str>,
}

/// The reply of an operation with one status.
#[derive(Clone, Debug)]
pub struct ApiReply {
    /// The HTTP status.
    pub status: u16,
    description: &'static str,
    headers: &'static [&'static str],
    /// The bodies by media type.
    pub bodies: Vec<ReplyBody>,
    example: Option<Value>,
}

/// The body of a reply.
#[derive(Clone, Copy, Debug)]
pub struct ReplyBody {
    /// The media type.
    pub media_type: &'static str,
    schema: BodySchema,
    /// Parses a body as its type and serializes it again. A test compares both: a difference means that the type lacks
    /// a field. Other bodies are returned unchanged.
    pub rewrite: fn(&str) -> Result<String, serde_json::Error>,
}

/// The schema of a body.
#[derive(Clone, Copy, Debug)]
enum BodySchema {
    /// A type of this crate.
    Typed(fn(&mut SchemaGenerator) -> Schema),
    /// Any text.
    Text,
    /// Any JSON object.
    Object,
    /// Bytes without a schema.
    Opaque,
}

impl BodySchema {
    fn of<R: JsonSchema>() -> Self {
        Self::Typed(|generator| generator.subschema_for::<R>())
    }
}

/// Returns an operation without parameters, request body and replies. Only operations of the admin listener need a token.
fn operation(
    listener: ApiListener,
    method: &'static str,
    path: &'static str,
    id: &'static str,
) -> ApiOperation {
    ApiOperation {
        method,
        path,
        listener,
        id,
        summary: "",
        description: None,
        is_public: listener == ApiListener::Http,
        parameters: Vec::new(),
        request: Vec::new(),
        request_examples: Vec::new(),
        replies: Vec::new(),
    }
}

impl ApiOperation {
    fn summary(mut self, summary: &'static str) -> Self {
        self.summary = summary;
        self
    }

    fn description(mut self, description: &'static str) -> Self {
        self.description = Some(description);
        self
    }

    /// Marks the operation as one without a token.
    fn public(mut self) -> Self {
        self.is_public = true;
        self
    }

    fn query_parameter(self, name: &'static str, description: &'static str, schema: Value) -> Self {
        self.parameter(ApiParameter {
            location: "query",
            name,
            description,
            is_required: false,
            schema,
            example: None,
        })
    }

    fn path_parameter(self, name: &'static str, description: &'static str) -> Self {
        let schema = json!({"type": "string"});
        self.parameter(ApiParameter {
            location: "path",
            name,
            description,
            is_required: true,
            schema,
            example: None,
        })
    }

    fn header_parameter(self, name: &'static str, description: &'static str) -> Self {
        let schema = json!({"type": "string"});
        self.parameter(ApiParameter {
            location: "header",
            name,
            description,
            is_required: false,
            schema,
            example: None,
        })
    }

    fn parameter(mut self, parameter: ApiParameter) -> Self {
        self.parameters.push(parameter);
        self
    }

    /// Marks the last parameter as required.
    fn required(mut self) -> Self {
        self.parameters.iter_mut().last().expect("a parameter").is_required = true;
        self
    }

    /// Adds an example of the last parameter.
    fn parameter_example(mut self, example: &'static str) -> Self {
        self.parameters.iter_mut().last().expect("a parameter").example = Some(example);
        self
    }

    /// Limits the length of the last parameter, in characters.
    fn max_length(mut self, characters: u64) -> Self {
        self.parameters.iter_mut().last().expect("a parameter").schema["maxLength"] =
            json!(characters);
        self
    }

    /// Sets the type of the request body.
    fn request_body<R: JsonSchema>(mut self) -> Self {
        self.request = vec![(JSON, BodySchema::of::<R>())];
        self
    }

    /// Accepts any JSON object as the request body.
    fn request_object(mut self) -> Self {
        self.request = vec![(JSON, BodySchema::Object)];
        self
    }

    /// Accepts rules as the request body, in YAML or JSON.
    fn request_rules(mut self) -> Self {
        self.request = vec![("application/yaml", BodySchema::Text), (JSON, BodySchema::Object)];
        self
    }

    /// Adds an example of the request body.
    fn request_example(mut self, name: &'static str, value: Value) -> Self {
        self.request_examples.push((name, value));
        self
    }

    fn reply<R>(self, status: u16, description: &'static str) -> Self
    where
        R: JsonSchema + Serialize + DeserializeOwned,
    {
        self.typed_reply::<R>(status, description, JSON)
    }

    /// Adds a reply with a problem body that has further fields.
    fn problem_with<R>(self, status: u16, description: &'static str) -> Self
    where
        R: JsonSchema + Serialize + DeserializeOwned,
    {
        self.typed_reply::<R>(status, description, PROBLEM)
    }

    fn problem(self, status: u16, description: &'static str) -> Self {
        self.typed_reply::<crate::ProblemBody>(status, description, PROBLEM)
    }

    fn typed_reply<R>(
        mut self,
        status: u16,
        description: &'static str,
        media_type: &'static str,
    ) -> Self
    where
        R: JsonSchema + Serialize + DeserializeOwned,
    {
        let rewrite = |body: &str| {
            serde_json::from_str::<R>(body).and_then(|reply| serde_json::to_string(&reply))
        };
        let body = ReplyBody { media_type, schema: BodySchema::of::<R>(), rewrite };
        self.replies.push(ApiReply {
            status,
            description,
            headers: &[],
            bodies: vec![body],
            example: None,
        });
        self
    }

    /// Adds a reply without a body.
    fn empty_reply(mut self, status: u16, description: &'static str) -> Self {
        self.replies.push(ApiReply {
            status,
            description,
            headers: &[],
            bodies: Vec::new(),
            example: None,
        });
        self
    }

    /// Adds a reply with a body that has no type of this crate.
    fn untyped_reply(
        self,
        status: u16,
        description: &'static str,
        media_type: &'static str,
        schema: BodySchema,
    ) -> Self {
        self.empty_reply(status, description).or_body(media_type, schema)
    }

    /// Adds an alternative body to the last reply.
    fn or_body(mut self, media_type: &'static str, schema: BodySchema) -> Self {
        let rewrite = |body: &str| Ok(body.to_owned());
        self.last_reply().bodies.push(ReplyBody { media_type, schema, rewrite });
        self
    }

    /// Adds headers to the last reply.
    fn reply_headers(mut self, headers: &'static [&'static str]) -> Self {
        self.last_reply().headers = headers;
        self
    }

    /// Adds an example of the body to the last reply.
    fn reply_example(mut self, example: Value) -> Self {
        self.last_reply().example = Some(example);
        self
    }

    fn last_reply(&mut self) -> &mut ApiReply {
        self.replies.last_mut().expect("a reply")
    }
}

/// Returns the schema of a count that may be null.
pub(crate) fn nullable_count(_: &mut SchemaGenerator) -> Schema {
    json_schema!({"oneOf": [{"type": "integer", "minimum": 0}, {"type": "null"}]})
}

/// Fixes `allowed` to false in the schema of a denial.
pub(crate) fn never_allowed(schema: &mut Schema) {
    if let Some(allowed) = schema.pointer_mut("/properties/allowed") {
        allowed["const"] = json!(false);
    }
}

/// Requires one of the three ways to name a client of the block list.
pub(crate) fn one_target(schema: &mut Schema) {
    remove_null(schema);
    schema.insert(
        "oneOf".to_owned(),
        json!([{"required": ["ip"]}, {"required": ["attribute", "value"]}, {"required": ["id"]}]),
    );
}

/// Adds the defaults that the server applies to a simulation, and the names of the algorithms.
pub(crate) fn lab_defaults(schema: &mut Schema) {
    let defaults = json!({
        "traffic": "boundary", "algorithms": ["fixed_window", "sliding_log"], "limit": 20, "windowMillis": 1000,
        "burst": null, "attackPercent": 85, "count": 30, "rate": 50, "clients": 1, "nodes": 1, "accuracy": "exact",
        "syncMillis": 200, "maxAhead": null, "lengthMillis": 2000, "seed": 1,
    });
    let properties =
        schema.get_mut("properties").and_then(Value::as_object_mut).expect("properties");
    for (name, property) in &mut *properties {
        property["default"] = defaults[name].clone();
    }
    let algorithms =
        ["token_bucket", "leaky_bucket", "fixed_window", "sliding_window", "sliding_log"];
    properties["algorithms"]["items"]["enum"] = json!(algorithms);
}

/// Removes null from the optional properties: they are absent, never null.
fn remove_null(schema: &mut Schema) {
    let required = schema.get("required").and_then(Value::as_array).cloned().unwrap_or_default();
    let Some(properties) = schema.get_mut("properties").and_then(Value::as_object_mut) else {
        return;
    };
    for (name, property) in properties {
        if required.iter().any(|required| required == name) {
            continue;
        }
        if let Some(types) = property.get_mut("type").and_then(Value::as_array_mut) {
            types.retain(|kind| kind != "null");
            if let [only] = types.as_slice() {
                property["type"] = only.clone();
            }
        }
        let references = property.get("anyOf").and_then(Value::as_array);
        if let Some([Value::Object(reference), Value::Object(null)]) = references.map(Vec::as_slice)
            && null.get("type") == Some(&json!("null"))
        {
            let reference = reference.clone();
            let property = property.as_object_mut().expect("an object");
            property.remove("anyOf");
            property.extend(reference);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    /// `make openapi` runs this test to write the document.
    #[test]
    #[allow(clippy::disallowed_methods, reason = "make openapi sets it")]
    fn committed_document_is_current() {
        let committed = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/openapi.json"));
        if std::env::var_os("TIDEGATE_OPENAPI").is_some_and(|mode| mode == "write") {
            std::fs::write(committed, document()).unwrap();
            return;
        }
        let committed = std::fs::read_to_string(committed).unwrap();
        assert!(committed == document(), "openapi.json differs from the types: run make openapi");
    }

    #[test]
    fn examples_of_replies_have_the_type_of_the_reply() {
        let mut examples = 0;
        for operation in operations() {
            for reply in &operation.replies {
                let Some(example) = &reply.example else { continue };
                let rewritten = (reply.bodies[0].rewrite)(&example.to_string()).unwrap();
                assert_eq!(rewritten.parse::<Value>().unwrap(), *example, "{}", operation.path);
                examples += 1;
            }
        }
        assert!(examples > 5, "{examples}");
    }
}
