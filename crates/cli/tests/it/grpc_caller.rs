//! Calls the gRPC listener as a client would.

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

/// A client with a connection of its own.
pub(crate) struct Caller {
    pub(crate) runtime: Runtime,
    pub(crate) channel: Channel,
}

impl Caller {
    pub(crate) fn to(server: &Server) -> Self {
        Self::at(server.listener("grpc"))
    }

    /// A client of whoever is there.
    pub(crate) fn at(address: SocketAddr) -> Self {
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build();
        let runtime = runtime.unwrap();
        let endpoint = Endpoint::from_shared(format!("http://{address}")).unwrap();
        let channel = runtime.block_on(endpoint.connect()).unwrap();
        Self { runtime, channel }
    }

    pub(crate) fn own(&self) -> RateLimiterClient<Channel> {
        RateLimiterClient::new(self.channel.clone())
    }

    pub(crate) fn should_rate_limit(
        &self,
        asked: RateLimitRequest,
    ) -> Result<RateLimitResponse, Status> {
        let mut client = RateLimitServiceClient::new(self.channel.clone());
        let answer = self.runtime.block_on(client.should_rate_limit(asked));
        answer.map(tonic::Response::into_inner)
    }

    /// The answer to a call that can be understood.
    pub(crate) fn ask(
        &self,
        domain: &str,
        descriptors: &[RateLimitDescriptor],
    ) -> RateLimitResponse {
        let asked = RateLimitRequest {
            domain: domain.to_owned(),
            descriptors: descriptors.to_vec(),
            hits_addend: 0,
        };
        let answer = self.should_rate_limit(asked).unwrap();
        assert_eq!(answer.statuses.len(), descriptors.len());
        answer
    }

    /// The status of the only descriptor of a call.
    pub(crate) fn ask_one(
        &self,
        domain: &str,
        descriptor: RateLimitDescriptor,
    ) -> DescriptorStatus {
        let mut answer = self.ask(domain, &[descriptor]);
        assert_eq!(answer.overall_code, answer.statuses[0].code);
        answer.statuses.remove(0)
    }

    /// What is left after a descriptor was charged; nothing when it was refused.
    pub(crate) fn left(&self, domain: &str, descriptor: RateLimitDescriptor) -> Option<u32> {
        let status = self.ask_one(domain, descriptor);
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

pub(crate) fn hits(count: u64, descriptor: RateLimitDescriptor) -> RateLimitDescriptor {
    RateLimitDescriptor { hits_addend: Some(count), ..descriptor }
}

pub(crate) fn given_back(descriptor: RateLimitDescriptor) -> RateLimitDescriptor {
    RateLimitDescriptor { is_negative_hits: true, ..descriptor }
}
