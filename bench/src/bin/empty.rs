//! Servers with a fixed response: the upper bound for a listener built on the same crates.
//!
//! `empty http ADDRESS` runs hyper with a fixed JSON response, `empty grpc ADDRESS` runs tonic with a fixed message. Each
//! prints its address when it listens.
#![allow(clippy::print_stdout, reason = "the address is the result")]
#![allow(clippy::unwrap_used, reason = "a failed precondition ends the benchmark")]

use std::convert::Infallible;

use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use tokio::net::TcpListener;

#[tokio::main]
async fn main() {
    let arguments: Vec<String> = std::env::args().collect();
    let listener = TcpListener::bind(&arguments[2]).await.unwrap();
    println!("{}", listener.local_addr().unwrap());
    match arguments[1].as_str() {
        "http" => serve_http(listener).await,
        "grpc" => grpc::serve(listener).await,
        other => panic!("wanted http or grpc, found {other:?}"),
    }
}

async fn serve_http(listener: TcpListener) {
    loop {
        let (stream, _) = listener.accept().await.unwrap();
        stream.set_nodelay(true).unwrap();
        tokio::spawn(async move {
            let service = service_fn(respond);
            let _ = http1::Builder::new().serve_connection(TokioIo::new(stream), service).await;
        });
    }
}

/// Reads the whole body, as a real listener must, and returns a fixed response.
async fn respond(request: Request<Incoming>) -> Result<Response<Full<Bytes>>, Infallible> {
    let _ = request.into_body().collect().await;
    let body = Full::from(Bytes::from_static(br#"{"allowed":true}"#));
    let mut response = Response::new(body);
    let content_type = hyper::header::HeaderValue::from_static("application/json");
    response.headers_mut().insert(hyper::header::CONTENT_TYPE, content_type);
    Ok(response)
}

mod grpc {
    //! tonic with a minimal service of the shape of Envoy's rate limit service.

    use std::task::{Context, Poll};

    use tokio::net::TcpListener;
    use tokio_stream::wrappers::TcpListenerStream;
    use tonic::body::Body;
    use tonic::codegen::{BoxFuture, Service, http};
    use tonic::server::{Grpc, NamedService, UnaryService};
    use tonic::transport::Server;
    use tonic::{Request, Response, Status};
    use tonic_prost::ProstCodec;

    /// The fields of `RateLimitRequest` that a rate limiter reads.
    #[derive(Clone, PartialEq, prost::Message)]
    struct RateLimitRequest {
        #[prost(string, tag = "1")]
        domain: String,
        #[prost(message, repeated, tag = "2")]
        descriptors: Vec<Descriptor>,
        #[prost(uint32, tag = "3")]
        hits_addend: u32,
    }

    #[derive(Clone, PartialEq, prost::Message)]
    struct Descriptor {
        #[prost(message, repeated, tag = "1")]
        entries: Vec<DescriptorEntry>,
    }

    #[derive(Clone, PartialEq, prost::Message)]
    struct DescriptorEntry {
        #[prost(string, tag = "1")]
        key: String,
        #[prost(string, tag = "2")]
        value: String,
    }

    /// The code of `RateLimitResponse`.
    #[derive(Clone, PartialEq, prost::Message)]
    struct RateLimitResponse {
        #[prost(int32, tag = "1")]
        overall_code: i32,
    }

    #[derive(Clone)]
    struct FixedResponseService;

    impl UnaryService<RateLimitRequest> for FixedResponseService {
        type Response = RateLimitResponse;
        type Future = std::future::Ready<Result<Response<RateLimitResponse>, Status>>;

        fn call(&mut self, _: Request<RateLimitRequest>) -> Self::Future {
            std::future::ready(Ok(Response::new(RateLimitResponse { overall_code: 1 })))
        }
    }

    impl NamedService for FixedResponseService {
        const NAME: &'static str = "envoy.service.ratelimit.v3.RateLimitService";
    }

    impl Service<http::Request<Body>> for FixedResponseService {
        type Response = http::Response<Body>;
        type Error = std::convert::Infallible;
        type Future = BoxFuture<Self::Response, Self::Error>;

        fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
            Poll::Ready(Ok(()))
        }

        fn call(&mut self, request: http::Request<Body>) -> Self::Future {
            Box::pin(async {
                let codec = ProstCodec::<RateLimitResponse, RateLimitRequest>::default();
                Ok(Grpc::new(codec).unary(FixedResponseService, request).await)
            })
        }
    }

    pub(crate) async fn serve(listener: TcpListener) {
        let incoming = TcpListenerStream::new(listener);
        Server::builder()
            .tcp_nodelay(true)
            .add_service(FixedResponseService)
            .serve_with_incoming(incoming)
            .await
            .unwrap();
    }
}
