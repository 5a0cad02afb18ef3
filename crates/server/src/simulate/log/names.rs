//! What JSON logs call things: our own names, and those of NGINX, Caddy, Envoy and Traefik.

/// What a value is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Slot {
    Time,
    Address,
    User,
    Method,
    Target,
    Host,
    /// Method and target in one.
    RequestLine,
    /// A header, by its place among those that are wanted.
    Header(usize),
    /// An attribute by its own name, by its place among those that are wanted.
    Given(usize),
}

/// For each thing its names, the best first. A dot leads into an object.
const USUAL: [(Slot, &[&str]); 7] = [
    (
        Slot::Time,
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
        Slot::Address,
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
    (Slot::User, &["user", "remote_user", "user_id", "clientusername"]),
    (Slot::Method, &["method", "request.method", "request_method", "requestmethod"]),
    (
        Slot::Target,
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
    (Slot::Host, &["host", "request.host", "http_host", "authority", "requesthost", "server_name"]),
    (Slot::RequestLine, &["request"]),
];

/// Where in an object things are found, whatever the case of their names.
#[derive(Debug, Default)]
pub(super) struct Names {
    /// What stands here, and how good a name this is for it: less is better.
    pub(super) slot: Option<(Slot, usize)>,
    /// By the lengths of their names.
    inner: Vec<Vec<(Box<str>, Self)>>,
}

impl Names {
    /// The usual names, those of wanted headers, and those of wanted attributes, which have places.
    pub(super) fn usual<'n>(
        headers: &[&str],
        attributes: impl Iterator<Item = (usize, &'n str)>,
    ) -> Self {
        let mut all = Self::default();
        for (slot, names) in USUAL {
            for (rank, name) in (1..).zip(names) {
                all.insert(&[name], slot, rank);
                all.insert(&name.split('.').collect::<Vec<_>>(), slot, rank);
            }
        }
        for (place, header) in headers.iter().enumerate() {
            let plain = header.replace('-', "_");
            let slot = Slot::Header(place);
            all.insert(&[&format!("header.{header}")], slot, 1);
            for object in ["header", "headers", "request_headers"] {
                all.insert(&[object, header], slot, 2);
            }
            all.insert(&["request", "headers", header], slot, 2);
            let prefixed =
                [format!("http_{plain}"), format!("request_{header}"), header.to_string(), plain];
            prefixed.iter().for_each(|name| all.insert(&[name], slot, 3));
        }
        for (place, name) in attributes {
            let slot = Slot::Given(place);
            all.insert(&[name], slot, 1);
            all.insert(&["attributes", name], slot, 1);
            all.insert(&name.split('.').collect::<Vec<_>>(), slot, 2);
        }
        all
    }

    /// A name of the operator's, better than any other.
    pub(super) fn prefer(&mut self, path: &str, slot: Slot) {
        self.insert(&[path], slot, 0);
        self.insert(&path.split('.').collect::<Vec<_>>(), slot, 0);
    }

    fn insert(&mut self, path: &[&str], slot: Slot, rank: usize) {
        let Some((first, rest)) = path.split_first() else {
            // What was here first is asked for in more places, unless an operator says so.
            if self.slot.is_none() || rank == 0 {
                self.slot = Some((slot, rank));
            }
            return;
        };
        if self.inner.len() <= first.len() {
            self.inner.resize_with(first.len() + 1, Vec::new);
        }
        let same = &mut self.inner[first.len()];
        let place = same.iter().position(|(name, _)| name.eq_ignore_ascii_case(first));
        let place = place.unwrap_or_else(|| {
            same.push(((*first).into(), Self::default()));
            same.len() - 1
        });
        same[place].1.insert(rest, slot, rank);
    }

    /// What is to be found under a name.
    pub(super) fn under(&self, name: &str) -> Option<&Self> {
        let same = self.inner.get(name.len())?.iter();
        same.filter(|(known, _)| known.eq_ignore_ascii_case(name)).map(|(_, inner)| inner).next()
    }

    /// Whether anything is found further in.
    pub(super) fn is_deep(&self) -> bool {
        !self.inner.is_empty()
    }
}
