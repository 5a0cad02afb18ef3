//! The responses of each path.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use http_body_util::BodyExt;
use hyper::body::Incoming;
use hyper::header::{CONNECTION, CONTENT_TYPE, ETAG, HeaderMap, HeaderValue, TRAILER, UPGRADE};
use hyper::{Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use serde_json::json;
use tokio::io::AsyncWriteExt;

use super::RequestCounts;
use super::body::{Body, BodyAborted, PatternBody, empty, text};

type UpstreamResponse = Result<Response<Body>, BodyAborted>;

pub(crate) async fn respond(
    request: Request<Incoming>,
    seen: Arc<RequestCounts>,
) -> UpstreamResponse {
    let path = request.uri().path().to_owned();
    let line = format!("{} {path}", request.method());
    seen.lines.lock().unwrap_or_else(std::sync::PoisonError::into_inner).push(line);
    let (name, number) = match path[1..].split_once('/') {
        Some((name, number)) => (name, number.parse().ok()),
        None => (&path[1..], None),
    };
    match (name, number) {
        ("head", None) => head(&request),
        ("echo", None) => Ok(echo(request)),
        ("bytes", Some(length)) => Ok(Response::new(PatternBody::sized(length).boxed())),
        ("chunked", Some(length)) => Ok(Response::new(PatternBody::unsized_(length).boxed())),
        ("swallow", None) => {
            let count = swallow(request.into_body(), &seen).await;
            Ok(Response::new(text(count.to_string())))
        }
        ("early", Some(status)) => {
            tokio::spawn(async move { swallow(request.into_body(), &seen).await });
            with_status(status)
        }
        ("status", Some(status)) => with_status(status),
        ("trailers", None) => Ok(trailers()),
        ("held", None) => {
            // The semaphore is never closed.
            if let Ok(permit) = seen.released.acquire().await {
                permit.forget();
            }
            Ok(Response::new(text("done")))
        }
        ("close", None) => {
            let mut response = Response::new(text("closed"));
            response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
            Ok(response)
        }
        ("broken", None) => Ok(Response::new(PatternBody::broken(100, 10).boxed())),
        ("upgrade", None) => Ok(upgrade(request)),
        _ => with_status(404),
    }
}

fn head(request: &Request<Incoming>) -> UpstreamResponse {
    let shown = |value: &HeaderValue| String::from_utf8_lossy(value.as_bytes()).into_owned();
    let headers: Vec<(&str, String)> =
        request.headers().iter().map(|(name, value)| (name.as_str(), shown(value))).collect();
    let head = json!({
        "method": request.method().as_str(),
        "target": request.uri().to_string(),
        "version": format!("{:?}", request.version()),
        "headers": headers,
    });
    let mut response = Response::new(text(head.to_string()));
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    Ok(response)
}

fn echo(request: Request<Incoming>) -> Response<Body> {
    let (parts, body) = request.into_parts();
    let mut response = Response::new(body.map_err(|_| BodyAborted).boxed());
    for name in [CONTENT_TYPE, TRAILER] {
        if let Some(value) = parts.headers.get(&name) {
            response.headers_mut().insert(name, value.clone());
        }
    }
    response
}

async fn swallow(mut body: Incoming, seen: &RequestCounts) -> u64 {
    let mut count = 0;
    while let Some(Ok(frame)) = body.frame().await {
        let length = frame.data_ref().map_or(0, |data| data.len() as u64);
        seen.swallowed.fetch_add(length, Ordering::SeqCst);
        count += length;
    }
    count
}

fn with_status(status: u64) -> UpstreamResponse {
    let status = u16::try_from(status).ok().and_then(|status| StatusCode::from_u16(status).ok());
    let mut response = Response::new(empty());
    *response.status_mut() = status.unwrap_or(StatusCode::NOT_FOUND);
    response.headers_mut().insert(ETAG, HeaderValue::from_static("\"one\""));
    Ok(response)
}

fn trailers() -> Response<Body> {
    let mut trailers = HeaderMap::new();
    trailers.insert("x-sum", HeaderValue::from_static("4"));
    // With a length HTTP/1.1 has no place for trailers.
    let body = PatternBody::unsized_(4).with_trailers(async move { Some(Ok(trailers)) });
    let mut response = Response::new(body.boxed());
    response.headers_mut().insert(TRAILER, HeaderValue::from_static("x-sum"));
    response
}

fn upgrade(mut request: Request<Incoming>) -> Response<Body> {
    let protocol = request.headers().get(UPGRADE).cloned();
    let mut response = Response::new(empty());
    let Some(protocol) = protocol else {
        *response.status_mut() = StatusCode::UPGRADE_REQUIRED;
        return response;
    };
    let upgraded = hyper::upgrade::on(&mut request);
    tokio::spawn(async move {
        let Ok(upgraded) = upgraded.await else { return };
        let (mut from, mut to) = tokio::io::split(TokioIo::new(upgraded));
        // The result has no effect: the connection has ended.
        let _ = tokio::io::copy(&mut from, &mut to).await;
        let _ = to.shutdown().await;
    });
    *response.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
    response.headers_mut().insert(CONNECTION, HeaderValue::from_static("upgrade"));
    response.headers_mut().insert(UPGRADE, protocol);
    response
}
