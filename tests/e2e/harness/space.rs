//! A set of namespaces with a holder in it, and programs started inside.

use super::process::{Finished, Process};
use super::wait_until;
use nix::sched::{CloneFlags, setns, unshare};
use std::ffi::OsStr;
use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

/// Namespaces that live as long as this value. Their first process reads a pipe from the test, so they end also when
/// the test is killed without any drop.
pub struct Space {
    name: String,
    holder: Child,
    /// The first process inside, by its pid out here.
    init: i32,
    logs: PathBuf,
}

/// What the holder runs inside: it says that it is ready, and stays until its input ends.
pub const HOLD: &str = "echo ready; exec cat >/dev/null";

impl Space {
    /// `command` must end in a shell with [`HOLD`] inside the new namespaces, its unshare(1) with `--kill-child`.
    pub fn hold(name: &str, mut command: Command, logs: &Path) -> Space {
        let log = File::create(logs.join(format!("{name}.log"))).expect("the world's directory is writable");
        let mut holder = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(log)
            .spawn()
            .unwrap_or_else(|error| panic!("{command:?}: {error}"));
        let pipe = holder.stdout.take().expect("stdout is piped");
        let ready = BufReader::new(pipe).lines().map_while(Result::ok).any(|line| line == "ready");
        let init = ready.then(|| first_child(holder.id())).flatten();
        let Some(init) = init else {
            let _ = holder.kill();
            let _ = holder.wait();
            let said = std::fs::read_to_string(logs.join(format!("{name}.log"))).unwrap_or_default();
            panic!("the namespaces of {name} did not come up:\n{said}");
        };
        Space { name: name.to_owned(), holder, init, logs: logs.to_owned() }
    }

    /// Network and pid namespaces alone, for whatever is no libvirt host.
    pub fn plain(name: &str, logs: &Path) -> Space {
        let mut command = Command::new("unshare");
        command.args(["--net", "--pid", "--mount", "--mount-proc", "--fork", "--kill-child", "sh", "-c"]);
        command.arg(format!("ip link set lo up; {HOLD}"));
        Space::hold(name, command, logs)
    }

    pub fn name(&self) -> &str {
        &self.name
    }

    /// The pid, out here, of the first process inside.
    pub fn init(&self) -> i32 {
        self.init
    }

    /// Runs a program inside to its end, `input` on its stdin.
    pub fn run_with<S: AsRef<OsStr>>(&self, program: impl AsRef<OsStr>, args: &[S], input: &str) -> Finished {
        let mut command = Command::new(program);
        command.args(args).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = self.spawn_inside(&mut command);
        let mut stdin = child.stdin.take().expect("stdin is piped");
        let input = input.to_owned();
        // A program that does not read its input must not hang the test, nor one that writes more than a pipe holds.
        let feeder = std::thread::spawn(move || {
            let _ = stdin.write_all(input.as_bytes());
        });
        let output = child.wait_with_output().expect("a child can be waited for");
        feeder.join().expect("writing to a pipe does not panic");
        let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
        Finished { status: output.status, out: text(output.stdout), err: text(output.stderr) }
    }

    /// Runs a program inside to its end.
    pub fn run<S: AsRef<OsStr>>(&self, program: impl AsRef<OsStr>, args: &[S]) -> Finished {
        self.run_with(program, args, "")
    }

    /// Starts a program inside; its output goes to a log of that name.
    pub fn start<S: AsRef<OsStr>>(&self, name: &str, program: impl AsRef<OsStr>, args: &[S]) -> Process {
        let path = self.logs.join(format!("{}-{name}.log", self.name));
        let log = File::options().create(true).append(true).open(&path).expect("the world's directory is writable");
        let mut command = Command::new(program);
        command.args(args).stdin(Stdio::null()).stderr(log.try_clone().expect("a file can be cloned")).stdout(log);
        Process::new(self.spawn_inside(&mut command), name, path)
    }

    /// Spawns from a thread that has moved into the namespaces: so the child's pid is its own, not that of an
    /// nsenter(1) in between, and a signal reaches it and nothing else.
    fn spawn_inside(&self, command: &mut Command) -> Child {
        std::thread::scope(|scope| {
            let spawned = scope.spawn(|| {
                let open = |kind: &str| File::open(format!("/proc/{}/ns/{kind}", self.init));
                let spaces = ["cgroup", "uts", "net", "pid", "mnt"].map(|kind| open(kind).expect("the holder lives"));
                // setns(2) to a mount namespace wants a thread that shares its root and directory with no other.
                unshare(CloneFlags::CLONE_FS).expect("a thread may stop sharing its directory");
                for space in &spaces {
                    setns(space, CloneFlags::empty()).expect("root may enter namespaces");
                }
                command.spawn().unwrap_or_else(|error| panic!("{command:?}: {error}"))
            });
            spawned.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        })
    }
}

impl Drop for Space {
    fn drop(&mut self) {
        // The holder is unshare(1) with --kill-child: its death kills the first process inside, and the kernel then
        // kills everything else in that pid namespace.
        let _ = self.holder.kill();
        let _ = self.holder.wait();
        let init = PathBuf::from(format!("/proc/{}", self.init));
        let gone = || !init.exists();
        if std::thread::panicking() {
            let _ = std::panic::catch_unwind(|| wait_until("the namespaces were empty", Duration::from_secs(5), gone));
        } else {
            wait_until("the namespaces were empty", Duration::from_secs(20), gone);
        }
    }
}

/// The only child of a process, once it is there: the first process inside.
fn first_child(pid: u32) -> Option<i32> {
    let children = std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).ok()?;
    children.split_whitespace().next()?.parse().ok()
}
