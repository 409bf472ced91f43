//! The proof of rule 7: a process is gone, and silent.

use super::cgroup::{DomainCgroup, Member};
use super::domains::DomainProcess;
use super::flush::{self, FlushError, flush};
use super::process;
use super::stuck::{StuckThread, stuck_threads};
use super::tcp_table::Connection;
use super::traces::{FileId, Traces, end_noted, orphans, under_way};
use crate::lease::id::{DomainId, ProcessKey};
use std::path::{Path, PathBuf};
use std::{fmt, io};

/// One process of a domain is proven gone: every thread has exited, its cgroup is empty, none of its connections goes on
/// sending, none of its requests is under way, and what it left in the page cache is written. Only [`prove_gone`] makes one.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Gone {
    process: ProcessKey,
    domain: DomainId,
}

impl Gone {
    /// The process that is gone.
    pub fn process(&self) -> ProcessKey {
        self.process
    }

    /// The domain it was of.
    pub fn domain(&self) -> DomainId {
        self.domain
    }
}

/// Why a process cannot be called gone yet. Its Display is a sentence about the process, for a person.
#[derive(Debug)]
pub enum NotGone {
    /// Not every thread has exited.
    Alive {
        /// Its pid.
        pid: i32,
        /// Threads that no signal reaches, and what each waits for.
        stuck: Vec<StuckThread>,
    },
    /// Somebody is left in the domain's cgroup.
    CgroupPopulated {
        /// Who.
        members: Vec<Member>,
        /// Those of their threads that no signal reaches.
        stuck: Vec<StuckThread>,
    },
    /// Its connections go on sending.
    Orphans(Vec<Connection>),
    /// Its files are still open: requests of its io_uring are under way.
    UnderWay(Vec<PathBuf>),
    /// What it left in the page cache cannot be written.
    Unflushed(FlushError),
    /// One of the proofs cannot be had.
    Unknown {
        /// What was looked at.
        what: &'static str,
        /// Why it could not be seen.
        cause: io::Error,
    },
}

impl fmt::Display for NotGone {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            NotGone::Alive { pid, stuck } if stuck.is_empty() => write!(f, "pid {pid} has not exited"),
            NotGone::Alive { pid, stuck } => {
                write!(f, "pid {pid} cannot be killed: ")?;
                list(f, stuck, |f, thread| thread.fmt(f))?;
                write!(f, "; its storage does not answer")
            }
            NotGone::CgroupPopulated { members, .. } if members.is_empty() => write!(f, "its cgroup is not empty"),
            NotGone::CgroupPopulated { members, stuck } => {
                write!(f, "left in its cgroup: ")?;
                list(f, members, |f, member| write!(f, "pid {} ({})", member.pid, member.comm))?;
                if stuck.is_empty() {
                    return Ok(());
                }
                write!(f, "; ")?;
                list(f, stuck, |f, thread| thread.fmt(f))
            }
            NotGone::Orphans(connections) => {
                write!(f, "the kernel goes on sending what it had queued: ")?;
                list(f, connections, |f, connection| write!(f, "TCP {connection}"))
            }
            NotGone::UnderWay(paths) => {
                write!(f, "requests of its io_uring are under way, and its storage does not answer: ")?;
                list(f, paths, |f, path| write!(f, "{}", path.display()))
            }
            NotGone::Unflushed(error) => error.fmt(f),
            NotGone::Unknown { what, cause } => write!(f, "cannot read {what}: {cause}"),
        }
    }
}

/// At most three items, and how many more there are: a sentence, not a listing.
fn list<T>(
    f: &mut fmt::Formatter<'_>,
    items: &[T],
    show: impl Fn(&mut fmt::Formatter<'_>, &T) -> fmt::Result,
) -> fmt::Result {
    for (index, item) in items.iter().take(3).enumerate() {
        if index > 0 {
            write!(f, ", ")?;
        }
        show(f, item)?;
    }
    if items.len() > 3 { write!(f, " and {} more", items.len() - 3) } else { Ok(()) }
}

/// The proofs that need no storage: every thread has exited, the cgroup is empty, no connection goes on. Does not block.
///
/// # Errors
/// The first proof that fails.
pub fn check_dead(domain: &DomainProcess, traces: &Traces) -> Result<(), NotGone> {
    let process = &domain.process;
    if !process.has_exited() {
        return Err(NotGone::Alive { pid: process.pid(), stuck: stuck_threads(process.pid()) });
    }
    check_left(&domain.cgroup, traces)
}

/// What outlives the QEMU itself: its helpers, its connections, its requests.
fn check_left(cgroup: &DomainCgroup, traces: &Traces) -> Result<(), NotGone> {
    let unknown = |what| move |cause| NotGone::Unknown { what, cause };
    if !cgroup.is_empty().map_err(unknown("its cgroup"))? {
        let members = cgroup.members().unwrap_or_default();
        let stuck = members.iter().flat_map(|member| stuck_threads(member.pid)).collect();
        return Err(NotGone::CgroupPopulated { members, stuck });
    }
    let table = "the kernel's table of TCP sockets";
    let mut left = orphans(traces).map_err(unknown(table))?;
    if !left.is_empty() {
        // Somebody else killed it, and its connections were not prepared (rule 7).
        end_noted(&left, traces);
        left = orphans(traces).map_err(unknown(table))?;
    }
    if !left.is_empty() {
        return Err(NotGone::Orphans(left));
    }
    let held = under_way(traces).map_err(unknown("the kernel's table of locks"))?;
    if held.is_empty() { Ok(()) } else { Err(NotGone::UnderWay(held)) }
}

/// The whole proof for a process that ended while nobody held it, from what was noted before. What it left in the page
/// cache is written back by `write_back`.
///
/// # Errors
/// The first proof that fails.
pub fn prove_ended(
    domain: DomainId,
    process: ProcessKey,
    cgroup: &DomainCgroup,
    traces: &Traces,
    write_back: impl FnMut(FileId, &Path) -> io::Result<()>,
) -> Result<Gone, NotGone> {
    if process::exists(process) {
        return Err(NotGone::Alive { pid: process.pid, stuck: Vec::new() });
    }
    check_left(cgroup, traces)?;
    flush(traces, write_back).map_err(NotGone::Unflushed)?;
    Ok(Gone { process, domain })
}

/// The whole proof. Writes back the page cache and so **may block for ever** on storage that is gone: give it a thread, and
/// call [`check_dead`] first to save that thread while the process lives.
///
/// `traces`: all that was noted of it while it lived ([`Traces::of_domain`]), merged over every look.
///
/// # Errors
/// The first proof that fails.
pub fn prove_gone(domain: &DomainProcess, traces: &Traces) -> Result<Gone, NotGone> {
    prove_gone_by(domain, traces, flush::here)
}

/// As [`prove_gone`], with another way to write a file back.
///
/// # Errors
/// The first proof that fails.
pub fn prove_gone_by(
    domain: &DomainProcess,
    traces: &Traces,
    write_back: impl FnMut(FileId, &Path) -> io::Result<()>,
) -> Result<Gone, NotGone> {
    check_dead(domain, traces)?;
    flush(traces, write_back).map_err(NotGone::Unflushed)?;
    Ok(Gone { process: domain.process.key(), domain: domain.domain })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::node::testing::{Child, TestCgroup, domain};

    #[test]
    fn the_living_are_not_gone_and_the_dead_are_proven_so() {
        let child = Child::sleeping();
        let domain = domain(&child);
        let traces = Traces::of(&domain.process).unwrap();
        let refused = prove_gone(&domain, &traces).unwrap_err();
        assert_eq!(refused.to_string(), format!("pid {} has not exited", child.pid()));
        domain.process.kill().unwrap();
        child.wait_exited(&domain.process);
        let gone = prove_gone(&domain, &traces).unwrap();
        assert_eq!((gone.process(), gone.domain()), (domain.process.key(), domain.domain));
    }

    #[test]
    fn a_helper_left_in_the_cgroup_is_named() {
        for cgroup in ["", "pids"].into_iter().filter_map(TestCgroup::new) {
            let (qemu, helper) = (Child::sleeping(), Child::sleeping());
            TestCgroup::admit(&cgroup.0, &qemu);
            TestCgroup::admit(&cgroup.0, &helper);
            let domain = domain(&qemu);
            domain.process.kill().unwrap();
            qemu.wait_exited(&domain.process);
            let refused = prove_gone(&domain, &Traces::default()).unwrap_err();
            assert_eq!(refused.to_string(), format!("left in its cgroup: pid {} (cat)", helper.pid()));
        }
    }

    #[test]
    fn what_cannot_be_killed_is_told_with_what_it_waits_for() {
        let stuck = |tid: i32| StuckThread {
            pid: 7,
            tid,
            comm: "worker".into(),
            waits_in: "percpu_rwsem_wait".into(),
            files: Vec::new(),
        };
        let sentence = NotGone::Alive { pid: 7, stuck: (1..6).map(stuck).collect() }.to_string();
        assert_eq!(
            sentence,
            "pid 7 cannot be killed: thread 1 (worker) is in state D in percpu_rwsem_wait, thread 2 (worker) is in state D \
             in percpu_rwsem_wait, thread 3 (worker) is in state D in percpu_rwsem_wait and 2 more; its storage does not answer"
        );
    }
}
