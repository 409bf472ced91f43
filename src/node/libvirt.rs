//! Libvirt itself, asked politely and with a deadline: through a `virsh` child that can be killed, since a hung libvirtd
//! would hold a thread of ours for ever. Nothing it answers is proof that a process is gone (rule 7).

use super::clock::{self, BootTimer};
use super::process::{self, Process};
use super::state_files::{lock_holder, pid_in};
use crate::lease::id::{DomainId, ProcessKey};
use crate::lease::time::BootTime;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;
use std::io::{self, Read};
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;
use std::{fmt, fs};

/// The most of a child's output that is kept, in bytes; the rest is read and dropped. 10 000 uuids are 380 kB.
const MAX_OUTPUT: usize = 1 << 20;
/// How long a killed child may take to be reaped. One in state D is left to pid 1.
const REAP_WITHIN: Duration = Duration::from_secs(1);
/// How virsh says that there is no such domain.
const UNKNOWN_DOMAIN: &str = "failed to get domain";
/// A cancelled migration is over within this.
const CANCEL_WITHIN: Duration = Duration::from_secs(10);
/// Seconds between two signs of life on a migration's connections, and how many may be missing: a destination that
/// vanished at the last step is given up after twelve seconds.
const KEEPALIVE: (&str, &str) = ("2", "5");
/// The most domains asked about in one child: their uuids make its command line.
const BATCH: usize = 500;

/// Why libvirt did not do, or did not say, what was asked.
#[derive(Debug)]
pub enum PoliteError {
    /// There is no `virsh` to run, or no resources to run it.
    NotRun(io::Error),
    /// No answer by the deadline; the child was killed.
    TooLate {
        /// What was asked, as a command line.
        asked: String,
    },
    /// Refused, in libvirt's words.
    Refused {
        /// What was asked, as a command line.
        asked: String,
        /// Its standard error, at most 400 characters of it.
        said: String,
    },
}

impl fmt::Display for PoliteError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            PoliteError::NotRun(cause) => {
                write!(f, "cannot run virsh: {cause}; install libvirt's client tools (libvirt-clients)")
            }
            PoliteError::TooLate { asked } => write!(f, "libvirt did not answer '{asked}' in time"),
            PoliteError::Refused { asked, said } => write!(f, "libvirt refused '{asked}': {said}"),
        }
    }
}

impl std::error::Error for PoliteError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            PoliteError::NotRun(cause) => Some(cause),
            _ => None,
        }
    }
}

/// A libvirt daemon, by its connection URI.
#[derive(Debug, Clone)]
pub struct Libvirt {
    uri: String,
}

impl Libvirt {
    /// `uri` as for `virsh -c`: `qemu:///system`.
    pub fn new(uri: impl Into<String>) -> Libvirt {
        Libvirt { uri: uri.into() }
    }

    /// `virsh destroy`, which ends a domain in libvirt's own order. `Ok` means that libvirt says so and nothing more: it has
    /// said so over a QEMU that was still writing.
    ///
    /// # Errors
    /// See [`PoliteError`].
    pub fn destroy(&self, domain: DomainId, by: BootTime) -> Result<(), PoliteError> {
        self.virsh(&["destroy", &domain.to_string()], by).map(drop)
    }

    /// `virsh resume`.
    ///
    /// # Errors
    /// See [`PoliteError`]; a domain that runs already is refused, too.
    pub fn resume(&self, domain: DomainId, by: BootTime) -> Result<(), PoliteError> {
        self.virsh(&["resume", &domain.to_string()], by).map(drop)
    }

    /// `virsh migrate --live --suspend` to the libvirt at `to`, with more options of virsh's: the copy there comes paused
    /// and stays so.
    ///
    /// # Errors
    /// See [`PoliteError`]. None of them says that nothing has come there; what is too late is being cancelled.
    pub fn migrate_paused(
        &self,
        domain: DomainId,
        to: &str,
        options: &[String],
        by: BootTime,
    ) -> Result<(), PoliteError> {
        let domain_words = ["--domain", &domain.to_string(), "--desturi", to];
        let words = ["migrate", "--live", "--suspend"].into_iter().chain(options.iter().map(String::as_str));
        let done = self.virsh_of_a_person(&words.chain(domain_words).collect::<Vec<_>>(), by).map(drop);
        if matches!(done, Err(PoliteError::TooLate { .. })) {
            // The death of its client cancels a migration; one with --p2p goes on without.
            let _ = self.virsh_of_a_person(&["domjobabort", &domain.to_string()], clock::now() + CANCEL_WITHIN);
        }
        done
    }

    /// What libvirt says of a domain at the source of its migration.
    ///
    /// # Errors
    /// It is not known: see [`PoliteError`].
    pub fn at_source(&self, domain: DomainId, by: BootTime) -> Result<AtSource, PoliteError> {
        match self.virsh_of_a_person(&["domstate", &domain.to_string()], by) {
            Ok(state) => Ok(match state.trim() {
                "running" | "idle" | "in shutdown" => AtSource::Running,
                "shut off" => AtSource::Gone,
                _ => AtSource::Paused,
            }),
            // A transient domain's end is the end of all libvirt knows of it.
            Err(PoliteError::Refused { said, .. }) if said.contains(UNKNOWN_DOMAIN) => Ok(AtSource::Gone),
            Err(error) => Err(error),
        }
    }

    /// Whether this libvirt has all of a domain that comes by live migration, and has ended it: the last that the
    /// destination does is to make `paused (migrating)` a `paused (user)`, or to run it (qemuMigrationDstFinishFresh).
    ///
    /// # Errors
    /// It is not known: see [`PoliteError`].
    pub fn has_come(&self, domain: DomainId, by: BootTime) -> Result<bool, PoliteError> {
        match self.virsh_of_a_person(&["domstate", "--reason", &domain.to_string()], by) {
            Ok(state) => Ok(state.starts_with("running") || state.trim() == "paused (user)"),
            Err(PoliteError::Refused { said, .. }) if said.contains(UNKNOWN_DOMAIN) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Whether libvirt is migrating this domain away now.
    ///
    /// # Errors
    /// It is not known: see [`PoliteError`].
    pub fn is_migrating(&self, domain: DomainId, by: BootTime) -> Result<bool, PoliteError> {
        match self.virsh_of_a_person(&["domjobinfo", &domain.to_string()], by) {
            Ok(job) => Ok(job.contains("Outgoing migration")),
            // It does not run here.
            Err(PoliteError::Refused { .. }) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// The domains that libvirtd is starting now: `paused (starting up)`, from before the `prepare` hook until the virtual CPUs
    /// run. Libvirtd keeps such a domain locked while a hook runs and answers nothing about it, so a start in flight is as
    /// likely to be seen as an error at the deadline. To be asked only while a daemon runs ([`daemon`]): none, no start.
    ///
    /// # Errors
    /// It is not known: see [`PoliteError`].
    pub fn starts_in_flight(&self, by: BootTime) -> Result<Vec<DomainId>, PoliteError> {
        let paused: Vec<DomainId> = self.ask(&["list", "--state-paused", "--uuid"], by)?;
        let mut starting = Vec::new();
        for domains in paused.chunks(BATCH) {
            // Names may hold a newline, so the answers are told apart by an echo of the uuid, not by their order.
            let commands: Vec<String> =
                domains.iter().map(|domain| format!("echo {domain}; domstate --reason {domain}")).collect();
            let answer = self.virsh(&[&commands.join("; ")], by)?;
            starting.extend(starting_in(&answer));
        }
        Ok(starting)
    }

    /// The daemon's version, like `9.0.0`.
    ///
    /// # Errors
    /// It does not answer: see [`PoliteError`].
    pub fn version(&self, by: BootTime) -> Result<String, PoliteError> {
        let arguments = ["version", "--daemon"];
        let answer = self.virsh(&arguments, by)?;
        let version = answer.lines().find_map(|line| line.strip_prefix("Running against daemon:"));
        let refused = || PoliteError::Refused { asked: arguments.join(" "), said: answer.clone() };
        version.map(|version| version.trim().to_owned()).ok_or_else(refused)
    }

    /// A command that prints one uuid a line.
    fn ask(&self, arguments: &[&str], by: BootTime) -> Result<Vec<DomainId>, PoliteError> {
        let answer = self.virsh(arguments, by)?;
        answer
            .lines()
            .filter(|line| !line.trim().is_empty())
            .map(|line| {
                let refused = |error| PoliteError::Refused { asked: arguments.join(" "), said: format!("{error}") };
                line.parse().map_err(refused)
            })
            .collect()
    }

    /// In a person's own environment, which ssh needs.
    fn virsh_of_a_person(&self, arguments: &[&str], by: BootTime) -> Result<String, PoliteError> {
        let mut command = Command::new("virsh");
        command.env("LC_ALL", "C").args(["-q", "-k", KEEPALIVE.0, "-K", KEEPALIVE.1, "-c", &self.uri]).args(arguments);
        answer_of(command, by)
    }

    fn virsh(&self, arguments: &[&str], by: BootTime) -> Result<String, PoliteError> {
        let mut command = Command::new("virsh");
        command.args(["-q", "-c", &self.uri]).args(arguments);
        // Its words are read by us, in English; it must not read a person's configuration or keep a history.
        command.env_clear().env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin").env("LC_ALL", "C").env("HOME", "/nonexistent");
        answer_of(command, by)
    }
}

/// What a domain is at the source of its migration, by libvirt's word: no proof of anything.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AtSource {
    /// It runs.
    Running,
    /// It is there and does not run.
    Paused,
    /// It is shut off, or not known there at all.
    Gone,
}

fn answer_of(command: Command, by: BootTime) -> Result<String, PoliteError> {
    let words = std::iter::once(command.get_program()).chain(command.get_args());
    let mut asked = words.map(|word| word.to_string_lossy()).collect::<Vec<_>>().join(" ");
    asked.truncate(asked.floor_char_boundary(200));
    match run(command, by).map_err(PoliteError::NotRun)? {
        None => Err(PoliteError::TooLate { asked }),
        Some(Answer { success: true, output, .. }) => Ok(output),
        Some(Answer { errors, .. }) => {
            let mut said = errors.lines().map(|line| line.trim_start_matches("error: ")).collect::<Vec<_>>().join(" ");
            said.truncate(said.floor_char_boundary(400));
            Err(PoliteError::Refused { asked, said })
        }
    }
}

/// Picks the uuids after which `domstate --reason` says that they are starting up.
fn starting_in(answer: &str) -> Vec<DomainId> {
    let mut starting = Vec::new();
    let mut asked = None;
    for line in answer.lines() {
        if let Ok(domain) = line.parse::<DomainId>() {
            asked = Some(domain);
        } else if line.trim() == "paused (starting up)" {
            starting.extend(asked.take());
        }
    }
    starting
}

struct Answer {
    success: bool,
    output: String,
    errors: String,
}

/// Runs a child to its end or kills it, with all it started, at `by`. `None`: it was killed.
fn run(mut command: Command, by: BootTime) -> io::Result<Option<Answer>> {
    let timer = BootTimer::new()?;
    timer.set(by)?;
    command.process_group(0).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn()?;
    let answer = attend(&mut child, &timer);
    if !matches!(answer, Ok(Some(_))) {
        end(&mut child);
    }
    answer
}

/// Reads both pipes until they are closed, and waits for the child.
fn attend(child: &mut Child, timer: &BootTimer) -> io::Result<Option<Answer>> {
    // A child that has exited already is no error here: it is not reaped yet.
    let pidfd = super::sys::pidfd_open(child.id() as i32)?;
    let (mut stdout, mut stderr) = (child.stdout.take(), child.stderr.take());
    let (mut output, mut errors) = (Vec::new(), Vec::new());
    loop {
        let mut waited = vec![(timer.as_fd(), 't'), (pidfd.as_fd(), 'p')];
        waited.extend(stdout.as_ref().map(|pipe| (pipe.as_fd(), 'o')));
        waited.extend(stderr.as_ref().map(|pipe| (pipe.as_fd(), 'e')));
        let closed = waited.len() == 2;
        let mut polled: Vec<PollFd<'_>> = waited.iter().map(|(fd, _)| PollFd::new(*fd, PollFlags::POLLIN)).collect();
        match poll(&mut polled, PollTimeout::NONE) {
            Err(nix::errno::Errno::EINTR) => continue,
            ready => ready?,
        };
        let ready: Vec<char> = waited
            .iter()
            .zip(&polled)
            .filter(|(_, polled)| polled.any().unwrap_or(true))
            .map(|((_, which), _)| *which)
            .collect();
        if ready.contains(&'t') {
            return Ok(None);
        }
        if ready.contains(&'o') && !read_some(&mut stdout, &mut output)? {
            stdout = None;
        }
        if ready.contains(&'e') && !read_some(&mut stderr, &mut errors)? {
            stderr = None;
        }
        if closed && ready.contains(&'p') {
            let success = child.wait()?.success();
            let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
            return Ok(Some(Answer { success, output: text(output), errors: text(errors) }));
        }
    }
}

/// One read; false at the end. Beyond [`MAX_OUTPUT`] what is read is dropped, so that the child can end.
fn read_some(pipe: &mut Option<impl Read>, kept: &mut Vec<u8>) -> io::Result<bool> {
    let mut buffer = [0; 16 << 10];
    let Some(pipe) = pipe else { return Ok(false) };
    let length = match pipe.read(&mut buffer) {
        Err(error) if error.kind() == io::ErrorKind::Interrupted => return Ok(true),
        length => length?,
    };
    kept.extend_from_slice(&buffer[..length.min(MAX_OUTPUT - kept.len())]);
    Ok(length > 0)
}

/// SIGKILL for the child's whole group, and reaps the child.
fn end(child: &mut Child) {
    // The child is not reaped, so the group's number is still its own.
    let _ = killpg(Pid::from_raw(child.id() as i32), Signal::SIGKILL);
    let until = clock::now() + REAP_WITHIN;
    if let Ok(pidfd) = super::sys::pidfd_open(child.id() as i32) {
        while poll(&mut [PollFd::new(pidfd.as_fd(), PollFlags::POLLIN)], clock::poll_timeout(until))
            == Err(nix::errno::Errno::EINTR)
        {}
    }
    let _ = child.try_wait();
}

/// Whether a process of this short name is libvirt's QEMU daemon, monolithic or modular.
pub fn is_daemon_name(name: &str) -> bool {
    matches!(name, "libvirtd" | "virtqemud")
}

/// The libvirt daemon that runs the QEMU driver here: the holder of the lock on `driver.pid` in `run_dir`
/// (/run/libvirt/qemu), else what the daemons' own pid files in the directory two above it name, else the oldest one of
/// root's in /proc: a daemon in a container may keep its files elsewhere. `None`: no such daemon runs, so no start is in
/// flight.
pub fn daemon(run_dir: &Path) -> Option<ProcessKey> {
    named_by_files(run_dir).or_else(any_daemon)
}

fn named_by_files(run_dir: &Path) -> Option<ProcessKey> {
    let driver = run_dir.join("driver.pid");
    let run = run_dir.parent().and_then(Path::parent);
    let of_daemons = ["virtqemud.pid", "libvirtd.pid"].into_iter().filter_map(|name| Some(run?.join(name)));
    std::iter::once(driver)
        .chain(of_daemons)
        .flat_map(|path| [lock_holder(&path), pid_in(&path)])
        .filter_map(|pid| daemon_with_pid(pid.ok()??))
        .next()
}

/// The oldest daemon of root's. Those of users serve `qemu:///session`, which is no business of this host's.
fn any_daemon() -> Option<ProcessKey> {
    let pids = fs::read_dir("/proc").ok()?.flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    let of_root = |pid: &i32| fs::metadata(format!("/proc/{pid}")).is_ok_and(|process| process.uid() == 0);
    pids.filter(|&pid| process::comm_of(pid).is_ok_and(|comm| is_daemon_name(&comm)))
        .filter(of_root)
        .filter_map(daemon_with_pid)
        .min_by_key(|daemon| daemon.started)
}

/// A pid in a file, and the holder of a lock, can be anybody: it must live and be the daemon by name or binary.
fn daemon_with_pid(pid: i32) -> Option<ProcessKey> {
    let process = Process::open(pid).ok()?;
    let by_binary = || {
        let binary = fs::read_link(format!("/proc/{pid}/exe")).ok()?;
        Some(is_daemon_name(binary.file_name()?.to_str()?.trim_end_matches(" (deleted)")))
    };
    let is_daemon = process::comm_of(pid).is_ok_and(|comm| is_daemon_name(&comm)) || by_binary().unwrap_or(false);
    (is_daemon && !process.has_exited()).then(|| process.key())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::node::testing::Child as TestChild;
    use std::time::Instant;

    fn shell(script: &str) -> Command {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        command
    }

    fn soon(millis: u64) -> BootTime {
        clock::now() + Duration::from_millis(millis)
    }

    #[test]
    fn a_child_gives_its_whole_answer() {
        let answer = run(shell("echo out; echo err >&2; exit 3"), soon(10_000)).unwrap().expect("in time");
        assert_eq!((answer.success, answer.output.as_str(), answer.errors.as_str()), (false, "out\n", "err\n"));
    }

    #[test]
    fn a_child_that_hangs_is_killed_at_the_deadline_with_all_it_started() {
        let dir = tempfile::tempdir().unwrap();
        let pids = dir.path().join("pids");
        let start = Instant::now();
        // The grandchild holds the pipe: its death is what closes it.
        let script = format!("sleep 1000 & echo $! >{0}.new; mv {0}.new {0}; wait", pids.display());
        assert!(run(shell(&script), soon(500)).unwrap().is_none());
        assert!(start.elapsed() < Duration::from_secs(5));
        let grandchild: i32 = fs::read_to_string(&pids).expect("it had started").trim().parse().unwrap();
        if let Ok(process) = Process::open(grandchild) {
            let exits = poll(&mut [PollFd::new(process.as_fd(), PollFlags::POLLIN)], PollTimeout::from(10_000u16));
            assert_eq!(exits, Ok(1));
        }
    }

    #[test]
    fn a_flood_of_output_is_cut_and_does_not_block_the_child() {
        let answer = run(shell("head -c 3000000 /dev/zero"), soon(10_000)).unwrap().expect("in time");
        assert!(answer.success);
        assert_eq!(answer.output.len(), MAX_OUTPUT);
    }

    #[test]
    fn only_starting_domains_are_starts_in_flight() {
        let (a, b) = ("fc3be091-56d3-4c69-8adb-2fdb8b0a35d1", "fc3be091-56d3-4c69-8adb-2fdb8b0a35d2");
        let answer = format!("{a}\npaused (user)\n\n{b}\npaused (starting up)\n\n");
        assert_eq!(starting_in(&answer), [b.parse().unwrap()]);
        assert_eq!(starting_in("paused (starting up)\n"), []);
    }

    #[test]
    fn a_pid_file_that_names_somebody_else_names_no_daemon() {
        let dir = tempfile::tempdir().unwrap();
        let run_dir = dir.path().join("libvirt/qemu");
        fs::create_dir_all(&run_dir).unwrap();
        assert_eq!(named_by_files(&run_dir), None);
        let somebody = TestChild::sleeping();
        fs::write(run_dir.join("driver.pid"), somebody.pid().to_string()).unwrap();
        assert_eq!(named_by_files(&run_dir), None);
        let posing = TestChild::posing_as_qemu(dir.path(), "virtqemud", &[]);
        fs::write(dir.path().join("virtqemud.pid"), format!("{}\n", posing.pid())).unwrap();
        assert_eq!(named_by_files(&run_dir), Some(process::key_of(posing.pid()).unwrap()));
    }
}
