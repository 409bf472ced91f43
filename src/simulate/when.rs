//! Spans and instants as a script writes them, down to the microsecond.

use super::phrase::{DomainIx, HostIx, Names};
use crate::lease::timing::Timing;
use std::time::Duration;

/// The longest span of a script.
pub const LONGEST: Duration = Duration::from_secs(24 * 3600);
const UNITS: [(&str, u64); 4] = [("us", 1), ("ms", 1_000), ("s", 1_000_000), ("m", 60_000_000)];

/// Reads `750ms`, `12.345s`, `2m`.
///
/// # Errors
/// A clause that says what a span looks like.
pub fn span(text: &str) -> Result<Duration, String> {
    let wrong = || format!("'{}' is no span of time; write it like 750ms, 12.5s or 2m", text.escape_debug());
    let digits = text.find(|c: char| !c.is_ascii_digit() && c != '.').ok_or_else(wrong)?;
    let (number, unit) = text.split_at(digits);
    let &(_, micros) = UNITS.iter().find(|(name, _)| *name == unit).ok_or_else(wrong)?;
    let (whole, part) = number.split_once('.').unwrap_or((number, "0"));
    if part.is_empty() || part.len() > 6 || whole.len() > 9 {
        return Err(wrong());
    }
    let (whole, tens) = (whole.parse::<u64>().map_err(|_| wrong())?, 10u64.pow(part.len() as u32));
    let part = part.parse::<u64>().map_err(|_| wrong())?;
    let span = Duration::from_micros(whole * micros + part * micros / tens);
    if span > LONGEST { Err(format!("'{text}' is longer than a day")) } else { Ok(span) }
}

/// A span as [`span`] reads it.
pub fn show(span: Duration) -> String {
    let micros = span.as_micros();
    match (micros % 1_000_000, micros % 1_000) {
        (0, _) => format!("{}s", micros / 1_000_000),
        (_, 0) if micros < 1_000_000 => format!("{}ms", micros / 1_000),
        (part, _) => {
            let part = format!("{part:06}");
            format!("{}.{}s", micros / 1_000_000, part.trim_end_matches('0'))
        }
    }
}

/// Reads `T+12.5s`.
///
/// # Errors
/// A clause that says what such a time looks like.
pub fn after_t(text: &str) -> Result<Duration, String> {
    match text.strip_prefix("T+") {
        Some(after) => span(after),
        None if text == "T" => Ok(Duration::ZERO),
        None => Err(format!("'{}' is no time; write it like T+12.5s", text.escape_debug())),
    }
}

/// When a line of the script is due. What it counts from is looked up when the line before it was done, and holds from
/// then on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct When {
    /// What it counts from.
    pub base: Base,
    /// Microseconds after that; negative: before.
    pub plus: i64,
}

/// What an instant counts from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Base {
    /// T: everything runs and is armed.
    T,
    /// `then`: when the line before was done.
    Then,
    /// `E(DOMAIN@HOST)`: the end of the right to run that domain on that machine, as its guard knows it.
    Expiry(DomainIx, HostIx),
    /// `bound(HOST)`: the authority's last answer to that machine that could have renewed, and its bound.
    Bound(HostIx),
}

/// What an expression may look like, for people.
pub const FORMS: &str = "T, then, E(DOMAIN@HOST), lapse(DOMAIN@HOST), reset(DOMAIN@HOST) or bound(HOST), and then any of +SPAN, -SPAN, +L, -R, -D, -P, +W, +m";

impl When {
    /// Reads `T+10s`, `E(web@n1)-P-10ms`, `lapse(web@n1)+1ms`, `then+500ms`.
    ///
    /// # Errors
    /// A sentence with what is wrong and what is allowed.
    pub fn parse(text: &str, names: &Names, timing: &Timing) -> Result<When, String> {
        let wrong = || format!("'{}' is no time; allowed is {FORMS}", text.escape_debug());
        let name = text.find(['(', '+', '-']).unwrap_or(text.len());
        let (word, mut rest) = text.split_at(name);
        let inside = rest.strip_prefix('(').and_then(|rest| rest.split_once(')'));
        if let Some((_, after)) = inside {
            rest = after;
        }
        let inside = inside.map(|(inside, _)| inside);
        let known = |known: &[String], name: &str, what: &str| {
            let unknown = || format!("'{}' is no {what} of this scenario", name.escape_debug());
            known.iter().position(|one| one == name).ok_or_else(unknown)
        };
        let expiry = || {
            let (domain, host) = inside.and_then(|inside| inside.split_once('@')).ok_or_else(wrong)?;
            let domain = DomainIx(known(&names.domains, domain, "domain")?);
            Ok::<_, String>(Base::Expiry(domain, HostIx(known(&names.hosts, host, "machine")?)))
        };
        let micros = |span: Duration| span.as_micros() as i64;
        let feed = micros(timing.feed());
        let (base, mut plus) = match (word, inside) {
            ("T", None) => (Base::T, 0),
            ("then", None) => (Base::Then, 0),
            ("E", Some(_)) => (expiry()?, 0),
            ("lapse", Some(_)) => (expiry()?, -micros(timing.polite)),
            ("reset", Some(_)) => (expiry()?, micros(timing.watchdog) - feed),
            ("bound", Some(host)) => (Base::Bound(HostIx(known(&names.hosts, host, "machine")?)), 0),
            _ => return Err(wrong()),
        };
        while !rest.is_empty() {
            let sign = match rest.as_bytes()[0] {
                b'+' => 1,
                b'-' => -1,
                _ => return Err(wrong()),
            };
            let end = rest[1..].find(['+', '-']).map_or(rest.len(), |end| end + 1);
            let term = match &rest[1..end] {
                "L" => micros(timing.ttl),
                "R" => micros(timing.renew),
                "D" => micros(timing.polite),
                "W" => micros(timing.watchdog),
                "P" => feed,
                "m" => micros(timing.margin),
                other => micros(span(other).map_err(|_| wrong())?),
            };
            plus += sign * term;
            rest = &rest[end..];
        }
        Ok(When { base, plus })
    }

    /// The text that reads as this.
    pub fn show(&self, names: &Names) -> String {
        let base = match self.base {
            Base::T => "T".to_owned(),
            Base::Then => "then".to_owned(),
            Base::Expiry(domain, host) => format!("E({}@{})", names.domains[domain.0], names.hosts[host.0]),
            Base::Bound(host) => format!("bound({})", names.hosts[host.0]),
        };
        let plus = show(Duration::from_micros(self.plus.unsigned_abs()));
        match self.plus {
            0 => base,
            1.. => format!("{base}+{plus}"),
            _ => format!("{base}-{plus}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lease::timing::Profile;

    #[test]
    fn spans_read_as_people_write_them_and_write_out_as_they_read() {
        for (text, micros) in
            [("750ms", 750_000), ("12.345s", 12_345_000), ("2m", 120_000_000), ("0s", 0), ("4.997501s", 4_997_501)]
        {
            assert_eq!(span(text), Ok(Duration::from_micros(micros)), "{text}");
            assert_eq!(span(&show(Duration::from_micros(micros))), span(text));
        }
        for text in ["", "10", "s", "-1s", "1.s", "1 s", "99999999999s", "25000m"] {
            assert!(span(text).is_err(), "{text}");
        }
    }

    #[test]
    fn instants_are_told_by_the_timers_of_the_design() {
        let names = Names { hosts: vec!["n1".into()], domains: vec!["web".into()] };
        let timing = Timing::profile(Profile::Default);
        let plus = |text| When::parse(text, &names, &timing).unwrap().plus;
        assert_eq!(plus("E(web@n1)-P-10ms"), -1_010_000);
        assert_eq!(plus("lapse(web@n1)"), -2_000_000);
        assert_eq!(plus("reset(web@n1)+1ms"), 9_001_000);
        assert_eq!(plus("T+L+W+m"), 26_000_000);
        for wrong in ["", "E", "E(web)", "E(db@n1)", "T*2", "T+", "T+10", "now", "T(web@n1)", "E(web@n1"] {
            assert!(When::parse(wrong, &names, &timing).is_err(), "{wrong}");
        }
    }
}
