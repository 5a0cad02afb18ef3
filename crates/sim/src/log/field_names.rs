//! Names of fields in JSON logs: our own, and those of NGINX, Caddy, Envoy and Traefik.

/// The meaning of a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FieldSlot {
    Time,
    Address,
    User,
    Method,
    Target,
    Host,
    /// Method and target in one value.
    RequestLine,
    /// A header, by its index among those that are wanted.
    Header(usize),
    /// An attribute by its own name, by its index among those that are wanted.
    Given(usize),
}

/// The names of each field, the best first. A dot leads into an object.
const DEFAULT_FIELD_NAMES: [(FieldSlot, &[&str]); 7] = [
    (
        FieldSlot::Time,
        &[
            "time",
            "ts",
            "msec",
            "timestamp",
            "@timestamp",
            "start_time",
            "startutc",
            "time_iso8601",
            "time_local",
        ],
    ),
    (
        FieldSlot::Address,
        &[
            "ip",
            "client_ip",
            "request.client_ip",
            "remote_ip",
            "request.remote_ip",
            "remote_addr",
            "request.remote_addr",
            "clienthost",
            "clientaddr",
            "downstream_remote_address",
            "downstream_direct_remote_address",
        ],
    ),
    (FieldSlot::User, &["user", "remote_user", "user_id", "clientusername"]),
    (FieldSlot::Method, &["method", "request.method", "request_method", "requestmethod"]),
    (
        FieldSlot::Target,
        &[
            "request_uri",
            "request.uri",
            "x_envoy_original_path",
            "path",
            "requestpath",
            "uri",
            "url",
        ],
    ),
    (
        FieldSlot::Host,
        &["host", "request.host", "http_host", "authority", "requesthost", "server_name"],
    ),
    (FieldSlot::RequestLine, &["request"]),
];

/// The fields of an object by their names, in any case.
#[derive(Debug, Default)]
pub(crate) struct FieldNames {
    /// The field of this name, and the rank of the name: lower is better.
    pub(crate) slot: Option<(FieldSlot, usize)>,
    /// Inner names by their lengths.
    inner: Vec<Vec<(Box<str>, Self)>>,
}

impl FieldNames {
    /// Creates the default names, with those of wanted headers and of wanted attributes with their index.
    pub(crate) fn with_defaults<'n>(
        headers: &[&str],
        attributes: impl Iterator<Item = (usize, &'n str)>,
    ) -> Self {
        let mut all = Self::default();
        for (slot, names) in DEFAULT_FIELD_NAMES {
            for (rank, name) in (1..).zip(names) {
                all.insert(&[name], slot, rank);
                all.insert(&name.split('.').collect::<Vec<_>>(), slot, rank);
            }
        }
        for (index, header) in headers.iter().enumerate() {
            let plain = header.replace('-', "_");
            let slot = FieldSlot::Header(index);
            all.insert(&[&format!("header.{header}")], slot, 1);
            for object in ["header", "headers", "request_headers"] {
                all.insert(&[object, header], slot, 2);
            }
            all.insert(&["request", "headers", header], slot, 2);
            let prefixed =
                [format!("http_{plain}"), format!("request_{header}"), header.to_string(), plain];
            prefixed.iter().for_each(|name| all.insert(&[name], slot, 3));
        }
        for (index, name) in attributes {
            let slot = FieldSlot::Given(index);
            all.insert(&[name], slot, 1);
            all.insert(&["attributes", name], slot, 1);
            all.insert(&name.split('.').collect::<Vec<_>>(), slot, 2);
        }
        all
    }

    /// Adds an operator's name, which is better than any other.
    pub(crate) fn prefer(&mut self, path: &str, slot: FieldSlot) {
        self.insert(&[path], slot, 0);
        self.insert(&path.split('.').collect::<Vec<_>>(), slot, 0);
    }

    fn insert(&mut self, path: &[&str], slot: FieldSlot, rank: usize) {
        let Some((first, rest)) = path.split_first() else {
            // The first field keeps a name, unless an operator gives it to another.
            if self.slot.is_none() || rank == 0 {
                self.slot = Some((slot, rank));
            }
            return;
        };
        if self.inner.len() <= first.len() {
            self.inner.resize_with(first.len() + 1, Vec::new);
        }
        let same = &mut self.inner[first.len()];
        let index = same.iter().position(|(name, _)| name.eq_ignore_ascii_case(first));
        let index = index.unwrap_or_else(|| {
            same.push(((*first).into(), Self::default()));
            same.len() - 1
        });
        same[index].1.insert(rest, slot, rank);
    }

    /// Returns the fields under a name.
    pub(crate) fn under(&self, name: &str) -> Option<&Self> {
        let same = self.inner.get(name.len())?.iter();
        same.filter(|(known, _)| known.eq_ignore_ascii_case(name)).map(|(_, inner)| inner).next()
    }

    /// Returns whether there are fields further inside.
    pub(crate) fn is_deep(&self) -> bool {
        !self.inner.is_empty()
    }
}
