//! What somebody who misspelt a word most likely meant.

/// Longest text that is taken for a misspelt word, in bytes.
const LONGEST: usize = 64;

/// The word that `text` was most likely meant to be, if one is near enough.
///
/// ```
/// use tidegate_core::nearest;
///
/// assert_eq!(nearest("limt", ["name", "limit"]), Some("limit"));
/// assert_eq!(nearest("Token-Bucket", ["token_bucket"]), Some("token_bucket"));
/// assert_eq!(nearest("colour", ["name", "limit"]), None);
/// ```
#[must_use]
pub fn nearest<'w>(text: &str, words: impl IntoIterator<Item = &'w str>) -> Option<&'w str> {
    // Any number is near another, and none is meant by it.
    if text.len() > LONGEST || text.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    words
        .into_iter()
        .map(|word| (distance(text, word), word))
        .min()
        .filter(|(distance, word)| *distance <= (word.len() / 2).min(3))
        .map(|(_, word)| word)
}

/// ` (did you mean limit?)`, or nothing when no word is near; to be put after an error.
#[must_use]
pub fn did_you_mean<'w>(text: &str, words: impl IntoIterator<Item = &'w str>) -> String {
    nearest(text, words).map_or_else(String::new, |meant| format!(" (did you mean {meant}?)"))
}

/// How many letters must be added, dropped or changed to turn one word into the other.
fn distance(from: &str, to: &str) -> usize {
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
