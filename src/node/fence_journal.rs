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
/// From this size on, in bytes, a new file is begun: two of them are some thousand lines.
const LARGE: u64 = 1 << 20;
/// The largest file read, in bytes.
const MAX_SIZE: usize = 8 << 20;

/// Adds these lines, which end with a newline each. May block on the disk for as long as that hangs.
///
/// # Errors
/// Those of opening, writing and syncing; the message names the file.
pub fn append(state_dir: &Path, lines: &[u8]) -> io::Result<()> {
    let path = state_dir.join(FILE);
    let added = (|| {
        if fs::metadata(&path).is_ok_and(|file| file.len() >= LARGE) {
            fs::rename(&path, state_dir.join(OLD_FILE))?;
        }
        let new = !path.exists();
        let mut file = OpenOptions::new().read(true).append(true).create(true).mode(0o600).open(&path)?;
        if is_torn(&mut file)? {
            file.write_all(b"\n")?;
        }
        file.write_all(lines)?;
        file.sync_data()?;
        if new { File::open(state_dir)?.sync_all() } else { Ok(()) }
    })();
    added.map_err(|error| io::Error::new(error.kind(), format!("cannot write {}: {error}", path.display())))
}

/// Every line kept, the oldest first, and how many more could not be understood.
///
/// # Errors
/// Those of reading, and `FileTooLarge`; the message names the file. That there is none is no error.
pub fn read(state_dir: &Path) -> io::Result<(Vec<Line>, usize)> {
    let lines = read_lines(state_dir)?;
    let understood = |text: &String| serde_json::from_str(text).ok().filter(|line: &Line| line.version == VERSION);
    let record: Vec<Line> = lines.iter().filter_map(understood).collect();
    let damaged = lines.len() - record.len();
    Ok((record, damaged))
}

fn read_lines(state_dir: &Path) -> io::Result<Vec<String>> {
    let mut lines = Vec::new();
    for name in [OLD_FILE, FILE] {
        match read_bounded(&state_dir.join(name), MAX_SIZE) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            bytes => lines.extend(String::from_utf8_lossy(&bytes?).lines().map(str::to_owned)),
        }
    }
    lines.retain(|line| !line.trim().is_empty());
    Ok(lines)
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

    #[test]
    fn lines_are_added_and_a_torn_one_spoils_none_but_itself() {
        let dir = tempfile::tempdir().unwrap();
        assert!(read_lines(dir.path()).unwrap().is_empty());
        append(dir.path(), b"one\ntwo\n").unwrap();
        fs::write(dir.path().join(FILE), "one\ntwo\nto").unwrap();
        append(dir.path(), b"four\n").unwrap();
        assert_eq!(read_lines(dir.path()).unwrap(), ["one", "two", "to", "four"]);
    }

    #[test]
    fn a_large_file_makes_room_and_what_was_in_it_is_read_first() {
        let dir = tempfile::tempdir().unwrap();
        let full = "x".repeat(LARGE as usize);
        append(dir.path(), format!("{full}\n").as_bytes()).unwrap();
        append(dir.path(), b"next\n").unwrap();
        assert_eq!(read_lines(dir.path()).unwrap(), [full.as_str(), "next"]);
        append(dir.path(), format!("{full}\n").as_bytes()).unwrap();
        append(dir.path(), b"last\n").unwrap();
        assert_eq!(read_lines(dir.path()).unwrap(), ["next", full.as_str(), "last"]);
    }

    #[test]
    fn a_file_that_cannot_be_read_is_told_with_its_name() {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir(dir.path().join(FILE)).unwrap();
        assert!(read(dir.path()).unwrap_err().to_string().contains("fence-record.jsonl"));
        assert!(append(dir.path(), b"x\n").unwrap_err().to_string().contains("fence-record.jsonl"));
    }
}
