//! Requests of a log in one buffer, on their way from the reading to the deciding thread.

use tidegate_core::{Request, RequestError, Timestamp};

/// Requests with their times and the values of their attributes, all in one text.
#[derive(Debug, Default)]
pub(crate) struct RequestBatch {
    text: String,
    /// For each request and attribute the range of its value.
    values: Vec<Option<(usize, usize)>>,
    /// The time of each request, and the index of its first value.
    entries: Vec<(Timestamp, usize)>,
}

/// The lengths before a request was added.
#[derive(Clone, Copy, Debug)]
pub(crate) struct BatchMark {
    text: usize,
    values: usize,
}

impl RequestBatch {
    pub(crate) fn len(&self) -> usize {
        self.entries.len()
    }

    /// Returns the size of its text.
    pub(crate) fn bytes(&self) -> usize {
        self.text.len()
    }

    pub(crate) fn clear(&mut self) {
        self.text.clear();
        self.values.clear();
        self.entries.clear();
    }

    pub(crate) fn mark(&self) -> BatchMark {
        BatchMark { text: self.text.len(), values: self.values.len() }
    }

    /// Adds the value of the next attribute of a request that is being written.
    pub(crate) fn value(&mut self, value: Option<&str>) {
        let start = self.text.len();
        self.values.push(value.map(|value| (start, start + value.len())));
        self.text.push_str(value.unwrap_or_default());
    }

    /// Completes a request: its values are those since the mark.
    pub(crate) fn complete(&mut self, mark: BatchMark, at: Timestamp) {
        self.entries.push((at, mark.values));
    }

    /// Removes an incomplete request.
    pub(crate) fn undo(&mut self, mark: BatchMark) {
        self.text.truncate(mark.text);
        self.values.truncate(mark.values);
    }

    /// Sorts requests by time, stably.
    pub(crate) fn sort(&mut self) {
        if !self.entries.is_sorted_by_key(|(at, _)| *at) {
            self.entries.sort_by_key(|(at, _)| *at);
        }
    }

    /// Moves the last requests to another batch, which is empty. Each has so many attributes.
    pub(crate) fn split(&mut self, keep: usize, attributes: usize, to: &mut Self) {
        for (at, first) in self.entries.drain(keep.min(self.entries.len())..) {
            let mark = to.mark();
            for value in &self.values[first..first + attributes] {
                to.value(value.map(|(start, end)| &self.text[start..end]));
            }
            to.complete(mark, at);
        }
    }

    /// Returns the requests in the order of time, with attributes of these names.
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
