//! What there is to call, for tools that ask: `grpc.reflection`, both versions.

use hyper::body::Incoming;
use hyper::{Request, Response};
use tonic::Status;
use tonic::service::Routes;
use tonic_reflection::server::Builder;
use tower_service::Service;

use super::body::Body;
use tidegate_proto::DESCRIPTORS;

/// Answers tools that list and describe services.
pub(super) struct Reflection(Routes);

impl Reflection {
    pub(super) fn new() -> Self {
        let about = || {
            Builder::configure()
                .register_encoded_file_descriptor_set(DESCRIPTORS)
                .register_encoded_file_descriptor_set(tonic_health::pb::FILE_DESCRIPTOR_SET)
        };
        const READABLE: &str = "descriptors that the build has made are readable";
        let routes = Routes::new(about().build_v1().expect(READABLE));
        Self(routes.add_service(about().build_v1alpha().expect(READABLE)).prepare())
    }

    /// Whether a path is one of these services'.
    pub(super) fn serves(path: &str) -> bool {
        path.starts_with("/grpc.reflection.")
    }

    pub(super) async fn answer(&self, request: Request<Incoming>) -> Response<Body> {
        match self.0.clone().call(request).await {
            Ok(response) => response.map(Body::Other),
            Err(error) => Status::internal(error.to_string()).into_http(),
        }
    }
}
