//! The file of the fence record: lines are only added, each is on the disk when [`append`] returns, and the last one may
//! be torn by the reset that it tells of.

use super::files::read_bounded;
use crate::lease::fence::{Line, VERSION};
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

/// The file in the state directory, and what it was before it grew too large.
const FILE: &str = "fence-record.jsonl";
const OLD_FILE: &str = "fence-record.old.jsonl";
/// The most that one of them holds, in bytes, but for a single line that is longer: two of them are some thousand lines.
const LARGE: usize = 1 << 20;
/// The largest file read, in bytes.
const MAX_SIZE: usize = 8 << 20;

/// What is kept.
#[derive(Debug, Default)]
pub struct Kept {
    /// Every line that could be read, the oldest first.
    pub lines: Vec<Line>,
    /// How many more could not be understood.
    pub damaged: usize,
    /// Files that could not be read, and why.
    pub unreadable: Vec<String>,
}

/// Adds these lines, which end with a newline each. May block on the disk for as long as that hangs.
///
/// # Errors
/// Those of opening, writing and syncing; the message names the file.
pub fn append(state_dir: &Path, lines: &[u8]) -> io::Result<()> {
    let path = state_dir.join(FILE);
    let mut left = lines;
    let added = (|| {
        while !left.is_empty() {
            let there = fs::metadata(&path).map_or(0, |file| usize::try_from(file.len()).unwrap_or(LARGE));
            let fitting = whole_lines(left, LARGE.saturating_sub(there));
            if fitting == 0 && there > 0 {
                fs::rename(&path, state_dir.join(OLD_FILE))?;
                continue;
            }
            let (now, later) = left.split_at(fitting.max(first_line(left)));
            add(state_dir, &path, now)?;
            left = later;
        }
        Ok(())
    })();
    added.map_err(|error: io::Error| io::Error::new(error.kind(), format!("cannot write {}: {error}", path.display())))
}

fn add(state_dir: &Path, path: &Path, lines: &[u8]) -> io::Result<()> {
    let new = !path.exists();
    let mut file = OpenOptions::new().read(true).append(true).create(true).mode(0o600).open(path)?;
    if is_torn(&mut file)? {
        file.write_all(b"\n")?;
    }
    file.write_all(lines)?;
    file.sync_data()?;
    if new { File::open(state_dir)?.sync_all() } else { Ok(()) }
}

/// How many bytes of whole lines there is room for.
fn whole_lines(lines: &[u8], room: usize) -> usize {
    match lines.get(..room) {
        Some(part) if lines.len() > room => part.iter().rposition(|&byte| byte == b'\n').map_or(0, |at| at + 1),
        _ => lines.len(),
    }
}

fn first_line(lines: &[u8]) -> usize {
    lines.iter().position(|&byte| byte == b'\n').map_or(lines.len(), |at| at + 1)
}

/// What is there. That there is nothing is no fault.
pub fn read(state_dir: &Path) -> Kept {
    let mut kept = Kept::default();
    for name in [OLD_FILE, FILE] {
        let path = state_dir.join(name);
        let text = match read_bounded(&path, MAX_SIZE) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            Err(error) => {
                kept.unreadable.push(format!("cannot read {}: {error}", path.display()));
                continue;
            }
            Ok(bytes) => String::from_utf8_lossy(&bytes).into_owned(),
        };
        for text in text.lines().filter(|line| !line.trim().is_empty()) {
            match serde_json::from_str(text) {
                Ok(line @ Line { version: VERSION, .. }) => kept.lines.push(line),
                _ => kept.damaged += 1,
            }
        }
    }
    kept
}

/// Whether the last line has no end.
fn is_torn(file: &mut File) -> io::Result<bool> {
    let mut last = [0];
    match file.seek(SeekFrom::End(-1)) {
        // An empty file has no byte to go back to.
        Err(_) => Ok(false),
        Ok(_) => Ok(file.read(&mut last)? == 1 && last[0] != b'\n'),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lease::fence::{Mark, What};
    use crate::lease::id::{BootId, Incarnation};
    use crate::lease::time::BootTime;

    /// A line of about so many bytes, told from others by its wall clock.
    fn line(wall: &str, bytes: usize) -> Vec<u8> {
        let at = BootTime::ZERO;
        let mark = Mark { at, event: What::Gone, last_answer: None, domains: vec![], more: 0, watchdog: None };
        let (boot_id, incarnation) = (BootId::from_bytes([1; 16]), Incarnation::from_bytes([2; 16]));
        let node = "n1".parse().unwrap();
        let wall = wall.to_owned() + &" ".repeat(bytes);
        let line = Line { version: VERSION, node, boot_id, incarnation, wall, lost_marks: 0, mark };
        let mut bytes = serde_json::to_vec(&line).unwrap();
        bytes.push(b'\n');
        bytes
    }

    fn kept(dir: &Path) -> Vec<String> {
        read(dir).lines.into_iter().map(|line| line.wall.trim_end().to_owned()).collect()
    }

    #[test]
    fn lines_are_added_and_a_torn_one_spoils_none_but_itself() {
        let dir = tempfile::tempdir().unwrap();
        assert!(read(dir.path()).lines.is_empty());
        append(dir.path(), &[line("one", 0), line("two", 0)].concat()).unwrap();
        let mut torn = fs::read(dir.path().join(FILE)).unwrap();
        torn.extend(b"{\"version\":1,\"no");
        fs::write(dir.path().join(FILE), torn).unwrap();
        append(dir.path(), &line("four", 0)).unwrap();
        assert_eq!(kept(dir.path()), ["one", "two", "four"]);
        assert_eq!(read(dir.path()).damaged, 1);
    }

    #[test]
    fn a_large_file_makes_room_and_what_was_in_it_is_read_first() {
        let dir = tempfile::tempdir().unwrap();
        for wall in ["one", "two", "three", "four", "five"] {
            append(dir.path(), &line(wall, LARGE / 2)).unwrap();
        }
        assert_eq!(kept(dir.path()), ["four", "five"], "each is more than half of a file");
    }

    #[test]
    fn however_much_comes_at_once_no_file_grows_past_what_is_read() {
        let dir = tempfile::tempdir().unwrap();
        // As after a disk that hung: all that may wait, of two hundred domains each.
        let all: Vec<u8> = (0..256).flat_map(|at| line(&at.to_string(), 39_000)).collect();
        append(dir.path(), &all).unwrap();
        let there = kept(dir.path());
        assert_eq!(there.last().unwrap(), "255", "the newest are kept");
        assert!(there.len() > 26, "{}", there.len());
        for file in [FILE, OLD_FILE] {
            assert!(fs::metadata(dir.path().join(file)).unwrap().len() <= LARGE as u64);
        }
        append(dir.path(), &line("long", 2 * LARGE)).unwrap();
        assert_eq!(kept(dir.path()).last().unwrap(), "long");
    }

    #[test]
    fn a_file_that_cannot_be_read_is_told_with_its_name_and_hides_no_other() {
        let dir = tempfile::tempdir().unwrap();
        append(dir.path(), &line("new", 0)).unwrap();
        fs::create_dir(dir.path().join(OLD_FILE)).unwrap();
        assert_eq!(kept(dir.path()), ["new"]);
        assert!(read(dir.path()).unreadable[0].contains("fence-record.old.jsonl"));

        let dir = tempfile::tempdir().unwrap();
        fs::create_dir(dir.path().join(FILE)).unwrap();
        assert!(read(dir.path()).unreadable[0].contains("fence-record.jsonl"));
        assert!(append(dir.path(), b"x\n").unwrap_err().to_string().contains("fence-record.jsonl"));
    }
}
