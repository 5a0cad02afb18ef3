//! Suggestions for misspelt words.

/// Maximum length of a text that may be a misspelt word.
const MAX_WORD_BYTES: usize = 64;

/// Returns the word that `text` most likely misspells, if one is close enough.
///
/// ```
/// use tidegate_rules::nearest;
///
/// assert_eq!(nearest("limt", ["name", "limit"]), Some("limit"));
/// assert_eq!(nearest("Token-Bucket", ["token_bucket"]), Some("token_bucket"));
/// assert_eq!(nearest("colour", ["name", "limit"]), None);
/// ```
#[must_use]
pub fn nearest<'w>(text: &str, words: impl IntoIterator<Item = &'w str>) -> Option<&'w str> {
    // Every number is close to some other number: that is not a misspelling.
    if text.len() > MAX_WORD_BYTES || text.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    words
        .into_iter()
        .map(|word| (distance(text, word), word))
        .min()
        .filter(|(distance, word)| *distance <= (word.len() / 2).min(3))
        .map(|(_, word)| word)
}

/// Returns ` (did you mean limit?)` to append to an error, or an empty text if no word is close.
#[must_use]
pub fn did_you_mean<'w>(text: &str, words: impl IntoIterator<Item = &'w str>) -> String {
    nearest(text, words).map_or_else(String::new, |meant| format!(" (did you mean {meant}?)"))
}

/// Returns the number of letters that must be added, removed or changed to turn one word into the other.
pub(crate) fn distance(from: &str, to: &str) -> usize {
    let mut row: Vec<usize> = (0..=to.chars().count()).collect();
    for (index, typed) in from.chars().enumerate() {
        let mut diagonal = index;
        let mut left = index + 1;
        for (cell, wanted) in row.iter_mut().skip(1).zip(to.chars()) {
            let changed = diagonal + usize::from(!typed.eq_ignore_ascii_case(&wanted));
            diagonal = *cell;
            *cell = changed.min(diagonal + 1).min(left + 1);
            left = *cell;
        }
        if let Some(first) = row.first_mut() {
            *first = index + 1;
        }
    }
    row.last().copied().unwrap_or_default()
}
