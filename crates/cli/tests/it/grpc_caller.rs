//! A client of the gRPC listener for tests.

use std::net::SocketAddr;

use tidegate_proto::envoy::extensions::common::ratelimit::v3::RateLimitDescriptor;
use tidegate_proto::envoy::extensions::common::ratelimit::v3::rate_limit_descriptor::Entry;
use tidegate_proto::envoy::service::ratelimit::v3::rate_limit_response::{Code, DescriptorStatus};
use tidegate_proto::envoy::service::ratelimit::v3::rate_limit_service_client::RateLimitServiceClient;
use tidegate_proto::envoy::service::ratelimit::v3::{RateLimitRequest, RateLimitResponse};
use tidegate_proto::tidegate::v1::rate_limiter_client::RateLimiterClient;
use tokio::runtime::Runtime;
use tonic::Status;
use tonic::transport::{Channel, Endpoint};

use crate::kit::Server;

/// A gRPC client with its own connection.
pub(crate) struct GrpcCaller {
    pub(crate) runtime: Runtime,
    pub(crate) channel: Channel,
}

impl GrpcCaller {
    /// Connects to the gRPC listener of a server.
    pub(crate) fn connect(server: &Server) -> Self {
        Self::connect_to(server.listener("grpc"))
    }

    /// Connects to an address.
    pub(crate) fn connect_to(address: SocketAddr) -> Self {
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build();
        let runtime = runtime.unwrap();
        let endpoint = Endpoint::from_shared(format!("http://{address}")).unwrap();
        let channel = runtime.block_on(endpoint.connect()).unwrap();
        Self { runtime, channel }
    }

    /// Returns a client of the native API `tidegate.v1`.
    pub(crate) fn native(&self) -> RateLimiterClient<Channel> {
        RateLimiterClient::new(self.channel.clone())
    }

    pub(crate) fn should_rate_limit(
        &self,
        request: RateLimitRequest,
    ) -> Result<RateLimitResponse, Status> {
        let mut client = RateLimitServiceClient::new(self.channel.clone());
        let response = self.runtime.block_on(client.should_rate_limit(request));
        response.map(tonic::Response::into_inner)
    }

    /// Calls `ShouldRateLimit`, which must succeed, and returns its response.
    pub(crate) fn rate_limit(
        &self,
        domain: &str,
        descriptors: &[RateLimitDescriptor],
    ) -> RateLimitResponse {
        let request = RateLimitRequest {
            domain: domain.to_owned(),
            descriptors: descriptors.to_vec(),
            hits_addend: 0,
        };
        let response = self.should_rate_limit(request).unwrap();
        assert_eq!(response.statuses.len(), descriptors.len());
        response
    }

    /// Calls `ShouldRateLimit` with one descriptor, and returns its status.
    pub(crate) fn rate_limit_one(
        &self,
        domain: &str,
        descriptor: RateLimitDescriptor,
    ) -> DescriptorStatus {
        let mut response = self.rate_limit(domain, &[descriptor]);
        assert_eq!(response.overall_code, response.statuses[0].code);
        response.statuses.remove(0)
    }

    /// Charges a descriptor, and returns the remaining tokens, or `None` if it was denied.
    pub(crate) fn remaining(&self, domain: &str, descriptor: RateLimitDescriptor) -> Option<u32> {
        let status = self.rate_limit_one(domain, descriptor);
        (status.code() == Code::Ok).then_some(status.limit_remaining)
    }
}

pub(crate) fn descriptor(entries: &[(&str, &str)]) -> RateLimitDescriptor {
    let entry =
        |(key, value): &(&str, &str)| Entry { key: (*key).to_owned(), value: (*value).to_owned() };
    RateLimitDescriptor {
        entries: entries.iter().map(entry).collect(),
        ..RateLimitDescriptor::default()
    }
}

pub(crate) fn user(name: &str) -> RateLimitDescriptor {
    descriptor(&[("user", name)])
}

/// Sets the hits of a descriptor.
pub(crate) fn with_hits(count: u64, descriptor: RateLimitDescriptor) -> RateLimitDescriptor {
    RateLimitDescriptor { hits_addend: Some(count), ..descriptor }
}

/// Turns the hits of a descriptor into a refund.
pub(crate) fn as_refund(descriptor: RateLimitDescriptor) -> RateLimitDescriptor {
    RateLimitDescriptor { is_negative_hits: true, ..descriptor }
}
