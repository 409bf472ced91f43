//! libvirt's own files about running domains: `NAME.pid` and `NAME.xml` in /run/libvirt/qemu.
//!
//! They help and prove nothing: libvirt removes both over a QEMU that would not die, rewrites neither while it hangs, and
//! after a crash they name pids that may have been reused.

use super::process::is_vanished;
use crate::lease::id::DomainId;
use nix::fcntl::{FcntlArg, fcntl};
use quick_xml::Reader;
use quick_xml::events::{BytesStart, Event};
use std::collections::HashMap;
use std::ffi::OsString;
use std::fs::{self, File, Metadata};
use std::io::{self, BufReader, Read};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// The most of a status file that is read, in bytes: libvirt takes domains of 4 MiB and writes up to 24.6 MB for them.
const MAX_STATUS: u64 = 32 << 20;

/// Whether a domain's virtual CPUs run, as libvirt last wrote it. Stale while libvirtd hangs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RunState {
    /// They run (`running`, and `shutdown`: the guest is shutting itself down).
    Running,
    /// They do not (`paused`, `pmsuspended`, `crashed`): a suspended guest, an incoming migration.
    Paused,
    /// No status file names the process, or it says something else.
    Unknown,
}

/// The beginning of a status file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Status {
    pub pid: i32,
    pub run_state: RunState,
}

/// Which version of a file was read. libvirt replaces status files by rename, so the inode changes too.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Version {
    inode: u64,
    size: u64,
    modified: (i64, i64),
}

impl Version {
    fn of(metadata: &Metadata) -> Version {
        Version { inode: metadata.ino(), size: metadata.size(), modified: (metadata.mtime(), metadata.mtime_nsec()) }
    }
}

#[derive(Debug, Clone, Copy)]
enum Content {
    Pid(Option<i32>),
    Status(Option<Status>),
}

/// The files as they were last read; only changed ones are read again.
#[derive(Debug)]
pub(super) struct StateFiles {
    directory: PathBuf,
    seen: HashMap<OsString, (Version, Content)>,
}

impl StateFiles {
    pub(super) fn new(directory: PathBuf) -> StateFiles {
        StateFiles { directory, seen: HashMap::new() }
    }

    /// Reads what changed. No directory is the same as an empty one: libvirt has not run yet.
    pub(super) fn refresh(&mut self) -> io::Result<()> {
        let mut present = HashMap::with_capacity(self.seen.len());
        let entries = match fs::read_dir(&self.directory) {
            Err(error) if is_vanished(&error) => {
                self.seen.clear();
                return Ok(());
            }
            entries => entries?,
        };
        for entry in entries {
            let name = entry?.file_name();
            let is_status = match name.as_bytes().rsplit(|&byte| byte == b'.').next() {
                Some(b"xml") => true,
                Some(b"pid") => false,
                _ => continue,
            };
            let path = self.directory.join(&name);
            // A file that vanishes while we look is normal: the domain ended, or its status was replaced.
            let metadata = match fs::symlink_metadata(&path) {
                Err(error) if is_vanished(&error) => continue,
                metadata => metadata?,
            };
            if !metadata.is_file() {
                continue;
            }
            let version = Version::of(&metadata);
            let content = match self.seen.remove(&name) {
                // An empty pid or status means it was being written; look again.
                Some((old, content @ (Content::Pid(Some(_)) | Content::Status(Some(_))))) if old == version => content,
                _ => match read(&path, is_status) {
                    Err(error) if is_vanished(&error) => continue,
                    content => content?,
                },
            };
            present.insert(name, (version, content));
        }
        self.seen = present;
        Ok(())
    }

    /// The pids that any of the files names, for looking at: a pid here is no identity.
    pub(super) fn pids(&self) -> impl Iterator<Item = i32> + '_ {
        self.seen.values().filter_map(|(_, content)| match content {
            Content::Pid(pid) => *pid,
            Content::Status(status) => status.map(|status| status.pid),
        })
    }

    /// What the status files say, by the pid they name.
    pub(super) fn run_states(&self) -> HashMap<i32, RunState> {
        let mut states = HashMap::new();
        for (_, content) in self.seen.values() {
            if let Content::Status(Some(status)) = content {
                // Two files naming one pid: at least one is stale.
                states.entry(status.pid).and_modify(|state| *state = RunState::Unknown).or_insert(status.run_state);
            }
        }
        states
    }

    /// The domain that the files say this pid is: a status file names it, and the process holds the lock on the pid file
    /// of the same name, which only a process started for that name can.
    pub(super) fn domain_of(&self, pid: i32) -> io::Result<Option<(DomainId, String)>> {
        for (file_name, (_, content)) in &self.seen {
            if !matches!(content, Content::Status(Some(status)) if status.pid == pid) {
                continue;
            }
            let name = String::from_utf8_lossy(&file_name.as_bytes()[..file_name.len() - ".xml".len()]).into_owned();
            let pid_file = self.directory.join(pid_file_name(&name));
            if lock_holder(&pid_file)? != Some(pid) {
                continue;
            }
            let status = match open(&self.directory.join(file_name)) {
                Err(error) if is_vanished(&error) => continue,
                status => status?,
            };
            if let Some(domain) = uuid_in(status) {
                return Ok(Some((domain, name)));
            }
        }
        Ok(None)
    }
}

fn read(path: &Path, is_status: bool) -> io::Result<Content> {
    if is_status {
        return Ok(Content::Status(head_of(open(path)?)));
    }
    // The holder of the lock is right where a leftover file's number is not; the number is there when nobody holds it.
    let number = pid_in(path)?;
    Ok(Content::Pid(lock_holder(path)?.or(number)))
}

fn open(path: &Path) -> io::Result<BufReader<impl Read + use<>>> {
    Ok(BufReader::with_capacity(4096, File::open(path)?.take(MAX_STATUS)))
}

/// The number in a pid file; `None` when there is none in it.
pub(super) fn pid_in(path: &Path) -> io::Result<Option<i32>> {
    let mut text = String::new();
    match File::open(path)?.take(32).read_to_string(&mut text) {
        Err(error) if error.kind() != io::ErrorKind::InvalidData => Err(error),
        _ => Ok(text.trim().parse().ok().filter(|&pid| pid > 0)),
    }
}

/// The process that holds a write lock on the first byte of a file, fcntl(2) F_GETLK. QEMU holds one on its pid file
/// for as long as it lives, even with one thread left in state D; libvirtd on `driver.pid`.
pub(super) fn lock_holder(path: &Path) -> io::Result<Option<i32>> {
    let file = match File::open(path) {
        Err(error) if is_vanished(&error) => return Ok(None),
        file => file?,
    };
    let mut lock = libc::flock {
        l_type: libc::F_WRLCK as libc::c_short,
        l_whence: libc::SEEK_SET as libc::c_short,
        l_start: 0,
        l_len: 1,
        l_pid: 0,
    };
    fcntl(&file, FcntlArg::F_GETLK(&mut lock))?;
    // A holder in another pid namespace is reported as 0 or -1.
    Ok((lock.l_type != libc::F_UNLCK as libc::c_short && lock.l_pid > 0).then_some(lock.l_pid))
}

/// The root's attributes: `<domstatus state='running' reason='booted' pid='30225'>`. Reads no further.
fn head_of(file: impl io::BufRead) -> Option<Status> {
    let mut reader = Reader::from_reader(file);
    let mut buffer = Vec::new();
    loop {
        match reader.read_event_into(&mut buffer).ok()? {
            Event::Start(root) if root.name().as_ref() == "domstatus" => return status_of(&root),
            Event::Start(_) | Event::Empty(_) | Event::Eof => return None,
            _ => buffer.clear(),
        }
    }
}

fn status_of(root: &BytesStart<'_>) -> Option<Status> {
    let (mut pid, mut run_state) = (None, RunState::Unknown);
    for attribute in root.attributes() {
        let attribute = attribute.ok()?;
        match (attribute.key.as_ref(), attribute.value.as_ref()) {
            ("pid", value) => pid = value.parse().ok().filter(|&pid: &i32| pid > 0),
            ("state", "running" | "idle" | "blocked" | "shutdown") => run_state = RunState::Running,
            ("state", "paused" | "pmsuspended" | "crashed") => run_state = RunState::Paused,
            _ => {}
        }
    }
    Some(Status { pid: pid?, run_state })
}

/// `domstatus/domain/uuid`: at the top of the domain, behind a few KiB of capabilities.
fn uuid_in(file: impl io::BufRead) -> Option<DomainId> {
    let mut reader = Reader::from_reader(file);
    let mut buffer = Vec::new();
    let mut path: Vec<String> = Vec::new();
    loop {
        match reader.read_event_into(&mut buffer).ok()? {
            Event::Start(element) => path.push(element.name().as_ref().to_owned()),
            Event::End(_) => drop(path.pop()),
            Event::Text(text) if path == ["domstatus", "domain", "uuid"] => {
                return text.parse().ok();
            }
            Event::Eof => return None,
            _ => {}
        }
        buffer.clear();
    }
}

/// The name of the pid file of the domain `name`, which libvirt escapes as if it stood in XML (virpidfile.c); `NAME.xml` it does not.
fn pid_file_name(name: &str) -> OsString {
    format!("{}.pid", quick_xml::escape::escape(name)).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    const STATUS: &str = "<!--\nWARNING: <domstatus pid='1'> & so on\n-->\n
<domstatus state='paused' reason='migration' pid='4711'>
  <taint flag='x'/><vcpus><vcpu id='0' pid='205'/></vcpus><uuid>00000000-0000-0000-0000-000000000001</uuid>
  <domain type='kvm' id='1'><name>a&amp;b</name><metadata><uuid>no</uuid></metadata>
    <uuid>fc3be091-56d3-4c69-8adb-2fdb8b0a35d2</uuid>";

    #[test]
    fn a_status_file_names_pid_state_and_uuid_even_when_its_end_is_missing() {
        assert_eq!(head_of(STATUS.as_bytes()), Some(Status { pid: 4711, run_state: RunState::Paused }));
        assert_eq!(uuid_in(STATUS.as_bytes()).unwrap().to_string(), "fc3be091-56d3-4c69-8adb-2fdb8b0a35d2");
    }

    #[test]
    fn what_is_not_a_status_file_says_nothing() {
        for text in ["", "<domain pid='4'/>", "<domstatus state='running'>", "<domstatus pid='-4'>", "<!-- ", "\0\0"] {
            assert_eq!(head_of(text.as_bytes()), None, "{text}");
            assert_eq!(uuid_in(text.as_bytes()), None, "{text}");
        }
    }

    #[test]
    fn files_are_read_when_they_change_and_forgotten_when_they_go() {
        let dir = tempfile::tempdir().unwrap();
        let mut files = StateFiles::new(dir.path().to_owned());
        fs::write(dir.path().join("a.xml"), STATUS).unwrap();
        fs::write(dir.path().join("b.pid"), "12").unwrap();
        fs::write(dir.path().join("empty.pid"), "").unwrap();
        fs::create_dir(dir.path().join("dir.xml")).unwrap();
        files.refresh().unwrap();
        let mut pids: Vec<i32> = files.pids().collect();
        pids.sort_unstable();
        assert_eq!(pids, [12, 4711]);
        assert_eq!(files.run_states()[&4711], RunState::Paused);

        fs::write(dir.path().join("new"), STATUS.replace("paused", "running")).unwrap();
        fs::rename(dir.path().join("new"), dir.path().join("a.xml")).unwrap();
        fs::remove_file(dir.path().join("b.pid")).unwrap();
        files.refresh().unwrap();
        assert_eq!(files.run_states()[&4711], RunState::Running);
        assert_eq!(files.pids().count(), 1);
    }

    #[test]
    fn a_directory_that_is_not_there_is_empty() {
        let mut files = StateFiles::new("/nonexistent/run/libvirt/qemu".into());
        files.refresh().unwrap();
        assert_eq!(files.pids().count(), 0);
    }

    #[test]
    fn the_pid_file_of_an_odd_name_is_the_one_libvirt_writes() {
        assert_eq!(pid_file_name("a&b 'q'"), "a&amp;b &apos;q&apos;.pid");
    }
}
