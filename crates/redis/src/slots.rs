//! Hash slots of a cluster, and the servers that serve them.

use redis::Value;

use super::address::Address;

/// Number of slots of a cluster.
pub(crate) const SLOTS: u16 = 16_384;

/// Returns the slot of a key, as every server of a cluster computes it: of the text between the first `{` and the next
/// `}` if there is any, else of the whole key.
pub(crate) fn slot_of(key: &[u8]) -> u16 {
    let tag = key.iter().position(|&byte| byte == b'{').and_then(|open| {
        let after = key.get(open + 1..)?;
        let close = after.iter().position(|&byte| byte == b'}')?;
        after.get(..close).filter(|tag| !tag.is_empty())
    });
    crc16(tag.unwrap_or(key)) % SLOTS
}

/// CRC-16/XMODEM: polynomial 0x1021, nothing reflected, nothing added.
fn crc16(bytes: &[u8]) -> u16 {
    bytes.iter().fold(0, |crc, &byte| {
        let [high, _] = crc.to_be_bytes();
        (crc << 8) ^ TABLE[usize::from(high ^ byte)]
    })
}

const TABLE: [u16; 256] = {
    let mut table = [0; 256];
    let mut byte = 0;
    while byte < 256 {
        #[allow(clippy::as_conversions, reason = "a byte fits; From is not const")]
        let mut crc = (byte as u16) << 8;
        let mut bit = 0;
        while bit < 8 {
            crc = if crc & 0x8000 == 0 { crc << 1 } else { (crc << 1) ^ 0x1021 };
            bit += 1;
        }
        table[byte] = crc;
        byte += 1;
    }
    table
};

/// The master of each slot, as far as it is known.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct SlotMap {
    masters: Vec<Address>,
    /// For each slot the place of its master, or [`UNSERVED`].
    places: Box<[u16]>,
}

/// There are never this many masters: each has a slot of its own.
const UNSERVED: u16 = u16::MAX;

impl SlotMap {
    /// A map that knows of no master.
    pub(crate) fn empty() -> Self {
        Self { masters: Vec::new(), places: vec![UNSERVED; usize::from(SLOTS)].into() }
    }

    /// Reads the reply to `CLUSTER SLOTS` from the node at `asked`.
    ///
    /// A range with an unreadable master is left without one.
    ///
    /// # Errors
    /// The reply is not one to `CLUSTER SLOTS`: the reason.
    pub(crate) fn read(reply: &Value, asked: &Address) -> Result<Self, &'static str> {
        let Value::Array(ranges) = reply else {
            return Err("a list of slot ranges is wanted");
        };
        let mut map = Self::empty();
        for range in ranges {
            let Value::Array(range) = range else {
                return Err("a list is wanted for each slot range");
            };
            let [Value::Int(first), Value::Int(last), nodes @ ..] = range.as_slice() else {
                return Err("a slot range must begin with its first and last slot");
            };
            let slot = |number: &i64| u16::try_from(*number).ok().filter(|slot| *slot < SLOTS);
            let (Some(first), Some(last)) = (slot(first), slot(last)) else {
                return Err("slots must be from 0 to 16383");
            };
            // The master comes first, its replicas follow.
            if let Some(master) = nodes.first().and_then(|node| node_address(node, asked)) {
                for slot in first..=last {
                    map.moved(slot, &master);
                }
            }
        }
        Ok(map)
    }

    /// Returns the master of a slot.
    pub(crate) fn master_of(&self, slot: u16) -> Option<&Address> {
        let place = self.places.get(usize::from(slot))?;
        self.masters.get(usize::from(*place))
    }

    /// Sets the master of a slot.
    pub(crate) fn moved(&mut self, slot: u16, master: &Address) {
        let Some(place) = self.places.get_mut(usize::from(slot)) else { return };
        let known = self.masters.iter().rposition(|known| known == master);
        let at = known.unwrap_or_else(|| {
            self.masters.push(master.clone());
            self.masters.len() - 1
        });
        *place = u16::try_from(at).unwrap_or(UNSERVED);
    }

    /// Returns every master that serves a slot, each once.
    pub(crate) fn masters(&self) -> impl Iterator<Item = &Address> {
        let mut serving = vec![false; self.masters.len()];
        for place in &self.places {
            if let Some(serves) = serving.get_mut(usize::from(*place)) {
                *serves = true;
            }
        }
        self.masters.iter().zip(serving).filter_map(|(master, serves)| serves.then_some(master))
    }
}

/// Reads the address of a server: `[endpoint, port, id, [name, value, ...]]`.
fn node_address(node: &Value, asked: &Address) -> Option<Address> {
    let Value::Array(fields) = node else { return None };
    let [endpoint, Value::Int(port), more @ ..] = fields.as_slice() else { return None };
    let port = u16::try_from(*port).ok()?;
    match text(endpoint) {
        // The server prefers host names and does not know this one.
        Some("?") => {
            let ip = more.get(1).and_then(|more| entry(more, "ip")).and_then(text);
            node_at(ip.unwrap_or_default(), port, asked)
        }
        Some(host) => node_at(host, port, asked),
        None if *endpoint == Value::Nil => node_at("", port, asked),
        None => None,
    }
}

/// Returns the address of a server; without a host it has that of `asked`.
pub(crate) fn node_at(host: &str, port: u16, asked: &Address) -> Option<Address> {
    match (host, asked) {
        ("", Address::Tcp { host, .. }) => Address::tcp(host, port).ok(),
        ("", Address::Unix(_)) => None,
        (host, _) => Address::tcp(host, port).ok(),
    }
}

pub(crate) fn text(value: &Value) -> Option<&str> {
    match value {
        Value::BulkString(bytes) => std::str::from_utf8(bytes).ok(),
        Value::SimpleString(text) | Value::VerbatimString { text, .. } => Some(text),
        _ => None,
    }
}

/// Returns a value by its name, in a map or in a list of names and values.
fn entry<'v>(entries: &'v Value, name: &str) -> Option<&'v Value> {
    match entries {
        Value::Map(pairs) => {
            pairs.iter().find(|(key, _)| text(key) == Some(name)).map(|(_, value)| value)
        }
        Value::Array(flat) => flat
            .as_chunks::<2>()
            .0
            .iter()
            .find(|[key, _]| text(key) == Some(name))
            .map(|[_, value]| value),
        _ => None,
    }
}

#[cfg(test)]
mod tests;
