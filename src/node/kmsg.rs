//! The kernel's own log: what is written there reaches a serial console, netconsole and pstore, and so outlives a host
//! whose disks and daemons hang.

use std::fs::OpenOptions;
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

/// syslog's LOG_DAEMON and LOG_EMERG (RFC 5424 section 6.2.1): facility 3, severity 0. The kernel keeps a facility that is
/// not its own (Documentation/ABI/testing/dev-kmsg).
const EMERGENCY: u8 = 3 << 3;
/// The kernel takes about 1000 bytes in one line (kernel/printk/printk.c, PRINTKRB_RECORD_MAX), prefix and all.
const LONGEST: usize = 900;

/// Writes one line that nobody can miss. Where it is refused (it takes root) the line is in syslog alone.
pub fn emergency(text: &str) {
    write_to(Path::new("/dev/kmsg"), text);
}

fn write_to(path: &Path, text: &str) {
    let open = OpenOptions::new().write(true).custom_flags(libc::O_NONBLOCK | libc::O_CLOEXEC).open(path);
    if let Ok(mut kmsg) = open {
        // One write is one line.
        let _ = kmsg.write(format!("<{EMERGENCY}>leasehold: {}\n", one_line(text)).as_bytes());
    }
}

fn one_line(text: &str) -> String {
    let mut line = String::new();
    for shown in text.chars().map(|c| if c.is_control() { ' ' } else { c }) {
        if line.len() + shown.len_utf8() > LONGEST {
            break;
        }
        line.push(shown);
    }
    line
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_one_and_short_enough_for_the_kernel() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("kmsg");
        std::fs::write(&path, "").unwrap();
        write_to(&path, &format!("web\n<0>panic: {}", "ü".repeat(1000)));
        let written = std::fs::read_to_string(&path).unwrap();
        assert!(written.starts_with("<24>leasehold: web <0>panic: ü"), "{written}");
        assert_eq!(written.matches('\n').count(), 1);
        assert!(written.len() < 960, "{}", written.len());
    }
}
