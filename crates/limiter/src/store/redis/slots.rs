//! Which node of a cluster serves a key.

use redis::Value;

use super::address::Address;

/// How many slots a cluster has.
pub(super) const SLOTS: u16 = 16_384;

/// The slot of a key, as every node of a cluster computes it: of what is between the first `{` and
/// the next `}` if there is anything, else of the whole key.
pub(super) fn slot_of(key: &[u8]) -> u16 {
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

/// Which master serves each slot, as far as it is known.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct SlotMap {
    masters: Vec<Address>,
    /// For each slot the place of its master, or [`UNSERVED`].
    places: Box<[u16]>,
}

/// There are never this many masters: each has a slot of its own.
const UNSERVED: u16 = u16::MAX;

impl SlotMap {
    /// A map that knows of no master.
    pub(super) fn empty() -> Self {
        Self { masters: Vec::new(), places: vec![UNSERVED; usize::from(SLOTS)].into() }
    }

    /// Reads the reply to `CLUSTER SLOTS` from the node at `asked`.
    ///
    /// A range whose master can't be told is left without one.
    ///
    /// # Errors
    /// The reply is not one to `CLUSTER SLOTS`: what is wrong with it.
    pub(super) fn read(reply: &Value, asked: &Address) -> Result<Self, &'static str> {
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

    /// The master that serves a slot.
    pub(super) fn master_of(&self, slot: u16) -> Option<&Address> {
        let place = self.places.get(usize::from(slot))?;
        self.masters.get(usize::from(*place))
    }

    /// From now on this master serves the slot.
    pub(super) fn moved(&mut self, slot: u16, master: &Address) {
        let Some(place) = self.places.get_mut(usize::from(slot)) else { return };
        let known = self.masters.iter().rposition(|known| known == master);
        let at = known.unwrap_or_else(|| {
            self.masters.push(master.clone());
            self.masters.len() - 1
        });
        *place = u16::try_from(at).unwrap_or(UNSERVED);
    }

    /// Every master that serves a slot, each once.
    pub(super) fn masters(&self) -> impl Iterator<Item = &Address> {
        let mut serving = vec![false; self.masters.len()];
        for place in &self.places {
            if let Some(serves) = serving.get_mut(usize::from(*place)) {
                *serves = true;
            }
        }
        self.masters.iter().zip(serving).filter_map(|(master, serves)| serves.then_some(master))
    }

    /// How many slots no master is known for.
    pub(super) fn unserved(&self) -> usize {
        self.places.iter().filter(|place| **place == UNSERVED).count()
    }
}

/// Where a node is: `[endpoint, port, id, [name, value, ...]]`.
fn node_address(node: &Value, asked: &Address) -> Option<Address> {
    let Value::Array(fields) = node else { return None };
    let [endpoint, Value::Int(port), more @ ..] = fields.as_slice() else { return None };
    let port = u16::try_from(*port).ok()?;
    match text(endpoint) {
        // The node prefers host names and does not know this one's.
        Some("?") => {
            let ip = more.get(1).and_then(|more| entry(more, "ip")).and_then(text);
            node_at(ip.unwrap_or_default(), port, asked)
        }
        Some(host) => node_at(host, port, asked),
        None if *endpoint == Value::Nil => node_at("", port, asked),
        None => None,
    }
}

/// A node's address; without a host it is on the one that was asked.
pub(super) fn node_at(host: &str, port: u16, asked: &Address) -> Option<Address> {
    match (host, asked) {
        ("", Address::Tcp { host, .. }) => Address::tcp(host, port).ok(),
        ("", Address::Unix(_)) => None,
        (host, _) => Address::tcp(host, port).ok(),
    }
}

pub(super) fn text(value: &Value) -> Option<&str> {
    match value {
        Value::BulkString(bytes) => std::str::from_utf8(bytes).ok(),
        Value::SimpleString(text) | Value::VerbatimString { text, .. } => Some(text),
        _ => None,
    }
}

/// A value by its name, in a map or in a list of names and values.
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
mod tests {
    use super::*;

    fn bulk(text: &str) -> Value {
        Value::BulkString(text.as_bytes().to_vec())
    }

    fn list(items: impl IntoIterator<Item = Value>) -> Value {
        Value::Array(items.into_iter().collect())
    }

    fn node(endpoint: Value, port: i64) -> Value {
        list([endpoint, Value::Int(port), bulk("id"), list([])])
    }

    fn range(first: i64, last: i64, nodes: impl IntoIterator<Item = Value>) -> Value {
        list([Value::Int(first), Value::Int(last)].into_iter().chain(nodes))
    }

    fn at(text: &str) -> Address {
        Address::parse(text, 1).unwrap()
    }

    fn read(ranges: impl IntoIterator<Item = Value>) -> SlotMap {
        SlotMap::read(&list(ranges), &at("seed:7000")).unwrap()
    }

    #[test]
    fn keys_have_the_slots_that_redis_gives_them() {
        // From CLUSTER KEYSLOT.
        for (key, slot) in [
            ("", 0),
            ("123456789", 12739),
            ("foo", 12182),
            ("{user1000}.following", 3443),
            ("{user1000}.followers", 3443),
            ("user1000", 3443),
            ("foo{}{bar}", 8363),
            ("foo{{bar}}zap", 4015),
            ("{bar", 4015),
            ("foo{bar}{zap}", 5061),
        ] {
            assert_eq!(slot_of(key.as_bytes()), slot, "{key}");
        }
    }

    #[test]
    fn a_slot_is_served_by_the_master_of_its_range() {
        let map = read([
            range(0, 99, [node(bulk("10.0.0.1"), 7000), node(bulk("10.0.0.9"), 7000)]),
            range(200, 16_383, [node(bulk("node-2.example.com"), 7001)]),
            range(150, 150, [node(bulk("10.0.0.1"), 7000)]),
        ]);
        let master = |slot| map.master_of(slot).map(Address::to_string);
        assert_eq!(master(0).as_deref(), Some("10.0.0.1:7000"));
        assert_eq!(master(99).as_deref(), Some("10.0.0.1:7000"));
        assert_eq!(master(100), None);
        assert_eq!(master(150).as_deref(), Some("10.0.0.1:7000"));
        assert_eq!(master(16_383).as_deref(), Some("node-2.example.com:7001"));
        assert_eq!(master(16_384), None);
        assert_eq!(map.unserved(), 99);
        let masters: Vec<_> = map.masters().map(Address::to_string).collect();
        assert_eq!(masters, ["10.0.0.1:7000", "node-2.example.com:7001"]);
    }

    #[test]
    fn a_node_without_a_host_is_where_the_question_went() {
        let by_ip = list([
            bulk("?"),
            Value::Int(7004),
            bulk("id"),
            Value::Map(vec![(bulk("ip"), bulk("10.0.0.4"))]),
        ]);
        let by_ip_in_a_list =
            list([bulk("?"), Value::Int(7005), bulk("id"), list([bulk("ip"), bulk("10.0.0.5")])]);
        let map = read([
            range(0, 0, [node(Value::Nil, 7001)]),
            range(1, 1, [node(bulk(""), 7002)]),
            range(2, 2, [node(bulk("?"), 7003)]),
            range(3, 3, [by_ip]),
            range(4, 4, [by_ip_in_a_list]),
            range(5, 5, [node(bulk("::1"), 7006)]),
            range(6, 6, [node(bulk("10.0.0.1"), 0)]),
            range(7, 7, []),
        ]);
        let masters: Vec<_> =
            (0..8).map(|slot| map.master_of(slot).map(Address::to_string)).collect();
        let masters: Vec<_> = masters.iter().map(Option::as_deref).collect();
        let here = ["seed:7001", "seed:7002", "seed:7003", "10.0.0.4:7004", "10.0.0.5:7005"];
        assert_eq!(masters[..5], here.map(Some));
        assert_eq!(masters[5..], [Some("[::1]:7006"), None, None]);
    }

    #[test]
    fn a_slot_that_moved_has_a_new_master_and_the_old_one_may_be_gone() {
        let mut map = read([range(0, 1, [node(bulk("a"), 1)])]);
        map.moved(0, &at("b:2"));
        assert_eq!(map.master_of(0), Some(&at("b:2")));
        assert_eq!(map.masters().collect::<Vec<_>>(), [&at("a:1"), &at("b:2")]);
        map.moved(1, &at("b:2"));
        map.moved(16_384, &at("c:3"));
        assert_eq!(map.masters().collect::<Vec<_>>(), [&at("b:2")]);
    }

    #[test]
    fn what_is_no_answer_to_cluster_slots_is_refused() {
        for reply in [
            Value::Nil,
            Value::Int(1),
            list([Value::Int(1)]),
            list([list([Value::Int(1)])]),
            list([range(-1, 5, [])]),
            list([range(0, 16_384, [])]),
        ] {
            assert!(SlotMap::read(&reply, &at("seed:1")).is_err(), "{reply:?}");
        }
        assert_eq!(read([]).unserved(), usize::from(SLOTS));
    }
}
