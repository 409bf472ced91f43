//! Spans of time as people write them: `10s`, `750ms`, `2m`, `1m30s`, `1.5s` is not one.

use std::time::Duration;

const UNITS: [(&str, u64); 4] = [("ms", 1), ("s", 1000), ("m", 60_000), ("h", 3_600_000)];

/// Reads whole numbers with the units h, m, s and ms, each at most once and in falling order. The largest is 24 h,
/// as for every value of the timeline.
///
/// # Errors
/// A clause that says what a span looks like.
pub fn parse(text: &str) -> Result<Duration, String> {
    let wrong = || {
        format!(
            "'{}' is no span of time; write a whole number with its unit, like \"750ms\", \"10s\" or \"2m\"",
            text.escape_debug()
        )
    };
    let (mut rest, mut total, mut last) = (text.trim(), 0u64, u64::MAX);
    if rest.is_empty() {
        return Err(wrong());
    }
    while !rest.is_empty() {
        let digits = rest.len() - rest.trim_start_matches(|c: char| c.is_ascii_digit()).len();
        let (number, tail) = rest.split_at(digits);
        let letters = tail.len() - tail.trim_start_matches(|c: char| c.is_ascii_alphabetic()).len();
        let (unit, tail) = tail.split_at(letters);
        let number: u64 = number.parse().map_err(|_| wrong())?;
        let &(_, millis) = UNITS.iter().find(|(name, _)| *name == unit).ok_or_else(wrong)?;
        if millis >= last {
            return Err(wrong());
        }
        (rest, last) = (tail, millis);
        total = number.checked_mul(millis).and_then(|span| total.checked_add(span)).ok_or_else(wrong)?;
    }
    if total > 24 * 3_600_000 {
        return Err(format!("'{text}' is longer than a day; no span of this file may be"));
    }
    Ok(Duration::from_millis(total))
}

/// A span as [`parse`] reads it, in the largest unit that loses nothing: `750ms`, `10s`, `2m`.
pub fn show(span: Duration) -> String {
    let millis = u64::try_from(span.as_millis()).unwrap_or(u64::MAX);
    let fits = |unit: &&(&str, u64)| millis != 0 && millis % unit.1 == 0;
    match UNITS.iter().rev().find(fits) {
        Some((name, unit)) => format!("{}{name}", millis / unit),
        None => "0s".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn spans_read_as_people_write_them() {
        for (text, millis) in
            [("10s", 10_000), ("750ms", 750), ("2m", 120_000), ("1m30s", 90_000), ("0s", 0), ("24h", 86_400_000)]
        {
            assert_eq!(parse(text), Ok(Duration::from_millis(millis)), "{text}");
        }
    }

    #[test]
    fn what_is_no_span_is_refused_with_an_example() {
        for text in [
            "",
            "10",
            "s",
            "1.5s",
            "-1s",
            "10 s",
            "10sec",
            "1s1m",
            "1s1s",
            "99999999999999999999s",
            "18446744073709551615h",
        ] {
            assert!(parse(text).unwrap_err().contains("like \"750ms\""), "{text}");
        }
        assert!(parse("25h").unwrap_err().contains("longer than a day"));
    }

    proptest! {
        #[test]
        fn every_span_shown_reads_back(millis in 0u64..=86_400_000) {
            let span = Duration::from_millis(millis);
            prop_assert_eq!(parse(&show(span)), Ok(span));
        }

        #[test]
        fn no_text_makes_it_panic(text in ".{0,40}") {
            let _ = parse(&text);
        }
    }
}
