//! Every process that is not proven gone, what each would leave behind, and the same on /run for the next guard: a
//! process that ends while no guard runs can be proven gone only from what was noted before.

use super::ending::{Progress, Reason};
use crate::lease::id::{DomainId, ProcessKey};
use crate::lease::late_write::LateWrite;
use crate::node::cgroup::DomainCgroup;
use crate::node::domains::DomainProcess;
use crate::node::files::{self, Durability};
use crate::node::gone::{self, Gone, NotGone};
use crate::node::traces::{FileId, Traces};
use crate::node::{flush, late_writes, stuck};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard};

/// How many ended processes are remembered for those that ask late.
const REMEMBERED: usize = 10_000;
/// The largest file of notes read.
const MAX_NOTES: usize = 64 << 20;

/// Every process that is not proven gone.
#[derive(Clone, Default)]
pub struct Copies(Arc<Mutex<Inner>>);

#[derive(Default)]
struct Inner {
    known: BTreeMap<ProcessKey, Arc<Known>>,
    /// Ended before this guard began.
    ended: BTreeMap<ProcessKey, Arc<Ended>>,
    gone: BTreeSet<ProcessKey>,
}

/// One process, and what it would leave behind.
pub struct Known {
    /// The process.
    pub process: DomainProcess,
    noted: Mutex<Noted>,
    late_writes: Mutex<BTreeSet<LateWrite>>,
    progress: Progress,
}

/// One process that ended while no guard ran, and how far the proof of that has come.
pub struct Ended {
    note: Note,
    progress: Progress,
}

/// What a process would leave behind.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
struct Noted {
    traces: Traces,
    /// A look failed, so there may be more.
    in_part: bool,
}

/// The notes of one process, for the next guard.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Note {
    domain: DomainId,
    process: ProcessKey,
    cgroup: DomainCgroup,
    noted: Noted,
}

impl Known {
    fn new(process: DomainProcess, noted: Noted) -> Known {
        let known =
            Known { process, noted: Mutex::new(noted), late_writes: Mutex::default(), progress: Progress::default() };
        known.remember_traces();
        known
    }

    /// Looks again at what it would leave behind; what was once seen stays.
    pub fn remember_traces(&self) {
        let now = Traces::of_domain(&self.process);
        // For people: what cannot be seen now is shown by the next look.
        if let Some(ways) = now.as_ref().ok().and_then(|traces| late_writes::of(&self.process, traces).ok()) {
            *lock(&self.late_writes) = ways;
        }
        let mut noted = lock(&self.noted);
        match now {
            Ok(traces) => noted.traces.merge(traces),
            Err(_) => noted.in_part = true,
        }
    }

    /// The proof of rule 7; it may block for ever on storage that is gone.
    pub fn prove_gone(&self) -> Result<Gone, NotGone> {
        let noted = lock(&self.noted).clone();
        gone::check_dead(&self.process, &noted.traces)?;
        noted.flush_all_if_in_part(&self.progress).map_err(unflushed)?;
        gone::prove_gone_by(&self.process, &noted.traces, flushing(&self.progress))
    }

    /// In which ways its writes could arrive after its death.
    pub fn late_writes(&self) -> BTreeSet<LateWrite> {
        lock(&self.late_writes).clone()
    }

    /// What stands in the way of calling it gone, now; none once nothing does.
    pub fn reason(&self) -> Option<Reason> {
        // Of the living only a look tells, and while a flush hangs only its beginning.
        let told = self.process.process.has_exited().then(|| self.progress.reason()).flatten();
        told.or_else(|| gone::check_dead(&self.process, &lock(&self.noted).traces).err().as_ref().map(Reason::from))
    }

    /// What stands in the way of calling it gone, as a sentence.
    pub fn why_not_gone(&self) -> Option<String> {
        self.reason().map(|reason| reason.why)
    }

    /// Whether it has ended, or was told to and would if it could.
    pub fn is_ending(&self) -> bool {
        self.process.process.has_exited() || stuck::has_dead_leader(self.process.process.pid())
    }

    /// An attempt to prove its end failed.
    pub fn is_not_gone(&self, refused: &NotGone) {
        self.progress.failed(refused);
    }

    fn note(&self) -> Note {
        Note {
            domain: self.process.domain,
            process: self.process.process.key(),
            cgroup: self.process.cgroup.clone(),
            noted: lock(&self.noted).clone(),
        }
    }
}

impl Noted {
    fn flush_all_if_in_part(&self, progress: &Progress) -> io::Result<()> {
        if !self.in_part {
            return Ok(());
        }
        progress.flushes("everything of this host (not all that it had open is known)".into());
        flush::in_a_child(None)
    }
}

impl Note {
    /// For a process of the ledger that no note speaks of: nothing is known of it but that it was.
    pub fn blank(domain: DomainId, process: ProcessKey) -> Note {
        let noted = Noted { traces: Traces::default(), in_part: true };
        Note { domain, process, cgroup: DomainCgroup::default(), noted }
    }

    /// The process it speaks of.
    pub fn process(&self) -> ProcessKey {
        self.process
    }
}

impl Ended {
    /// The proof of rule 7 for a process that ended while no guard ran; it may block as [`Known::prove_gone`].
    pub fn prove_gone(&self) -> Result<Gone, NotGone> {
        let Note { domain, process, cgroup, noted } = &self.note;
        let proof = noted
            .flush_all_if_in_part(&self.progress)
            .map_err(unflushed)
            .and_then(|()| gone::prove_ended(*domain, *process, cgroup, &noted.traces, flushing(&self.progress)));
        if let Err(refused) = &proof {
            self.progress.failed(refused);
        }
        proof
    }
}

/// Writes back, and keeps what is being written back.
fn flushing(progress: &Progress) -> impl FnMut(FileId, &Path) -> io::Result<()> {
    |id, path| {
        progress.flushes(path.display().to_string());
        flush::in_a_child(Some((id, path)))
    }
}

fn unflushed(cause: io::Error) -> NotGone {
    NotGone::Unknown { what: "everything of this host on its storage", cause }
}

impl Copies {
    /// The process, if it is known and not proven gone.
    pub fn get(&self, domain: DomainId, process: ProcessKey) -> Option<Arc<Known>> {
        self.inner().known.get(&process).filter(|known| known.process.domain == domain).cloned()
    }

    /// All processes of a domain that are not proven gone.
    pub fn of(&self, domain: DomainId) -> Vec<Arc<Known>> {
        self.inner().known.values().filter(|known| known.process.domain == domain).cloned().collect()
    }

    /// In which ways a domain's writes could arrive after its death.
    pub fn late_writes(&self, domain: DomainId) -> Vec<LateWrite> {
        let ways: BTreeSet<LateWrite> = self.of(domain).iter().flat_map(|known| known.late_writes()).collect();
        ways.into_iter().collect()
    }

    /// Every process that is not proven gone.
    pub fn all(&self) -> Vec<Arc<Known>> {
        self.inner().known.values().cloned().collect()
    }

    /// A process that ended before this guard began, to be proven gone.
    pub fn ended(&self, note: Note) -> Arc<Ended> {
        let (process, ended) = (note.process, Arc::new(Ended { note, progress: Progress::default() }));
        self.inner().ended.insert(process, ended.clone());
        ended
    }

    /// What keeps the processes of a domain from being called gone: of those that were `condemned`, have ended, or would
    /// end if they could.
    pub fn reasons(&self, domain: DomainId, condemned: bool) -> Vec<(i32, Reason)> {
        let ended: Vec<_> = self.inner().ended.values().filter(|ended| ended.note.domain == domain).cloned().collect();
        let ended = ended.iter().filter_map(|ended| Some((ended.note.process.pid, ended.progress.reason()?)));
        let known = self.of(domain);
        let known = known.iter().filter(|known| condemned || known.is_ending());
        ended.chain(known.filter_map(|known| Some((known.process.process.pid(), known.reason()?)))).collect()
    }

    /// Whether this process was proven gone.
    pub fn is_gone(&self, process: ProcessKey) -> bool {
        self.inner().gone.contains(&process)
    }

    /// Takes in what a scan found. `notes` are an earlier guard's. True if anything is new.
    pub fn learn(&self, found: Vec<DomainProcess>, notes: &[Note]) -> bool {
        let mut news = false;
        for process in found {
            let key = process.process.key();
            let known = self.inner().known.get(&key).cloned();
            let noted = match &known {
                // libvirt moves a QEMU into its cgroup a moment after it starts it.
                Some(known) if known.process.cgroup == process.cgroup => continue,
                Some(known) => lock(&known.noted).clone(),
                None => {
                    notes.iter().find(|note| note.process == key).map(|note| note.noted.clone()).unwrap_or_default()
                }
            };
            // Not under the lock: looking at a process may take a while, and whoever kills must not wait for it.
            let known = Arc::new(Known::new(process, noted));
            self.inner().known.insert(key, known);
            news = true;
        }
        news
    }

    /// It is proven gone.
    pub fn remove(&self, process: ProcessKey) {
        let mut inner = self.inner();
        inner.known.remove(&process);
        inner.ended.remove(&process);
        inner.gone.insert(process);
        if inner.gone.len() > REMEMBERED {
            inner.gone.pop_first();
        }
    }

    /// Writes the notes for the next guard.
    ///
    /// # Errors
    /// Those of writing the file.
    pub fn write_notes(&self, path: &Path) -> io::Result<()> {
        let notes: Vec<Note> = self.all().iter().map(|known| known.note()).collect();
        let bytes = serde_json::to_vec(&notes).map_err(io::Error::other)?;
        files::write_atomically(path, &bytes, 0o600, Durability::Kernel)
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        lock(&self.0)
    }
}

/// An earlier guard's notes. None that can be used: none, and what ended meanwhile is then proven gone the long way.
pub fn read_notes(path: &Path) -> Vec<Note> {
    files::read_bounded(path, MAX_NOTES).ok().and_then(|bytes| serde_json::from_slice(&bytes).ok()).unwrap_or_default()
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().expect("no holder panics")
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::process::ExitStatusExt;

    fn ended() -> ProcessKey {
        let mut child = std::process::Command::new("sleep").arg("1000").spawn().unwrap();
        let key = crate::node::process::key_of(child.id() as i32).unwrap();
        child.kill().unwrap();
        assert_eq!(child.wait().unwrap().signal(), Some(9));
        key
    }

    #[test]
    fn notes_survive_the_guard_and_what_cannot_be_read_is_none() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("copies.json");
        let note = Note::blank(DomainId::from_bytes([1; 16]), ProcessKey { pid: 4, started: 5 });
        std::fs::write(&path, serde_json::to_vec(std::slice::from_ref(&note)).unwrap()).unwrap();
        assert_eq!(read_notes(&path), [note]);
        std::fs::write(&path, "garbage").unwrap();
        assert_eq!(read_notes(&path), []);
    }

    #[test]
    fn what_ended_while_nobody_held_it_is_proven_gone_from_its_note_and_what_lives_is_not() {
        let domain = DomainId::from_bytes([1; 16]);
        let gone = Copies::default().ended(Note::blank(domain, ended())).prove_gone().unwrap();
        assert_eq!(gone.domain(), domain);
        let own = crate::node::process::key_of(std::process::id() as i32).unwrap();
        let (copies, living) = (Copies::default(), Note::blank(domain, own));
        assert!(copies.ended(living).prove_gone().is_err());
        let reasons = copies.reasons(domain, false);
        assert_eq!(reasons[0].1.why, format!("pid {} has not exited", own.pid));
    }
}
