//! Ports that no two tests share, in this process or in another.

use std::hash::{BuildHasher, RandomState};
use std::net::{Ipv4Addr, TcpListener, UdpSocket};

/// Below the range that systems take the ports of outgoing connections from, and so is the bus of a cluster node.
const FIRST: u16 = 12_000;
const COUNT: u16 = 10_000;

/// Distance between the port of a Redis Cluster node and its bus port.
const BUS: u16 = 10_000;

const ATTEMPTS: usize = 1_000;

/// A free loopback TCP port, reserved while this value lives.
///
/// The claim is a UDP socket of the same number: it excludes other processes, leaves the TCP port alone, and ends with
/// the process. So a server can be stopped and started again on its port. The port 10,000 above, where the bus of a
/// cluster node will be, is free as well.
#[derive(Debug)]
pub struct Port {
    number: u16,
    _claim: UdpSocket,
}

impl Port {
    /// Claims a free port.
    ///
    /// # Panics
    /// There is no free port.
    pub fn free() -> Self {
        let claimed = (0..ATTEMPTS).find_map(|_| Self::claim(random_port()));
        claimed.unwrap_or_else(|| panic!("no free port found in {ATTEMPTS} attempts"))
    }

    /// Returns the port's number.
    pub fn number(&self) -> u16 {
        self.number
    }

    fn claim(number: u16) -> Option<Self> {
        let claim = UdpSocket::bind((Ipv4Addr::LOCALHOST, number)).ok()?;
        let is_free = |port| TcpListener::bind((Ipv4Addr::LOCALHOST, port)).is_ok();
        (is_free(number) && is_free(number + BUS)).then_some(Self { number, _claim: claim })
    }
}

fn random_port() -> u16 {
    let random = RandomState::new().hash_one(0) % u64::from(COUNT);
    FIRST + u16::try_from(random).expect("less than COUNT")
}
