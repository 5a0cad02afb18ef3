//! Divides the file descriptors and the memory of the process among its listeners.
//!
//! Every listener has a share of its own, so that the clients of one can't use up the descriptors of another.

use crate::listener::ConnectionLimits;

/// Descriptors for files, logs, certificates, event loops and listening sockets.
const RESERVED_FILES: u64 = 64;
/// Further descriptors for each gateway thread: its event loop, its socket and a health check.
const FILES_PER_THREAD: u64 = 8;
/// Descriptors for connections to Redis, sentinels and cluster nodes.
const REDIS_FILES: u64 = 64;
/// Memory of one socket in bytes: a connection with full buffers.
const SOCKET_BYTES: u64 = 64 * 1024;
/// One part in so many of the memory is for sockets; the other parts are for the store and everything else.
const SOCKET_MEMORY_SHARE: u64 = 2;
/// Smallest share of a listener, in sockets.
const MIN_SOCKETS: u64 = 4;
/// Most connections of a listener for proxies and applications.
const MAX_SERVICE_CONNECTIONS: u64 = 10_000;

/// The resources of the process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProcessResources {
    /// Most open file descriptors: `RLIMIT_NOFILE`.
    pub files: u64,
    /// Memory in bytes: that of the control group, else that of the machine.
    pub memory_bytes: u64,
}

/// The parts of a server that need sockets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SocketUsers {
    /// The number of listeners for proxies and applications: HTTP, gRPC and RESP.
    pub services: u64,
    /// Most connections of the admin listener; 0 without one.
    pub admin: u64,
    /// The threads of the gateway; 0 without one.
    pub gateway_threads: u64,
    /// Set if the server uses Redis.
    pub redis: bool,
}

/// The number of connections of each listener, computed once at the start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConnectionBudget {
    /// The resources that were divided.
    pub resources: ProcessResources,
    /// Descriptors that no connection of a client or to an upstream may use.
    pub reserved_files: u64,
    /// Most connections of each of HTTP, gRPC and RESP.
    pub service: usize,
    /// Most client connections of the gateway.
    pub gateway: usize,
    /// Most connections to upstreams: one for each client connection.
    pub upstream: usize,
    /// Most connections of the admin listener.
    pub admin: usize,
}

impl ConnectionBudget {
    /// Divides the resources. The gateway gets half of them, and what the other listeners do not need.
    pub fn divide(resources: ProcessResources, users: SocketUsers) -> Self {
        let redis = if users.redis { REDIS_FILES } else { 0 };
        let threads = users.gateway_threads.saturating_mul(FILES_PER_THREAD);
        let admin = count(users.admin);
        let admin_sockets = with_closing(users.admin);
        let reserved_files = RESERVED_FILES + redis + threads + admin_sockets;
        let by_files = resources.files.saturating_sub(reserved_files);
        let by_memory = resources.memory_bytes / SOCKET_MEMORY_SHARE / SOCKET_BYTES;
        let sockets = by_files.min(by_memory.saturating_sub(admin_sockets));
        let has_gateway = users.gateway_threads > 0;
        let gateway_half = if has_gateway { sockets / 2 } else { 0 };
        let service = (sockets - gateway_half).checked_div(users.services).unwrap_or(0);
        let service = service.min(with_closing(MAX_SERVICE_CONNECTIONS));
        let rest = sockets - service * users.services;
        let gateway = if has_gateway { (rest / 2).max(MIN_SOCKETS) } else { 0 };
        Self {
            resources,
            reserved_files,
            service: without_closing(service.max(MIN_SOCKETS)),
            gateway: without_closing(gateway),
            upstream: count(gateway),
            admin,
        }
    }

    /// Returns whether the descriptors or the memory are too few for useful shares.
    pub fn is_small(&self) -> bool {
        self.resources.files < 4 * self.reserved_files || self.service < 100
    }
}

/// Returns the number of sockets of a listener with this maximum: connections that close still have one.
fn with_closing(max: u64) -> u64 {
    max + u64::try_from(ConnectionLimits::max_closing(count(max))).unwrap_or(u64::MAX)
}

/// Returns the largest maximum of connections for which these sockets suffice.
fn without_closing(sockets: u64) -> usize {
    let sockets = count(sockets);
    let mut max = sockets - sockets.div_ceil(17);
    while max > 0 && max + ConnectionLimits::max_closing(max) > sockets {
        max -= 1;
    }
    max
}

fn count(number: u64) -> usize {
    usize::try_from(number).unwrap_or(usize::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    const GIB: u64 = 1024 * 1024 * 1024;

    const ALL: SocketUsers =
        SocketUsers { services: 3, admin: 64, gateway_threads: 2, redis: true };

    fn divide(files: u64, memory_bytes: u64, users: SocketUsers) -> ConnectionBudget {
        ConnectionBudget::divide(ProcessResources { files, memory_bytes }, users)
    }

    #[test]
    fn all_shares_and_reserves_together_fit_into_the_descriptors_and_the_memory() {
        for files in [300, 512, 1_024, 20_000, 65_536, 1_048_576, u64::MAX] {
            for memory in [GIB / 16, GIB / 2, GIB, 64 * GIB] {
                for gateway_threads in [0, 1, 2, 64] {
                    let users = SocketUsers { gateway_threads, ..ALL };
                    let budget = divide(files, memory, users);
                    let sockets = |max: usize| (max + ConnectionLimits::max_closing(max)) as u64;
                    let clients = 3 * sockets(budget.service) + sockets(budget.gateway);
                    let all = clients + budget.upstream as u64;
                    let context = format!("{files} {memory} {budget:?}");
                    if files > budget.reserved_files + 32 {
                        assert!(all + budget.reserved_files <= files, "{context}");
                    }
                    assert!((all + sockets(64)) * SOCKET_BYTES <= memory / 2, "{context}");
                    assert!(budget.service > 0 && (budget.gateway > 0) == (gateway_threads > 0));
                    assert!(budget.upstream >= budget.gateway, "{context}");
                }
            }
        }
    }

    #[test]
    fn numbers_of_the_guide() {
        let shares = |budget: ConnectionBudget| (budget.service, budget.gateway, budget.upstream);
        let no_redis = SocketUsers { redis: false, ..ALL };
        assert_eq!(shares(divide(1_024, 64 * GIB, no_redis)), (137, 206, 219));
        assert_eq!(shares(divide(20_000, 64 * GIB, no_redis)), (3_113, 4_672, 4_964));
        assert_eq!(shares(divide(1_048_576, 2 * GIB, no_redis)), (2_559, 3_839, 4_079));
        let plain = SocketUsers { gateway_threads: 0, ..no_redis };
        assert_eq!(shares(divide(1_048_576, 64 * GIB, plain)), (10_000, 0, 0));
    }

    #[test]
    fn few_descriptors_still_give_every_listener_some_connections() {
        let budget = divide(10, GIB, ALL);
        assert!(budget.is_small());
        assert_eq!((budget.service, budget.gateway, budget.upstream), (3, 3, 4));
    }
}
