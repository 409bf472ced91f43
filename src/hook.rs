//! libvirt's qemu hook: its arguments and the domain's XML on stdin become one question to the guard and an exit code.
//!
//! libvirt runs it as root with the domain locked and waits without a limit of its own (virhook.c, vircommand.c), so
//! the hook has a deadline and fails closed. It never writes to stdout, which libvirt would read as a domain's XML at
//! `migrate` and `restore`; its stderr is what `virsh start` shows.

use crate::config::Config;
use crate::disks::HostCached;
use crate::lease::admission::may_reconnect;
use crate::lease::event::HookOp;
use crate::lease::id::{DomainId, NodeId, ProcessKey};
use crate::lease::ledger::{Entry, Ledger, Recovered, label};
use crate::local::{self, HookRequest, HookSettings, Reply, Request};
use crate::node::libvirt::is_daemon_name;
use crate::node::{clock, files, host, process};
use quick_xml::Reader;
use quick_xml::events::Event;
use std::ffi::OsString;
use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
use std::path::Path;
use std::process::ExitCode;
use std::sync::mpsc::{Sender, channel};
use std::time::{Duration, Instant};

/// Where the uuid must be found. It stands at the top.
const MAX_READ: u64 = 1 << 20;
/// Where the disks must be found. libvirt takes 4 MiB of XML and hands up to 25 MB on, quotes being entities there.
const MAX_DISKS: u64 = 32 << 20;
/// Taken off the deadline for the way back from the guard.
const RETURN: Duration = Duration::from_millis(200);
/// For an operation that ends something: the guard reads what was sent even when nobody waits any more, and after a
/// refused start libvirt runs two of these before it says so.
const END_DEADLINE: Duration = Duration::from_millis(500);
/// Where nothing else is said.
const DEFAULT_DEADLINE: Duration = Duration::from_secs(3);

/// Runs the hook with libvirt's arguments: NAME OP SUBOP EXTRA.
pub fn run(arguments: &[OsString]) -> ExitCode {
    let started = Instant::now();
    let argument = |at: usize| arguments.get(at).map(|text| text.to_string_lossy().into_owned()).unwrap_or_default();
    let (name, op) = (argument(0), HookOp::parse(&argument(1), &argument(2)));
    // Before the first file is read: a read may hang.
    let limits = give_up_in_time(started, &name, op);
    let settings = read_settings();
    let limit = Limit::of(settings.as_ref(), op);
    let observe = settings.as_ref().map(|read| read.observe);
    // No thread to take it, no deadline but the socket's timeouts; it has been said.
    let _ = limits.send(limit);

    let call = Call { name, op, started, deadline: limit.deadline, run_dir: Path::new(local::RUN_DIR) };
    let verdict = call.decide(std::io::stdin().lock());
    match refusal(verdict, op, || observe.unwrap_or_else(configured_to_observe)) {
        None => ExitCode::SUCCESS,
        Some(sentence) => {
            complain(&sentence);
            ExitCode::FAILURE
        }
    }
}

/// The sentence to fail with, if libvirt is to be refused.
fn refusal(verdict: Result<(), String>, op: HookOp, observes: impl FnOnce() -> bool) -> Option<String> {
    match (verdict, op.can_refuse()) {
        (Ok(()), _) | (Err(_), false) => None,
        // safety: an observing node promises nothing, so nobody relies on a refusal.
        (Err(_), true) if observes() => None,
        (Err(sentence), true) => Some(sentence),
    }
}

/// How long libvirt is kept waiting, and whether a late verdict refuses.
#[derive(Debug, Clone, Copy)]
struct Limit {
    deadline: Duration,
    refuses: bool,
}

impl Limit {
    fn of(settings: Option<&HookSettings>, op: HookOp) -> Limit {
        let deadline = settings.map_or(DEFAULT_DEADLINE, |read| Duration::from_millis(read.deadline_ms));
        let observe = settings.is_some_and(|read| read.observe);
        Limit {
            deadline: if op.can_refuse() { deadline } else { deadline.min(END_DEADLINE) },
            refuses: op.can_refuse() && op != HookOp::Reconnect && !observe,
        }
    }
}

struct Call<'a> {
    name: String,
    op: HookOp,
    started: Instant,
    deadline: Duration,
    /// The guard's.
    run_dir: &'a Path,
}

impl Call<'_> {
    /// `Err` is the sentence for `virsh start`.
    fn decide(&self, xml: impl Read) -> Result<(), String> {
        let mut xml = Reader::from_reader(BufReader::new(xml.take(MAX_READ)));
        let Identity { domain, run, depth } = identify(&mut xml).map_err(|why| {
            format!("domain {} is not let through: libvirt's XML {why}. Please report this", self.name.escape_debug())
        })?;
        let host_cached = (self.op == HookOp::Prepare).then(|| {
            xml.get_mut().get_mut().set_limit(MAX_DISKS);
            // Half is left for the verdict, so that a rule which lets it through still can.
            HostCached::read(&mut xml, depth, self.started + self.deadline / 2)
        });
        let within = self.deadline.saturating_sub(RETURN).saturating_sub(self.started.elapsed());
        let request = HookRequest {
            domain,
            name: self.name.clone(),
            op: self.op,
            daemon: libvirt_daemon(),
            run,
            asked: Some(clock::now()),
            host_cached: host_cached.unwrap_or_default(),
            within_ms: within.as_millis() as u64,
        };
        // The guard answers within its time; the extra is for a guard that does not, and ends before our own.
        let patience = within + RETURN / 2;
        match local::ask(self.run_dir, &Request::Hook(request), patience) {
            Ok(Reply::Allow) => Ok(()),
            Ok(Reply::Refuse(sentence)) => Err(sentence),
            // safety: the guard owns what runs; here only a positively ended lease may kill (see may_reconnect).
            _ if self.op == HookOp::Reconnect => reconnect_without_guard(self.run_dir, domain),
            Ok(Reply::Bad(why)) => Err(self.guard_hangs(domain, &why)),
            Ok(_) => Err(self.guard_hangs(domain, "it answered something else: is it of another version?")),
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {
                Err(self.guard_hangs(domain, &format!("nothing within {:.1} s", patience.as_secs_f64())))
            }
            Err(error) if matches!(error.kind(), ErrorKind::UnexpectedEof | ErrorKind::InvalidData) => {
                Err(self.guard_hangs(domain, &error.to_string()))
            }
            Err(error) => Err(self.guard_away(domain, &error)),
        }
    }

    fn guard_away(&self, domain: DomainId, why: &std::io::Error) -> String {
        format!(
            "domain {} is not started: the guard on this host does not answer ({why}). Start it: systemctl start leasehold",
            label(&self.name, domain)
        )
    }

    fn guard_hangs(&self, domain: DomainId, why: &str) -> String {
        format!(
            "domain {} is not started: the guard on this host does not answer as it should ({why}). See journalctl -u leasehold; if it hangs: systemctl restart leasehold",
            label(&self.name, domain)
        )
    }
}

/// With the guard away, its ledger decides; what it does not know is allowed.
fn reconnect_without_guard(run_dir: &Path, domain: DomainId) -> Result<(), String> {
    let Ok(bytes) = files::read_bounded(&local::ledger_path(run_dir), 64 << 20) else { return Ok(()) };
    let Ok(boot) = host::boot_id() else { return Ok(()) };
    let Recovered::Restored(ledger) = Ledger::recover(&bytes, boot) else { return Ok(()) };
    let unknown = Entry::default();
    let node: NodeId = read_settings()
        .and_then(|read| read.node.parse().ok())
        .unwrap_or_else(|| "this-node".parse().expect("a good id"));
    may_reconnect(ledger.domains.get(&domain).unwrap_or(&unknown), domain, &node, clock::now())
}

/// Which domain the XML is of, and libvirt's number of its run.
#[derive(Debug, PartialEq, Eq)]
struct Identity {
    domain: DomainId,
    run: Option<i64>,
    /// In how many elements the reader is where it stopped.
    depth: usize,
}

/// Reads as far as `<uuid>`, a child of `<domain>`, and no further.
fn identify(reader: &mut Reader<impl BufRead>) -> Result<Identity, String> {
    let (mut buffer, mut depth, mut run, mut in_uuid) = (Vec::new(), 0, None, false);
    loop {
        match reader.read_event_into(&mut buffer).map_err(|error| format!("is not well formed ({error})"))? {
            Event::Start(element) => {
                depth += 1;
                if depth == 1 {
                    let id = element.try_get_attribute("id").ok().flatten();
                    run = id.and_then(|id| id.value.parse().ok());
                }
                in_uuid = depth == 2 && element.name().as_ref() == "uuid";
            }
            Event::End(_) => {
                depth -= 1;
                in_uuid = false;
            }
            Event::Text(text) if in_uuid => {
                return text
                    .parse()
                    .map(|domain| Identity { domain, run, depth })
                    .map_err(|bad| format!("is odd: {bad}"));
            }
            Event::Eof => return Err("has no uuid".into()),
            _ => {}
        }
        buffer.clear();
    }
}

/// The libvirt daemon among our nearest ancestors. A wrapper script in between is no daemon: taking it for one would
/// close an admission at its death.
fn libvirt_daemon() -> Option<ProcessKey> {
    let mut pid = nix::unistd::getppid().as_raw();
    for _ in 0..4 {
        if is_libvirt(pid) {
            return process::key_of(pid).ok();
        }
        pid = process::parent_of(pid)?;
    }
    None
}

fn is_libvirt(pid: i32) -> bool {
    process::comm_of(pid).is_ok_and(|comm| is_daemon_name(&comm))
}

fn read_settings() -> Option<HookSettings> {
    let bytes = files::read_bounded(&local::hook_settings_path(Path::new(local::RUN_DIR)), 4096).ok()?;
    serde_json::from_slice(&bytes).ok()
}

/// No guard ran since boot: the configuration says whether this node observes.
fn configured_to_observe() -> bool {
    Config::load(Path::new(crate::config::PATH)).is_ok_and(|config| config.policy().observe)
}

/// Ends the process at the deadline, whatever hangs: stdin, the guard, a disk. The deadline is the default one until
/// another is sent.
fn give_up_in_time(started: Instant, name: &str, op: HookOp) -> Sender<Limit> {
    let (sender, limits) = channel();
    let name = name.escape_debug().to_string();
    let timer = std::thread::Builder::new().stack_size(128 << 10).spawn(move || {
        let unknown = Limit::of(None, op);
        let limit = limits.recv_timeout(unknown.deadline).unwrap_or(unknown);
        std::thread::sleep((started + limit.deadline).saturating_duration_since(Instant::now()));
        if limit.refuses {
            complain(&format!("domain {name} is not started: no verdict in time. Is the guard or a disk of this host hung? See `leasehold status`"));
            std::process::exit(1);
        }
        std::process::exit(0);
    });
    if timer.is_err() {
        // Without a timer every step still has the socket's timeouts.
        complain("cannot start the deadline's thread");
    }
    sender
}

/// One line on stderr; a closed pipe is nobody's business.
fn complain(sentence: &str) {
    let _ = writeln!(std::io::stderr(), "leasehold: {sentence}");
}

#[cfg(test)]
mod tests {
    use super::*;

    const UUID: &str = "fc3be091-56d3-4c69-8adb-2fdb8b0a35d2";

    fn identity(xml: &str) -> Result<Identity, String> {
        identify(&mut Reader::from_reader(xml.as_bytes()))
    }

    fn decide(op: HookOp, run_dir: &Path, xml: &str) -> Result<(), String> {
        let (started, deadline) = (Instant::now(), RETURN + Duration::from_millis(50));
        Call { name: "web-1".into(), op, started, deadline, run_dir }.decide(xml.as_bytes())
    }

    #[test]
    fn a_start_is_refused_where_the_guard_is_away_or_hangs_and_a_reconnect_is_not() {
        let xml = format!("<domain><uuid>{UUID}</uuid><devices/></domain>");
        let directory = tempfile::tempdir().unwrap();
        let refused = |why: &str| {
            let sentence = decide(HookOp::Prepare, directory.path(), &xml).unwrap_err();
            assert!(sentence.contains(UUID) && sentence.contains(why), "{sentence}");
            assert_eq!(decide(HookOp::Reconnect, directory.path(), &xml), Ok(()), "it would kill what runs");
        };
        refused("systemctl start leasehold");
        let _hangs = std::os::unix::net::UnixListener::bind(local::socket_path(directory.path())).unwrap();
        refused("nothing within");
    }

    #[test]
    fn what_begins_is_refused_what_ends_never_and_an_observing_node_refuses_nothing() {
        let no = || Err("no".to_owned());
        assert_eq!(refusal(no(), HookOp::Prepare, || false), Some("no".into()));
        assert_eq!(refusal(no(), HookOp::Prepare, || true), None);
        assert_eq!(refusal(no(), HookOp::Release, || false), None);
        assert_eq!(refusal(Ok(()), HookOp::Prepare, || false), None);
        let settings = |observe| HookSettings { deadline_ms: 3000, observe, node: "n1".into() };
        let refuses = |op, observe| Limit::of(Some(&settings(observe)), op).refuses;
        assert!(refuses(HookOp::Prepare, false) && refuses(HookOp::Start, false), "a late verdict");
        assert!(Limit::of(None, HookOp::Prepare).refuses, "whatever is known of this node");
        for (op, observe) in [(HookOp::Prepare, true), (HookOp::Release, false), (HookOp::Reconnect, false)] {
            assert!(!refuses(op, observe), "{op:?}");
        }
    }

    #[test]
    fn the_uuid_is_the_domains_own_child_and_the_run_its_id() {
        let xml = format!(
            "<!-- <uuid>no</uuid> --><domain type='kvm' id='12'><name>a&amp;b</name><metadata><uuid>no</uuid></metadata><uuid>{UUID}</uuid>"
        );
        let expected = Identity { domain: UUID.parse().unwrap(), run: Some(12), depth: 2 };
        assert_eq!(identity(&xml).unwrap(), expected, "and what follows is not needed");
        let xml = format!("<domain type='qemu'>\n  <uuid> {UUID}\n</uuid></domain>");
        assert_eq!(identity(&xml).unwrap().run, None);
    }

    #[test]
    fn what_names_no_domain_is_said_so() {
        for (xml, why) in [
            ("", "has no uuid"),
            ("<domain><name>x</name></domain>", "has no uuid"),
            ("<domain><uuid>web-1</uuid></domain>", "is odd: 'web-1'"),
            ("<domain><uuid></domain>", "is not well formed"),
        ] {
            let error = identity(xml).unwrap_err();
            assert!(error.contains(why), "{xml}: {error}");
        }
    }

    #[test]
    fn a_uuid_buried_beyond_the_limit_is_not_searched_for() {
        let xml = std::io::repeat(b' ').take(2 * MAX_READ);
        let end = format!("</title><uuid>{UUID}</uuid>");
        let xml = b"<domain><title>".chain(xml).chain(end.as_bytes());
        assert!(identify(&mut Reader::from_reader(BufReader::new(xml.take(MAX_READ)))).is_err());
    }
}
