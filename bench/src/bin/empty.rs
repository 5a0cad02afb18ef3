//! Servers that answer without looking: the ceiling for what a listener built on the same crates can do.
//!
//! `empty http ADDRESS` is hyper with a fixed JSON answer, `empty grpc ADDRESS` is tonic with a fixed
//! message; each prints its address once it listens.
#![allow(clippy::print_stdout, reason = "the address is the result")]
#![allow(clippy::unwrap_used, reason = "a benchmark that can't go on has failed")]

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
        "http" => http(listener).await,
        "grpc" => grpc::serve(listener).await,
        other => panic!("wanted http or grpc, found {other:?}"),
    }
}

async fn http(listener: TcpListener) {
    loop {
        let (stream, _) = listener.accept().await.unwrap();
        stream.set_nodelay(true).unwrap();
        tokio::spawn(async move {
            let service = service_fn(answer);
            let _ = http1::Builder::new().serve_connection(TokioIo::new(stream), service).await;
        });
    }
}

/// Reads the whole body, as anybody has to who wants to know what is asked.
async fn answer(request: Request<Incoming>) -> Result<Response<Full<Bytes>>, Infallible> {
    let _ = request.into_body().collect().await;
    let body = Full::from(Bytes::from_static(br#"{"allowed":true}"#));
    let mut response = Response::new(body);
    let kind = hyper::header::HeaderValue::from_static("application/json");
    response.headers_mut().insert(hyper::header::CONTENT_TYPE, kind);
    Ok(response)
}

mod grpc {
    //! tonic with the smallest service that has the shape of a rate-limit check.

    use std::task::{Context, Poll};

    use tokio::net::TcpListener;
    use tokio_stream::wrappers::TcpListenerStream;
    use tonic::body::Body;
    use tonic::codegen::{BoxFuture, Service, http};
    use tonic::server::{Grpc, NamedService, UnaryService};
    use tonic::transport::Server;
    use tonic::{Request, Response, Status};
    use tonic_prost::ProstCodec;

    /// `RateLimitRequest`, as far as it has to be read.
    #[derive(Clone, PartialEq, prost::Message)]
    struct Asked {
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
        entries: Vec<Entry>,
    }

    #[derive(Clone, PartialEq, prost::Message)]
    struct Entry {
        #[prost(string, tag = "1")]
        key: String,
        #[prost(string, tag = "2")]
        value: String,
    }

    /// `RateLimitResponse`: its code.
    #[derive(Clone, PartialEq, prost::Message)]
    struct Answered {
        #[prost(int32, tag = "1")]
        overall_code: i32,
    }

    #[derive(Clone)]
    struct Empty;

    impl UnaryService<Asked> for Empty {
        type Response = Answered;
        type Future = std::future::Ready<Result<Response<Answered>, Status>>;

        fn call(&mut self, _: Request<Asked>) -> Self::Future {
            std::future::ready(Ok(Response::new(Answered { overall_code: 1 })))
        }
    }

    impl NamedService for Empty {
        const NAME: &'static str = "envoy.service.ratelimit.v3.RateLimitService";
    }

    impl Service<http::Request<Body>> for Empty {
        type Response = http::Response<Body>;
        type Error = std::convert::Infallible;
        type Future = BoxFuture<Self::Response, Self::Error>;

        fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
            Poll::Ready(Ok(()))
        }

        fn call(&mut self, request: http::Request<Body>) -> Self::Future {
            Box::pin(async {
                let codec = ProstCodec::<Answered, Asked>::default();
                Ok(Grpc::new(codec).unary(Empty, request).await)
            })
        }
    }

    pub(crate) async fn serve(listener: TcpListener) {
        let incoming = TcpListenerStream::new(listener);
        Server::builder()
            .tcp_nodelay(true)
            .add_service(Empty)
            .serve_with_incoming(incoming)
            .await
            .unwrap();
    }
}
