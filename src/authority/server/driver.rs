//! The one thread that owns the book and the store: an operation, its commit, its answer, and then the next.

use crate::authority::book::{Book, Now, Outcome};
use crate::authority::records::{Key, Write};
use crate::authority::store::Store;
use crate::lease::time::BootTime;
use crate::node::wall::wall;
use std::collections::BTreeMap;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread::JoinHandle;
use std::time::Duration;
use tokio::sync::oneshot;

/// After a failed commit, what only time asks for is tried again this much later.
const RETRY: Duration = Duration::from_secs(1);
/// Log lines that may wait for a slow stderr before lines are dropped.
const LOG_LINES: usize = 4096;

type Job = Box<dyn FnOnce(&mut Driver) + Send>;

enum Command {
    Do(Job),
    Wait(Waiter),
    Stop,
}

/// Asks the book and answers when it is satisfied, or nobody waits any more.
struct Waiter {
    until: Duration,
    deadline: BootTime,
    check: Check,
}

/// Called with `last` when the time is over; true when it has answered.
type Check = Box<dyn FnMut(&mut Book, Now<'_>, bool) -> bool + Send>;

/// The way to the thread, for any number of connections.
#[derive(Clone)]
pub struct Handle(mpsc::Sender<Command>);

/// Why there is no answer: a sentence.
#[derive(Debug)]
pub struct Unavailable(pub String);

struct Driver {
    book: Book,
    store: Store,
    /// Undone writes that may be on disk nevertheless.
    suspect: BTreeMap<Key, Write>,
    retry_at: BootTime,
    waiters: Vec<Waiter>,
    seen: u64,
}

/// Starts the thread.
pub fn start(book: Book, store: Store) -> Result<(Handle, JoinHandle<()>), String> {
    let (sender, receiver) = mpsc::channel();
    let mut driver =
        Driver { book, store, suspect: BTreeMap::new(), retry_at: BootTime::ZERO, waiters: Vec::new(), seen: 0 };
    let thread = std::thread::Builder::new().name("book".to_owned()).spawn(move || driver.run(&receiver));
    Ok((Handle(sender), thread.map_err(|e| format!("cannot start the authority's thread: {e}"))?))
}

impl Handle {
    /// Does one operation; its answer is here when its writes are durable.
    pub async fn ask<T: Send + 'static>(
        &self,
        operation: impl FnOnce(&mut Book, Now<'_>) -> Outcome<T> + Send + 'static,
    ) -> Result<T, Unavailable> {
        self.send(|driver| driver.settle().and_then(|()| driver.operate(operation))).await
    }

    /// The same for a renewal or a look, which goes on while the disk takes no writes.
    pub async fn ask_in_doubt<T: Send + 'static>(
        &self,
        operation: impl FnOnce(&mut Book, Now<'_>) -> Outcome<T> + Send + 'static,
    ) -> Result<T, Unavailable> {
        self.send(|driver| driver.operate(operation)).await
    }

    async fn send<T: Send + 'static>(
        &self,
        operation: impl FnOnce(&mut Driver) -> Result<T, Unavailable> + Send + 'static,
    ) -> Result<T, Unavailable> {
        let (reply, answer) = oneshot::channel();
        let job: Job = Box::new(move |driver| drop(reply.send(operation(driver))));
        self.0.send(Command::Do(job)).map_err(|_| stopping())?;
        answer.await.map_err(|_| stopping())?
    }

    /// Asks `check` now, and again after every change, until it says something or `span` has passed; then it is asked
    /// once more with `true` and has to.
    pub async fn wait<T: Send + 'static>(
        &self,
        span: Duration,
        mut check: impl FnMut(&mut Book, Now<'_>, bool) -> Option<T> + Send + 'static,
    ) -> Result<T, Unavailable> {
        let (reply, answer) = oneshot::channel();
        let mut reply = Some(reply);
        let check: Check = Box::new(move |book, now, last| {
            let gone = reply.as_ref().is_none_or(oneshot::Sender::is_closed);
            if !gone && let Some(said) = check(book, now, last) {
                drop(reply.take().map(|reply| reply.send(said)));
                return true;
            }
            gone
        });
        let waiter = Waiter { until: span, deadline: BootTime::NEVER, check };
        self.0.send(Command::Wait(waiter)).map_err(|_| stopping())?;
        answer.await.map_err(|_| stopping())
    }

    /// Ends the thread after the command it is at.
    pub fn stop(&self) {
        // The receiver is gone only when the thread has ended already.
        let _ = self.0.send(Command::Stop);
    }
}

fn stopping() -> Unavailable {
    Unavailable("the authority is stopping; ask again when it is back".to_owned())
}

impl Driver {
    fn run(&mut self, commands: &mpsc::Receiver<Command>) {
        loop {
            self.progress();
            let now = crate::node::clock::now();
            let retry = (!self.suspect.is_empty()).then_some(self.retry_at);
            let wake = self.book.next_wake().map(|at| at.max(self.retry_at)).into_iter().chain(retry);
            let wakes = self.waiters.iter().map(|waiter| waiter.deadline).chain(wake);
            // recv_timeout stops counting in suspend; a minute bounds what that can cost a waiter.
            let span = wakes.min().map_or(Duration::from_secs(60), |at| at.left(now).min(Duration::from_secs(60)));
            match commands.recv_timeout(span) {
                Ok(Command::Do(job)) => {
                    self.progress();
                    job(self);
                }
                Ok(Command::Wait(mut waiter)) => {
                    let at = crate::node::clock::now();
                    let wall = wall();
                    if !(waiter.check)(&mut self.book, Now { at, wall: &wall }, false) {
                        waiter.deadline = at + waiter.until;
                        self.waiters.push(waiter);
                    }
                }
                Ok(Command::Stop) | Err(RecvTimeoutError::Disconnected) => return,
                Err(RecvTimeoutError::Timeout) => {}
            }
        }
    }

    /// What time completes, what a failed commit left open, and whoever waited for either.
    fn progress(&mut self) {
        let at = crate::node::clock::now();
        let due = !self.suspect.is_empty() || self.book.next_wake().is_some_and(|wake| wake <= at);
        // A failure is logged and tried again; nobody waits for it here.
        if due && self.retry_at <= at && self.settle().is_ok() {
            let _ = self.operate(|book, now| book.progress(now));
        }
        let changed = self.seen != self.book.generation();
        if changed || self.waiters.iter().any(|waiter| waiter.deadline <= at) {
            let wall = wall();
            let now = Now { at, wall: &wall };
            self.seen = self.book.generation();
            let book = &mut self.book;
            self.waiters.retain_mut(|waiter| !(waiter.check)(book, now, waiter.deadline <= at));
        }
    }

    /// Puts right what a failed commit may have left on disk.
    fn settle(&mut self) -> Result<(), Unavailable> {
        if self.suspect.is_empty() {
            return Ok(());
        }
        if let Err(e) = self.store.commit(&Vec::from_iter(self.suspect.values().cloned())) {
            self.retry_at = crate::node::clock::now() + RETRY;
            return Err(Unavailable(format!("{e}; nothing was changed")));
        }
        self.suspect.clear();
        self.book.settled();
        log_line("the disk takes writes again".to_owned());
        Ok(())
    }

    fn operate<T>(&mut self, operation: impl FnOnce(&mut Book, Now<'_>) -> Outcome<T>) -> Result<T, Unavailable> {
        let wall = wall();
        let outcome = operation(&mut self.book, Now { at: crate::node::clock::now(), wall: &wall });
        if !outcome.writes.is_empty() {
            // The order matters: what is suspect is older than what is written now.
            let mut writes = Vec::from_iter(self.suspect.values().cloned());
            writes.extend(outcome.writes);
            if let Err(e) = self.store.commit(&writes) {
                let restore = self.book.undo(outcome.undo).into_iter();
                self.suspect.extend(restore.map(|write| (write.key(), write)));
                self.retry_at = crate::node::clock::now() + RETRY;
                log_line(format!("{e}; what needed it is not done, renewals that need no write go on"));
                return Err(Unavailable(format!("{e}; nothing was changed")));
            }
            if !self.suspect.is_empty() {
                self.suspect.clear();
                self.book.settled();
            }
        }
        outcome.log.into_iter().for_each(log_line);
        Ok(outcome.answer)
    }
}

/// One line for the log on stderr. Never waits: a log that nobody reads must not hold up a renewal.
pub fn log_line(line: String) {
    if log().try_send(Entry::Line(line)).is_err() {
        DROPPED.fetch_add(1, Ordering::Relaxed);
    }
}

/// The last line before the process ends: waits, at most a second, until it and those before it are out.
pub fn log_last(line: String) {
    log_line(line);
    let (written, wait) = mpsc::sync_channel(1);
    if log().try_send(Entry::Mark(written)).is_ok() {
        // Not out in time means that nobody reads.
        let _ = wait.recv_timeout(Duration::from_secs(1));
    }
}

enum Entry {
    Line(String),
    Mark(mpsc::SyncSender<()>),
}

static DROPPED: AtomicU64 = AtomicU64::new(0);

fn log() -> &'static mpsc::SyncSender<Entry> {
    static LOG: OnceLock<mpsc::SyncSender<Entry>> = OnceLock::new();
    LOG.get_or_init(|| {
        let (sender, receiver) = mpsc::sync_channel(LOG_LINES);
        // Without the thread, lines are dropped and counted like those of a log that is full.
        let _ = std::thread::Builder::new().name("log".to_owned()).spawn(move || {
            use std::io::Write;
            let mut stderr = std::io::stderr();
            for entry in receiver {
                let dropped = DROPPED.swap(0, Ordering::Relaxed);
                if dropped > 0 {
                    let _ = writeln!(stderr, "leasehold-authority: {dropped} lines were dropped, the log was too slow");
                }
                match entry {
                    Entry::Line(line) => drop(writeln!(stderr, "leasehold-authority: {line}")),
                    Entry::Mark(written) => drop(written.try_send(())),
                }
            }
        });
        sender
    })
}
