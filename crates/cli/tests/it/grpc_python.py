"""Calls a rate limit service with the messages of Envoy, and prints each response as a line of JSON."""

import json
import sys

import grpc
from envoy_data_plane.envoy.extensions.common.ratelimit.v3 import (
    RateLimitDescriptor,
    RateLimitDescriptorEntry,
    RateLimitDescriptorRateLimitOverride,
)
from envoy_data_plane.envoy.service.ratelimit.v3 import RateLimitRequest, RateLimitServiceSyncStub
from envoy_data_plane.envoy.type.v3 import RateLimitUnit


def user(name, **fields):
    return RateLimitDescriptor(entries=[RateLimitDescriptorEntry(key="user", value=name)], **fields)


CALLS = [
    ("edge", [user("alice"), user("nobody", hits_addend=0)], 0),
    ("edge", [user("alice")], 3),
    ("edge", [user("alice"), user("bob")], 0),
    ("edge", [user("alice", hits_addend=2, is_negative_hits=True)], 0),
    ("edge", [user("alice"), user("bob")], 0),
    (
        "free",
        [user("x", limit=RateLimitDescriptorRateLimitOverride(requests_per_unit=7, unit=RateLimitUnit.MONTH))],
        0,
    ),
    ("free", [user("x")], 0),
    ("", [user("x")], 0),
]


def to_json(response):
    def status(status):
        limit = status.current_limit
        return {
            "code": status.code.name,
            "limit": limit and [limit.requests_per_unit, limit.unit.name, limit.name],
            "remaining": status.limit_remaining,
            "resets": status.duration_until_reset is not None,
        }

    return {
        "code": response.overall_code.name,
        "statuses": [status(each) for each in response.statuses],
        "headers": sorted(header.key for header in response.response_headers_to_add),
        "metadata": response.dynamic_metadata is not None,
    }


def main(address):
    with grpc.insecure_channel(address) as channel:
        service = RateLimitServiceSyncStub(channel)
        for domain, descriptors, hits in CALLS:
            call = RateLimitRequest(domain=domain, descriptors=descriptors, hits_addend=hits)
            try:
                answer = to_json(service.should_rate_limit(call))
            except grpc.RpcError as error:
                answer = {"error": error.code().name}
            print(json.dumps(answer))


main(sys.argv[1])
