//! Times in logs.

use jiff::civil::DateTime;
use jiff::tz::Offset;
use tidegate_core::Timestamp;

/// The forms that [`read`] accepts.
pub(crate) const WANTED: &str = "a time like 10/Oct/2026:13:55:36 +0200, 2026-10-10T13:55:36.5Z or \
                                 1791640536.5";

/// Reads a time: of the Common Log Format, RFC 3339 (UTC without an offset), or seconds
/// since 1970 (or milliseconds, microseconds, nanoseconds, whichever gives a year near the present).
pub(crate) fn read(text: &str) -> Option<Timestamp> {
    let bytes = text.as_bytes();
    match (bytes.get(2), bytes.get(4)) {
        (Some(b'/'), _) => common(bytes),
        (_, Some(b'-')) => rfc3339(bytes),
        _ => unix(text.parse().ok()?),
    }
}

/// Reads a time as a number since 1970.
pub(crate) fn unix(number: f64) -> Option<Timestamp> {
    let micros = match number {
        seconds if seconds < 1e11 => seconds * 1e6,
        millis if millis < 1e14 => millis * 1e3,
        micros if micros < 1e17 => micros,
        nanos => nanos / 1e3,
    };
    // Later times exceed the range of timestamps in limits.
    let fits = (0.0..9e15).contains(&micros);
    fits.then(|| Timestamp::from_micros(micros.round() as u64))
}

const MONTHS: [&[u8; 3]; 12] = [
    b"Jan", b"Feb", b"Mar", b"Apr", b"May", b"Jun", b"Jul", b"Aug", b"Sep", b"Oct", b"Nov", b"Dec",
];

/// Reads `10/Oct/2026:13:55:36 +0200`.
pub(crate) fn common(text: &[u8]) -> Option<Timestamp> {
    let (day, month, year) = (two(text, 0)?, text.get(3..6)?, four(text, 7)?);
    let month = MONTHS.iter().position(|known| known.as_slice() == month)?;
    let separators = [(2, b'/'), (6, b'/'), (11, b':'), (14, b':'), (17, b':'), (20, b' ')];
    if !separators.iter().all(|(place, byte)| text.get(*place) == Some(byte)) {
        return None;
    }
    let date = (year, i8::try_from(month + 1).ok()?, day);
    let clock = (two(text, 12)?, two(text, 15)?, two(text, 18)?);
    instant(date, clock, 0, offset(text.get(21..)?)?)
}

/// Reads `2026-10-10T13:55:36.5+02:00`.
fn rfc3339(text: &[u8]) -> Option<Timestamp> {
    let date = (four(text, 0)?, two(text, 5)?, two(text, 8)?);
    let clock = (two(text, 11)?, two(text, 14)?, two(text, 17)?);
    let separators = [(7, b'-'), (13, b':'), (16, b':')];
    if !separators.iter().all(|(place, byte)| text.get(*place) == Some(byte))
        || !matches!(text.get(10), Some(b'T' | b't' | b' '))
    {
        return None;
    }
    let mut rest = text.get(19..)?;
    let mut nanos = 0;
    if let Some((b'.' | b',', fraction)) = rest.split_first() {
        let digits = fraction.iter().take_while(|byte| byte.is_ascii_digit()).count();
        let places = (0..9)
            .map(|place| fraction[..digits].get(place).map_or(0, |digit| i32::from(*digit - b'0')));
        nanos = places.fold(0, |nanos, digit| nanos * 10 + digit);
        rest = &fraction[digits..];
    }
    let offset = match rest {
        b"" | b"Z" | b"z" => 0,
        _ => offset(rest)?,
    };
    instant(date, clock, nanos, offset)
}

fn instant(
    (year, month, day): (i16, i8, i8),
    (hour, minute, second): (i8, i8, i8),
    nanos: i32,
    offset: i32,
) -> Option<Timestamp> {
    // A leap second counts as the second before it.
    let date = DateTime::new(year, month, day, hour, minute, second.min(59), nanos).ok()?;
    let instant = Offset::from_seconds(offset).ok()?.to_timestamp(date).ok()?;
    Some(Timestamp::from_micros(u64::try_from(instant.as_microsecond()).ok()?))
}

/// Reads `+0200` or `+02:00`, in seconds.
fn offset(text: &[u8]) -> Option<i32> {
    let (hours, minutes) = match text.len() {
        5 => (two(text, 1)?, two(text, 3)?),
        6 if text[3] == b':' => (two(text, 1)?, two(text, 4)?),
        _ => return None,
    };
    let seconds = i32::from(hours) * 3600 + i32::from(minutes) * 60;
    match text[0] {
        b'+' => Some(seconds),
        b'-' => Some(-seconds),
        _ => None,
    }
}

fn two(text: &[u8], at: usize) -> Option<i8> {
    i8::try_from(digits(text.get(at..at + 2)?)?).ok()
}

fn four(text: &[u8], at: usize) -> Option<i16> {
    digits(text.get(at..at + 4)?)
}

fn digits(text: &[u8]) -> Option<i16> {
    let add = |number: i16, digit: &u8| {
        digit.is_ascii_digit().then(|| number * 10 + i16::from(digit - b'0'))
    };
    text.iter().try_fold(0, add)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn micros(text: &str) -> Option<u64> {
        read(text).map(Timestamp::as_micros)
    }

    #[test]
    fn all_time_formats_give_the_same_instant() {
        let wanted = Some(1_791_640_536_000_000);
        for text in [
            "10/Oct/2026:13:55:36 +0000",
            "10/Oct/2026:15:55:36 +0200",
            "10/Oct/2026:06:25:36 -0730",
            "2026-10-10T13:55:36Z",
            "2026-10-10 13:55:36",
            "2026-10-10T15:55:36.000+02:00",
            "2026-10-10t15:55:36,0+0200",
            "1791640536",
            "1791640536.0",
            "1791640536000",
            "1791640536000000",
            "1791640536000000000",
        ] {
            assert_eq!(micros(text), wanted, "{text}");
        }
        assert_eq!(micros("2026-10-10T13:55:36.1234567Z"), wanted.map(|micros| micros + 123_456));
        assert_eq!(micros("1791640536.123456"), wanted.map(|micros| micros + 123_456));
    }

    #[test]
    fn invalid_time_is_rejected() {
        for text in [
            "",
            "-",
            "yesterday",
            "nan",
            "inf",
            "-5",
            "1e300",
            "32/Oct/2026:13:55:36 +0000",
            "10/Okt/2026:13:55:36 +0000",
            "10/Oct/2026:13:55:36",
            "10/Oct/2026 13:55:36 +0000",
            "10/Oct/1969:13:55:36 +0000",
            "2026-13-10T13:55:36Z",
            "2026-10-10T24:55:36Z",
            "2026-10-10T13:55:36+2",
            "2026-10-10",
            "é/Oct/2026:13:55:36 +0000",
        ] {
            assert_eq!(micros(text), None, "{text}");
        }
    }
}
