//! What the operator is told. Everything that may block, blocks here: the other threads drop a line into a bounded
//! channel and go on.

use crate::lease::event::{Notice, Severity};
use crate::node::kmsg;
use std::io::Write;
use std::os::unix::net::UnixDatagram;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::time::{Duration, Instant};
use syslog::{Facility, Formatter3164, LogFormat};

/// Lines that may wait; more are dropped and counted.
const WAITING: usize = 4096;

/// The way to the operator. Cheap to copy, never blocks.
#[derive(Clone)]
pub struct Record {
    lines: SyncSender<Notice>,
    dropped: Arc<AtomicU64>,
    open: Arc<AtomicU64>,
}

impl Record {
    /// Starts the thread.
    pub fn start() -> std::io::Result<Record> {
        let (lines, receiver) = sync_channel(WAITING);
        let dropped = Arc::new(AtomicU64::new(0));
        let counter = dropped.clone();
        let open = Arc::new(AtomicU64::new(0));
        let written = open.clone();
        std::thread::Builder::new()
            .name("record".into())
            .stack_size(256 << 10)
            .spawn(move || run(&receiver, &counter, &written))?;
        Ok(Record { lines, dropped, open })
    }

    /// One whose lines go to a test.
    #[cfg(test)]
    pub fn for_tests() -> (Record, Receiver<Notice>) {
        let (lines, told) = sync_channel(WAITING);
        (Record { lines, dropped: Arc::default(), open: Arc::default() }, told)
    }

    /// Passes a line on.
    pub fn tell(&self, notice: Notice) {
        self.open.fetch_add(1, Ordering::AcqRel);
        if self.lines.try_send(notice).is_err() {
            self.open.fetch_sub(1, Ordering::AcqRel);
            self.dropped.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Waits until everything passed on so far is written, and not longer than this.
    pub fn settle(&self, limit: Duration) {
        let start = Instant::now();
        while self.open.load(Ordering::Acquire) > 0 && start.elapsed() < limit {
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Passes a line on.
    pub fn say(&self, severity: Severity, text: String) {
        self.tell(Notice { severity, text });
    }
}

fn run(lines: &Receiver<Notice>, dropped: &AtomicU64, open: &AtomicU64) {
    // Under systemd stderr is the journal, which reads the priority prefix (sd-daemon(3)); a second copy by syslog
    // would be the same line twice.
    let journal = std::env::var_os("JOURNAL_STREAM").is_some();
    let mut syslog = (!journal).then(Syslog::default);
    while let Ok(notice) = lines.recv() {
        put(&notice, journal, &mut syslog);
        open.fetch_sub(1, Ordering::AcqRel);
        let lost = dropped.swap(0, Ordering::Relaxed);
        if lost > 0 {
            let text = format!("{lost} lines were lost: whoever reads this log is slower than it is written");
            put(&Notice { severity: Severity::Warning, text }, journal, &mut syslog);
        }
    }
}

fn put(notice: &Notice, journal: bool, syslog: &mut Option<Syslog>) {
    let priority = match notice.severity {
        Severity::Emergency => 0,
        Severity::Info => 6,
        Severity::Warning => 4,
        Severity::Error => 3,
    };
    if notice.severity == Severity::Emergency {
        // First: whatever reads stderr or syslog may hang with the host's disks.
        kmsg::emergency(&notice.text);
    }
    // A closed stderr is nobody's business.
    let mut stderr = std::io::stderr().lock();
    let _ = if journal {
        writeln!(stderr, "<{priority}>{}", notice.text)
    } else {
        writeln!(stderr, "leasehold: {}", notice.text)
    };
    if let Some(syslog) = syslog {
        syslog.send(notice);
    }
}

/// syslog's datagrams over a socket that never blocks and is opened anew when the daemon behind it was restarted: the
/// crate's own socket does neither (rust-syslog issues 21 and 79), so only its formatter is used.
#[derive(Default)]
struct Syslog {
    socket: Option<UnixDatagram>,
}

impl Syslog {
    fn send(&mut self, notice: &Notice) {
        let mut formatter = Formatter3164 {
            facility: Facility::LOG_DAEMON,
            hostname: None,
            process: "leasehold".into(),
            pid: std::process::id(),
        };
        let mut line = Vec::new();
        let formatted = match notice.severity {
            Severity::Info => formatter.info(&mut line, &notice.text),
            Severity::Warning => formatter.warning(&mut line, &notice.text),
            Severity::Error => formatter.err(&mut line, &notice.text),
            Severity::Emergency => formatter.emerg(&mut line, &notice.text),
        };
        if formatted.is_err() {
            return;
        }
        for _ in 0..2 {
            let open = || {
                let socket = UnixDatagram::unbound().ok()?;
                socket.set_nonblocking(true).ok()?;
                socket.connect("/dev/log").ok()?;
                Some(socket)
            };
            self.socket = self.socket.take().or_else(open);
            match &self.socket {
                Some(socket) if socket.send(&line).is_ok() => return,
                // Full, or the daemon was restarted: once more with a new socket, and then the line is only on stderr.
                Some(_) => self.socket = None,
                None => return,
            }
        }
    }
}
