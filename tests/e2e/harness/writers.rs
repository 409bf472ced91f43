//! The oracle for two writers: what a shared disk itself says about who wrote when. Pure: bytes in, verdict out.
//!
//! The guest (tests/e2e/payload/journal.S) looks for the end of the journal, leaves [`GAP`] blocks free, and appends a
//! record at every tick, 55 ms, each in a block of its own, counting from 0. A block that it finds taken one tick before
//! its turn comes it leaves alone, and says so in every record from then on. So whatever two writers do at the same time
//! stays to be seen:
//!
//! * The newcomer looked for the end at one instant and wrote its first record later. Whatever the old one wrote in between
//!   or after, also a late write of a dead one, lies in the gap: it is shorter than it must be. Where four blocks do not
//!   last, the old one runs into the newcomer's records, and its own lie behind their beginning.
//! * Both write one block within a tick: the one whose record is lost has a count missing, unless that was its last; then
//!   the other's record stands behind the beginning of a later run, where none of its may be.
//! * A run that was overwritten whole leaves nothing. That takes a newcomer that waits for four ticks before its first
//!   record and dies within the next; and whoever started it knows its number and misses it.
//!
//! The verdict is stricter than "never at the same time": also a write after the newcomer's look and before its first
//! own write fails it.

use std::fmt;

/// Blocks that a guest leaves free before its first record.
pub const GAP: usize = 4;
/// Each holds one record.
pub const BLOCK: usize = 4096;
const MAGIC: &[u8] = b"LHJ1";
/// The record fills its block by repetition.
const RECORD: usize = 32;

/// What one start of a domain wrote.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Run {
    /// The host's number.
    pub owner: u32,
    /// The epoch of the lease it started under.
    pub epoch: u32,
    /// The start's own number.
    pub run: u32,
    /// How many records it wrote.
    pub records: u32,
}

/// What shows that two wrote at the same time, and in which block.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TwoWriters {
    block: usize,
    run: u32,
    what: Evidence,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Evidence {
    Torn,
    BlocksTaken(u32),
    Gap(usize),
    Hole(usize),
    Count { found: u32, expected: u32 },
    OlderEpoch { found: u32, before: u32 },
    TwoOwners { epoch: u32 },
    CameBack,
}

impl fmt::Display for TwoWriters {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "block {}, run {}: ", self.block, self.run)?;
        match self.what {
            Evidence::Torn => write!(f, "half of it is another record"),
            Evidence::BlocksTaken(count) => write!(f, "it found {count} blocks taken by another writer"),
            Evidence::Gap(found) => write!(f, "{found} free blocks before its first record instead of {GAP}"),
            Evidence::Hole(found) => write!(f, "{found} free blocks amid its records"),
            Evidence::Count { found, expected } => write!(f, "record {found} where {expected} must be"),
            Evidence::OlderEpoch { found, before } => write!(f, "epoch {found} after epoch {before}"),
            Evidence::TwoOwners { epoch } => write!(f, "epoch {epoch} has two owners"),
            Evidence::CameBack => write!(f, "it wrote again after another one had begun"),
        }
    }
}

impl TwoWriters {
    /// Whether it is a block that is half one record and half another.
    pub fn is_torn(&self) -> bool {
        self.what == Evidence::Torn
    }
}

/// All runs in the order of the disk.
///
/// # Errors
/// The first thing that shows two writers at the same time.
pub fn runs(disk: &[u8]) -> Result<Vec<Run>, TwoWriters> {
    let mut runs: Vec<Run> = Vec::new();
    let mut end = 0;
    for (block, bytes) in disk.chunks_exact(BLOCK).enumerate() {
        if bytes.iter().all(|&byte| byte == 0) {
            continue;
        }
        let word = |index: usize| u32::from_le_bytes(bytes[4 * index..4 * index + 4].try_into().expect("four bytes"));
        let [owner, epoch, run, count, taken] = [1, 2, 3, 4, 5].map(word);
        let shows = |what| TwoWriters { block, run, what };
        if !bytes.starts_with(MAGIC) || bytes.chunks_exact(RECORD).any(|part| part != &bytes[..RECORD]) {
            return Err(shows(Evidence::Torn));
        }
        if taken > 0 {
            return Err(shows(Evidence::BlocksTaken(taken)));
        }
        let free = block - end;
        end = block + 1;
        if let Some(last) = runs.last_mut().filter(|last| last.run == run) {
            match () {
                () if free > 0 => return Err(shows(Evidence::Hole(free))),
                () if count != last.records => {
                    return Err(shows(Evidence::Count { found: count, expected: last.records }));
                }
                () => last.records += 1,
            }
            continue;
        }
        if runs.iter().any(|earlier| earlier.run == run) {
            return Err(shows(Evidence::CameBack));
        }
        if free != GAP {
            return Err(shows(Evidence::Gap(free)));
        }
        if count != 0 {
            return Err(shows(Evidence::Count { found: count, expected: 0 }));
        }
        if let Some(last) = runs.last() {
            if epoch < last.epoch {
                return Err(shows(Evidence::OlderEpoch { found: epoch, before: last.epoch }));
            }
            if epoch == last.epoch && owner != last.owner {
                return Err(shows(Evidence::TwoOwners { epoch }));
            }
        }
        runs.push(Run { owner, epoch, run, records: 1 });
    }
    Ok(runs)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Appends records as the guest does: `(owner, epoch, run)`, its count, blocks found taken.
    struct Disk(Vec<u8>);

    impl Disk {
        fn put(&mut self, block: usize, who: (u32, u32, u32), count: u32, taken: u32) {
            let words = [u32::from_le_bytes(*b"LHJ1"), who.0, who.1, who.2, count, taken, 0, 0];
            let record: Vec<u8> = words.into_iter().flat_map(u32::to_le_bytes).collect();
            self.0.resize(self.0.len().max((block + 1) * BLOCK), 0);
            self.0[block * BLOCK..][..BLOCK].copy_from_slice(&record.repeat(BLOCK / RECORD));
        }

        /// Two runs, one after the other: blocks 4 to 8, and 13 to 17.
        fn handed_over() -> Disk {
            let mut disk = Disk(Vec::new());
            (0..5).for_each(|count| disk.put(4 + count, OLD, count as u32, 0));
            (0..5).for_each(|count| disk.put(13 + count, NEW, count as u32, 0));
            disk
        }

        fn evidence(&self) -> Evidence {
            runs(&self.0).expect_err("two wrote at once").what
        }
    }

    const OLD: (u32, u32, u32) = (1, 4, 100);
    const NEW: (u32, u32, u32) = (2, 5, 101);

    #[test]
    fn runs_that_follow_each_other_are_no_overlap() {
        let expected = [OLD, NEW].map(|(owner, epoch, run)| Run { owner, epoch, run, records: 5 });
        assert_eq!(runs(&Disk::handed_over().0), Ok(expected.to_vec()));
        assert_eq!(runs(&[]), Ok(vec![]));
    }

    #[test]
    fn one_write_of_the_old_one_after_the_newcomers_look_shows_in_the_gap() {
        let mut disk = Disk::handed_over();
        disk.put(9, OLD, 5, 0);
        assert_eq!(disk.evidence(), Evidence::Gap(3));
    }

    #[test]
    fn an_old_one_that_runs_into_the_newcomers_records_says_so() {
        let mut disk = Disk::handed_over();
        disk.put(18, OLD, 9, 5);
        assert_eq!(disk.evidence(), Evidence::BlocksTaken(5));
    }

    #[test]
    fn a_record_that_the_other_has_overwritten_is_missing() {
        let mut disk = Disk::handed_over();
        disk.put(15, OLD, 6, 0);
        assert_eq!(disk.evidence(), Evidence::CameBack);
        let mut disk = Disk::handed_over();
        disk.put(6, NEW, 2, 0);
        assert!(runs(&disk.0).is_err());
    }

    #[test]
    fn a_lost_record_and_a_lost_first_record_show_in_the_counts() {
        let mut disk = Disk::handed_over();
        disk.put(16, NEW, 4, 0);
        assert_eq!(disk.evidence(), Evidence::Count { found: 4, expected: 3 });
        let mut disk = Disk::handed_over();
        (0..5).for_each(|count| disk.put(13 + count, NEW, count as u32 + 1, 0));
        assert_eq!(disk.evidence(), Evidence::Count { found: 1, expected: 0 });
        let mut disk = Disk::handed_over();
        disk.put(19, NEW, 5, 0);
        assert_eq!(disk.evidence(), Evidence::Hole(1));
    }

    #[test]
    fn an_older_epoch_and_an_epoch_of_two_owners_show_though_nobody_wrote_at_once() {
        let mut disk = Disk::handed_over();
        disk.put(22, (1, 4, 102), 0, 0);
        assert_eq!(disk.evidence(), Evidence::OlderEpoch { found: 4, before: 5 });
        let mut disk = Disk::handed_over();
        disk.put(22, (1, 5, 102), 0, 0);
        assert_eq!(disk.evidence(), Evidence::TwoOwners { epoch: 5 });
    }

    #[test]
    fn a_torn_block_shows() {
        let mut disk = Disk::handed_over();
        disk.0[15 * BLOCK + 300] ^= 1;
        assert_eq!(disk.evidence(), Evidence::Torn);
    }
}
