//! The authority's clocks: BOOTTIME, which decides, and the wall clock, which is shown.

use crate::lease::id::BootId;
use crate::lease::time::BootTime;
use nix::time::{ClockId, clock_gettime};
use std::time::{SystemTime, UNIX_EPOCH};

/// CLOCK_BOOTTIME now: runs through suspend, is never stepped (clock_gettime(2)).
///
/// # Errors
/// As clock_gettime: in practice never (Linux since 2.6.39).
pub fn boottime() -> std::io::Result<BootTime> {
    let time = clock_gettime(ClockId::CLOCK_BOOTTIME)?;
    Ok(BootTime::from_nanos(time.tv_sec() as u64 * 1_000_000_000 + time.tv_nsec() as u64))
}

/// The boot this machine runs in (/proc/sys/kernel/random/boot_id, random(4)); `None` where it cannot be read.
pub fn boot_id() -> Option<BootId> {
    std::fs::read_to_string("/proc/sys/kernel/random/boot_id").ok()?.parse().ok()
}

/// The wall clock as RFC 3339 in UTC with whole seconds.
pub fn wall() -> String {
    rfc3339(SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs()))
}

fn rfc3339(unix: u64) -> String {
    let (days, time) = (unix / 86_400, unix % 86_400);
    // Days to a date with years beginning in March, so that the leap day is a year's last (Howard Hinnant,
    // "chrono-Compatible Low-Level Date Algorithms", civil_from_days).
    let z = days + 719_468;
    let (era, day_of_era) = (z / 146_097, z % 146_097);
    let year_of_era = (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * shifted + 2) / 5 + 1;
    let month = if shifted < 10 { shifted + 3 } else { shifted - 9 };
    let year = year_of_era + era * 400 + u64::from(month <= 2);
    let (hour, minute, second) = (time / 3600, time / 60 % 60, time % 60);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}Z")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_wall_clock_reads_as_date_does() {
        // date -u -d @N +%FT%TZ
        for (unix, text) in [
            (0, "1970-01-01T00:00:00Z"),
            (951_782_400, "2000-02-29T00:00:00Z"),
            (1_709_251_199, "2024-02-29T23:59:59Z"),
            (1_735_689_600, "2025-01-01T00:00:00Z"),
            (4_107_542_400, "2100-03-01T00:00:00Z"),
        ] {
            assert_eq!(rfc3339(unix), text);
        }
    }

    #[test]
    fn boottime_does_not_go_back() {
        let first = boottime().unwrap();
        assert!(boottime().unwrap() >= first);
    }
}
