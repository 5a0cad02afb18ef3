//! Many requests in one piece of memory, on their way from who reads to who decides.

use tidegate::{Request, RequestError, Timestamp};

/// Requests by instant and the values of their attributes, all in one text.
#[derive(Debug, Default)]
pub(crate) struct Batch {
    text: String,
    /// For each request as many as there are attributes: where its value begins and ends.
    values: Vec<Option<(usize, usize)>>,
    /// When each came, and which of the values is its first.
    entries: Vec<(Timestamp, usize)>,
}

/// How much there was before a request was written.
#[derive(Clone, Copy, Debug)]
pub(super) struct Mark {
    text: usize,
    values: usize,
}

impl Batch {
    pub(crate) fn len(&self) -> usize {
        self.entries.len()
    }

    /// How much memory its texts take.
    pub(super) fn bytes(&self) -> usize {
        self.text.len()
    }

    pub(super) fn clear(&mut self) {
        self.text.clear();
        self.values.clear();
        self.entries.clear();
    }

    pub(super) fn mark(&self) -> Mark {
        Mark { text: self.text.len(), values: self.values.len() }
    }

    /// Adds the value of the next attribute of a request that is being written.
    pub(super) fn value(&mut self, value: Option<&str>) {
        let start = self.text.len();
        self.values.push(value.map(|value| (start, start + value.len())));
        self.text.push_str(value.unwrap_or_default());
    }

    /// A request is complete: its values are those since the mark.
    pub(super) fn complete(&mut self, mark: Mark, at: Timestamp) {
        self.entries.push((at, mark.values));
    }

    /// A request came to nothing.
    pub(super) fn undo(&mut self, mark: Mark) {
        self.text.truncate(mark.text);
        self.values.truncate(mark.values);
    }

    /// Puts requests in the order of time; those of one instant stay as they are.
    pub(super) fn sort(&mut self) {
        if !self.entries.is_sorted_by_key(|(at, _)| *at) {
            self.entries.sort_by_key(|(at, _)| *at);
        }
    }

    /// Moves the last requests to another batch, which is empty. Each has so many attributes.
    pub(super) fn split(&mut self, keep: usize, attributes: usize, to: &mut Self) {
        for (at, first) in self.entries.drain(keep.min(self.entries.len())..) {
            let mark = to.mark();
            for value in &self.values[first..first + attributes] {
                to.value(value.map(|(start, end)| &self.text[start..end]));
            }
            to.complete(mark, at);
        }
    }

    /// Each request in the order of time, with attributes of these names.
    pub(crate) fn requests<'b>(
        &'b self,
        names: &'b [String],
    ) -> impl Iterator<Item = (Timestamp, Result<Request<'b>, RequestError>)> {
        self.entries.iter().map(|(at, first)| {
            let values = &self.values[*first..first + names.len()];
            let mut request = Request::new();
            let mut insert = |(name, value): (&'b String, &Option<(usize, usize)>)| match value {
                Some((start, end)) => request.insert(name.as_str(), &self.text[*start..*end]),
                None => Ok(()),
            };
            let refused = names.iter().zip(values).try_for_each(&mut insert);
            (*at, refused.map(|()| request))
        })
    }
}
