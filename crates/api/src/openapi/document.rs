//! The OpenAPI document of the operations.

use std::collections::BTreeMap;

use schemars::Schema;
use schemars::generate::{SchemaGenerator, SchemaSettings};
use serde::ser::{Serialize, Serializer};
use serde_json::{Value, json};

use super::{
    ApiListener, ApiOperation, ApiParameter, ApiReply, BodySchema, operations, remove_null,
};

/// Returns the OpenAPI document.
#[must_use]
pub fn document() -> String {
    let mut schemas = SchemaGenerators::new();
    let mut paths: Vec<(&'static str, JsonObject)> = Vec::new();
    for operation in operations() {
        let json = operation_object(&operation, &mut schemas);
        match paths.iter_mut().find(|(path, _)| *path == operation.path) {
            Some((_, methods)) => methods.push(operation.method, json),
            None => paths.push((operation.path, JsonObject::new().with(operation.method, json))),
        }
    }
    let paths = paths.into_iter().map(|(path, methods)| (path, Node::Object(methods)));
    let components = JsonObject::new()
        .with("schemas", schemas.definitions())
        .with("headers", headers())
        .with("securitySchemes", security_schemes());
    let document = JsonObject::new()
        .with("openapi", json!("3.1.0"))
        .with("info", info())
        .with("servers", servers())
        .with("tags", tags())
        .with("paths", JsonObject(paths.collect()))
        .with("components", components);
    let mut text =
        serde_json::to_string_pretty(&document).expect("a document without keys that are no text");
    text.push('\n');
    text
}

fn info() -> JsonObject {
    JsonObject::new()
        .with("title", json!("Tidegate"))
        .with("version", json!(env!("CARGO_PKG_VERSION")))
        .with("summary", json!("Rate limits as a service"))
        .with("license", json!({"name": "MIT OR Apache-2.0", "identifier": "MIT OR Apache-2.0"}))
}

fn servers() -> Value {
    json!([
        {"url": "http://127.0.0.1:8080", "description": "The HTTP listener, for all operations tagged http"},
        {"url": "http://127.0.0.1:9090", "description": "The admin listener, for all operations tagged admin"},
    ])
}

fn tags() -> Value {
    json!([
        {"name": "http", "description": "Checks. A client that can reach this listener can charge any client"},
        {"name": "admin", "description": "State and changes for operators. Requires a token unless it is bound to loopback"},
    ])
}

fn headers() -> JsonObject {
    let count = |description| json!({"description": description, "schema": {"type": "integer", "minimum": 0}});
    let text = |description, example| json!({"description": description, "schema": {"type": "string"}, "example": example});
    let status = json!({
        "description": "The status that a 403 stands for",
        "schema": {"type": "integer", "enum": [200, 429, 503]},
    });
    JsonObject::new()
        .with("Retry-After", count("Seconds to wait"))
        .with("X-RateLimit-Limit", count("The most that can be spent at once, of the strictest limit"))
        .with("X-RateLimit-Remaining", count("The part of the strictest limit that is left"))
        .with(
            "X-RateLimit-Reset",
            count("Seconds until the whole limit can be spent, or with headers.reset: epoch the Unix time"),
        )
        .with("RateLimit-Policy", text("Every limit, in the form of the IETF's draft", "\"api\";q=100;w=60"))
        .with(
            "RateLimit",
            text("The state of the client under each limit, in the form of the IETF's draft", "\"api\";r=50;t=30"),
        )
        .with("X-Tidegate-Status", status)
}

fn security_schemes() -> Value {
    json!({
        "token": {"type": "http", "scheme": "bearer", "description": "admin.token, for every request."},
        "readToken": {
            "type": "http",
            "scheme": "bearer",
            "description": "admin.read_token, for requests that change nothing. Others get status 403.",
        },
    })
}

/// Returns whether the read token permits an operation: it reads, or it only computes.
fn changes_nothing(operation: &ApiOperation) -> bool {
    operation.method == "get" || ["/v1/lab", "/v1/rules/diff"].contains(&operation.path)
}

fn operation_object(operation: &ApiOperation, schemas: &mut SchemaGenerators) -> JsonObject {
    let mut object = JsonObject::new().with("tags", json!([operation.listener.tag()]));
    if operation.listener == ApiListener::Admin {
        object.push(
            "security",
            match operation {
                operation if operation.is_public => json!([{}]),
                operation if changes_nothing(operation) => {
                    json!([{"token": []}, {"readToken": []}, {}])
                }
                _ => json!([{"token": []}, {}]),
            },
        );
    }
    object.push("operationId", json!(operation.id));
    object.push("summary", json!(operation.summary));
    if let Some(description) = operation.description {
        object.push("description", json!(description));
    }
    if !operation.parameters.is_empty() {
        let parameters =
            operation.parameters.iter().map(|parameter| Node::Object(parameter_object(parameter)));
        object.push("parameters", Node::List(parameters.collect()));
    }
    if !operation.request.is_empty() {
        let mut content = JsonObject::new();
        for (media_type, schema) in &operation.request {
            let mut body = JsonObject::new().with("schema", schemas.request(*schema));
            if !operation.request_examples.is_empty() {
                let examples = operation.request_examples.iter();
                let examples =
                    examples.map(|(name, value)| (*name, Node::Value(json!({"value": value}))));
                body.push("examples", JsonObject(examples.collect()));
            }
            content.push(media_type, body);
        }
        object.push(
            "requestBody",
            JsonObject::new().with("required", json!(true)).with("content", content),
        );
    }
    let mut replies: Vec<(String, JsonObject)> = Vec::new();
    for reply in &operation.replies {
        replies.push((reply.status.to_string(), reply_object(reply, schemas)));
    }
    replies.sort_by(|(status, _), (other, _)| status.cmp(other));
    object.push("responses", Node::Replies(replies));
    object
}

fn parameter_object(parameter: &ApiParameter) -> JsonObject {
    let mut object = JsonObject::new()
        .with("name", json!(parameter.name))
        .with("in", json!(parameter.location))
        .with("description", json!(parameter.description))
        .with("required", json!(parameter.is_required))
        .with("schema", parameter.schema.clone());
    if let Some(example) = parameter.example {
        object.push("example", json!(example));
    }
    object
}

fn reply_object(reply: &ApiReply, schemas: &mut SchemaGenerators) -> JsonObject {
    let mut object = JsonObject::new().with("description", json!(reply.description));
    if !reply.headers.is_empty() {
        let reference = |name: &&'static str| {
            (*name, json!({"$ref": format!("#/components/headers/{name}")}).into())
        };
        object.push("headers", JsonObject(reply.headers.iter().map(reference).collect()));
    }
    if !reply.bodies.is_empty() {
        let mut content = JsonObject::new();
        for (index, body) in reply.bodies.iter().enumerate() {
            let mut media = JsonObject::new();
            if let Some(schema) = schemas.reply(body.schema) {
                media.push("schema", schema);
            }
            if let Some(example) = reply.example.as_ref().filter(|_| index == 0) {
                media.push("example", example.clone());
            }
            content.push(body.media_type, media);
        }
        object.push("content", content);
    }
    object
}

/// The generators of component schemas. A request may leave out fields that have a default, a reply may not.
struct SchemaGenerators {
    requests: SchemaGenerator,
    replies: SchemaGenerator,
}

impl SchemaGenerators {
    fn new() -> Self {
        let settings = SchemaSettings::draft2020_12().with(|settings| {
            settings.definitions_path = "/components/schemas".into();
            settings.meta_schema = None;
        });
        Self {
            requests: settings.clone().for_deserialize().into_generator(),
            replies: settings.for_serialize().into_generator(),
        }
    }

    fn request(&mut self, schema: BodySchema) -> Value {
        Self::schema(&mut self.requests, schema).expect("the schema of a request")
    }

    fn reply(&mut self, schema: BodySchema) -> Option<Value> {
        Self::schema(&mut self.replies, schema)
    }

    fn schema(generator: &mut SchemaGenerator, schema: BodySchema) -> Option<Value> {
        match schema {
            BodySchema::Typed(schema) => Some(schema(generator).to_value()),
            BodySchema::Text => Some(json!({"type": "string"})),
            BodySchema::Object => Some(json!({"type": "object"})),
            BodySchema::Opaque => None,
        }
    }

    /// Returns the schemas of all types by name.
    fn definitions(mut self) -> Value {
        let mut all: BTreeMap<String, Value> = BTreeMap::new();
        for (name, definition) in self.replies.take_definitions(true) {
            let mut schema = Schema::try_from(definition).expect("a schema");
            remove_null(&mut schema);
            remove_defaults(&mut schema);
            let mut schema = schema.to_value();
            forbid_negative(&mut schema);
            all.insert(name, schema);
        }
        for (name, definition) in self.requests.take_definitions(true) {
            if let Some(reply) = all.insert(name.clone(), definition.clone()) {
                assert_eq!(reply, definition, "{name} differs between requests and replies");
            }
        }
        json!(all)
    }
}

/// Removes the defaults of readers: a server always sends these fields.
fn remove_defaults(schema: &mut Schema) {
    schema.remove("default");
    for property in
        schema.get_mut("properties").and_then(Value::as_object_mut).into_iter().flatten()
    {
        if let Some(property) = property.1.as_object_mut() {
            property.remove("default");
        }
    }
}

/// Adds a minimum to fractions: no reply has a negative number.
fn forbid_negative(schema: &mut Value) {
    match schema {
        Value::Object(members) => {
            let kind = members.get("type");
            if kind == Some(&json!("number")) || kind == Some(&json!(["number", "null"])) {
                members.insert("minimum".to_owned(), json!(0));
            }
            members.values_mut().for_each(forbid_negative);
        }
        Value::Array(items) => items.iter_mut().for_each(forbid_negative),
        _ => {}
    }
}

/// A JSON object that keeps its order.
struct JsonObject(Vec<(&'static str, Node)>);

enum Node {
    Value(Value),
    Object(JsonObject),
    List(Vec<Node>),
    Replies(Vec<(String, JsonObject)>),
}

impl JsonObject {
    const fn new() -> Self {
        Self(Vec::new())
    }

    fn with(mut self, name: &'static str, node: impl Into<Node>) -> Self {
        self.push(name, node);
        self
    }

    fn push(&mut self, name: &'static str, node: impl Into<Node>) {
        self.0.push((name, node.into()));
    }
}

impl From<Value> for Node {
    fn from(value: Value) -> Self {
        Self::Value(value)
    }
}

impl From<JsonObject> for Node {
    fn from(object: JsonObject) -> Self {
        Self::Object(object)
    }
}

impl Serialize for JsonObject {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.0.iter().map(|(name, node)| (name, node)))
    }
}

impl Serialize for Node {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Value(value) => value.serialize(serializer),
            Self::Object(object) => object.serialize(serializer),
            Self::List(nodes) => serializer.collect_seq(nodes),
            Self::Replies(replies) => {
                serializer.collect_map(replies.iter().map(|(status, reply)| (status, reply)))
            }
        }
    }
}
