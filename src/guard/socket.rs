//! The guard's unix socket: hooks and `leasehold status`. A thread for each connection, and not more than so many.

use super::copies::Copies;
use super::core::Input;
use super::disks::DiskRule;
use super::outbox::{Delivered, Waiting};
use super::record::Record;
use super::scan::Callers;
use crate::lease::event::{Event, HookCall, HookId, Severity, Verdict};
use crate::lease::id::DomainId;
use crate::lease::late_write::Way;
use crate::lease::ledger::label;
use crate::lease::view::StatusView;
use crate::local::{self, HookRequest, Reply, Request};
use crate::node::clock;
use crate::protocol::NamedState;
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::{Sender, sync_channel};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// Connections at once: every domain of a large host starting at the same moment, and a few operators.
const CONNECTIONS: usize = 1024;
/// A request and its reply are written at once, so a peer slower than this is not one of ours.
const IO_TIMEOUT: Duration = Duration::from_secs(2);
/// The longest that a hook may have libvirt wait.
const LONGEST_HOOK: Duration = Duration::from_secs(60);
/// The core answers a status within a turn.
const STATUS_TIMEOUT: Duration = Duration::from_secs(2);

/// Binds the socket, readable by root only, and starts the thread that accepts.
///
/// # Errors
/// The path cannot be bound. A left-over socket is replaced: the caller holds the guard's lock.
pub fn start(
    path: &Path,
    core: &Sender<Input>,
    waiting: &Waiting,
    callers: &Arc<Mutex<Callers>>,
    (copies, disks): (Copies, DiskRule),
    record: &Record,
) -> io::Result<()> {
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let listener = UnixListener::bind(path)?;
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o600))?;
    let desk = Arc::new(Desk {
        core: core.clone(),
        waiting: waiting.clone(),
        callers: callers.clone(),
        copies,
        disks,
        record: record.clone(),
        next: AtomicU64::new(1),
        open: AtomicUsize::new(0),
    });
    std::thread::Builder::new().name("socket".into()).stack_size(256 << 10).spawn(move || desk.accept(&listener))?;
    Ok(())
}

struct Desk {
    core: Sender<Input>,
    waiting: Waiting,
    callers: Arc<Mutex<Callers>>,
    copies: Copies,
    disks: DiskRule,
    record: Record,
    next: AtomicU64,
    open: AtomicUsize,
}

impl Desk {
    fn accept(self: &Arc<Self>, listener: &UnixListener) {
        for stream in listener.incoming() {
            let stream = match stream {
                Ok(stream) => stream,
                Err(error) => {
                    // Out of file descriptors, most likely; hooks are refused by their own deadline meanwhile.
                    self.record.say(Severity::Error, format!("cannot accept on the guard's socket: {error}"));
                    std::thread::sleep(Duration::from_millis(100));
                    continue;
                }
            };
            if self.open.fetch_add(1, Ordering::Relaxed) >= CONNECTIONS {
                self.open.fetch_sub(1, Ordering::Relaxed);
                continue;
            }
            let desk = self.clone();
            let serve = move || {
                // A peer that goes away in the middle is nobody's business.
                let _ = desk.serve(stream);
                desk.open.fetch_sub(1, Ordering::Relaxed);
            };
            if let Err(error) = std::thread::Builder::new().name("peer".into()).stack_size(128 << 10).spawn(serve) {
                self.open.fetch_sub(1, Ordering::Relaxed);
                self.record.say(Severity::Error, format!("cannot start a thread for a hook: {error}. It is refused"));
            }
        }
    }

    fn serve(&self, mut stream: UnixStream) -> io::Result<()> {
        stream.set_read_timeout(Some(IO_TIMEOUT))?;
        stream.set_write_timeout(Some(IO_TIMEOUT))?;
        let reply = match local::read_line(&stream, local::MAX_REQUEST) {
            Ok(Request::Hook(request)) => self.hook(request),
            Ok(Request::Status) => self.status(),
            Ok(Request::Drain(wanted)) => {
                self.core.send(Input::Event(Event::Drain(wanted))).expect("the core lives as long as the process");
                self.status()
            }
            Ok(Request::ForceDisarm) => {
                self.core.send(Input::ForceDisarm).expect("the core lives as long as the process");
                self.status()
            }
            Err(error) => Reply::Bad(format!("the request was not understood: {error}")),
        };
        local::write_line(&mut stream, &reply)
    }

    fn hook(&self, request: HookRequest) -> Reply {
        if let Some(sentence) = self.disks.refusal(&request) {
            return Reply::Refuse(sentence);
        }
        let domain = request.domain;
        let id = HookId(self.next.fetch_add(1, Ordering::Relaxed));
        let within = Duration::from_millis(request.within_ms).min(LONGEST_HOOK);
        let (to, verdict) = sync_channel(1);
        self.waiting.enter(id, to);
        if let Some(daemon) = request.daemon {
            self.callers.lock().expect("no holder panics").call(daemon);
        }
        let now = clock::now();
        let asked = request.asked.map_or(now, |asked| asked.min(now));
        let (op, who) = (request.op, label(&request.name, request.domain));
        let call = HookCall {
            id,
            domain: request.domain,
            name: request.name,
            op: request.op,
            daemon: request.daemon,
            run: request.run,
            // A twentieth is for the ledger and the way back.
            answer_by: asked + within - within / 20,
        };
        self.core.send(Input::Event(Event::Hook(call))).expect("the core lives as long as the process");
        let delivered = verdict.recv_timeout(within);
        self.waiting.leave(id);
        match delivered {
            // rule 8: an admission must be in the ledger before its yes leaves
            Ok(Delivered { verdict: Verdict::Allow, unwritten: Some(why) }) if op.admits() => {
                Reply::Refuse(format!("domain {who} is not started: this host's leasehold cannot write {why}"))
            }
            Ok(Delivered { verdict: Verdict::Allow, .. }) => Reply::Allow,
            Ok(Delivered { verdict: Verdict::Refuse(sentence), .. }) => {
                Reply::Refuse(self.with_reason(sentence, domain))
            }
            // No verdict, which the hook knows to take: refusing here would kill what a restarted libvirtd finds running.
            Err(_) => Reply::Bad("it did not decide in time".into()),
        }
    }

    fn status(&self) -> Reply {
        let (to, view) = sync_channel(1);
        self.core.send(Input::Status(to)).expect("the core lives as long as the process");
        match view.recv_timeout(STATUS_TIMEOUT) {
            Ok(view) => Reply::Status(Box::new(self.complete(view))),
            Err(_) => Reply::Bad("the guard's core did not answer: it hangs, and its permit runs out".into()),
        }
    }

    /// A refusal says that an earlier process is in the way; why it still is, its own state tells.
    fn with_reason(&self, sentence: String, domain: DomainId) -> String {
        match self.copies.reasons(domain, false).first() {
            Some((pid, reason)) => format!("{sentence} Process {pid} is not gone: {}", reason.why),
            None => sentence,
        }
    }

    /// Adds what the core does not know: the state of processes and what they hold. It is looked up here, in a thread of
    /// this connection's own, since /proc may be slow.
    fn complete(&self, mut view: StatusView) -> StatusView {
        for domain in &mut view.domains {
            let condemned = domain.state == NamedState::Dying;
            let reasons = self.copies.reasons(domain.domain, condemned);
            domain.not_gone = reasons.into_iter().map(|(pid, reason)| reason.view(pid)).collect();
            if !self.disks.is_shown() {
                domain.late_writes.retain(|late| late.way != Way::PageCache);
            }
        }
        view
    }
}
