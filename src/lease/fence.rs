//! The fence record: what led to the end of a domain here, or of this whole host, mark by mark. It is for people, after
//! the fact; nothing is decided by it.

use super::id::{BootId, DomainId, Epoch, Incarnation, NodeId};
use super::time::BootTime;
use serde::{Deserialize, Serialize};

/// The format of a line.
pub const VERSION: u32 = 1;
/// The most domains that one mark lists.
pub const MOST_LISTED: usize = 200;

/// One line of the record: a mark, and where and when it was made. The JSON is stable: keys are only added.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Line {
    /// The format of the line.
    pub version: u32,
    /// This node.
    pub node: NodeId,
    /// The boot that its instants belong to.
    pub boot_id: BootId,
    /// The guard process.
    pub incarnation: Incarnation,
    /// The wall clock (RFC 3339), for people.
    pub wall: String,
    /// Marks that were lost before this one: the disk was slower than they came.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub lost_marks: u64,
    /// What happened.
    #[serde(flatten)]
    pub mark: Mark,
}

/// Something that led to the end of a domain, or of this host. Instants are milliseconds of CLOCK_BOOTTIME.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Mark {
    /// When.
    #[serde(rename = "at_ms", with = "millis")]
    pub at: BootTime,
    /// What.
    pub event: What,
    /// When the question was sent whose answer was the last; none: none was answered in this boot.
    #[serde(rename = "last_answer_ms", default, with = "some_millis", skip_serializing_if = "Option::is_none")]
    pub last_answer: Option<BootTime>,
    /// The domains it is about, [`MOST_LISTED`] at most.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub domains: Vec<Victim>,
    /// How many more it is about.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub more: u64,
    /// The watchdog, where it is about that.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub watchdog: Option<Unfed>,
}

/// What happened.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum What {
    /// Half of the ttl went by without an answer, and these run here.
    Silence,
    /// Processes must die: libvirt is asked first.
    Condemned,
    /// SIGKILL was ordered.
    Killed,
    /// Processes lived on after it for so long that they are not going to end in time.
    GivenUp,
    /// Condemned processes are proven gone.
    Gone,
    /// The watchdog is fed no more.
    LastFeed,
    /// It is fed again: no reset comes of it.
    FedAgain,
    /// It is stopped, with the proof that nothing is left to protect: no reset comes of it.
    Stopped,
}

/// A domain that something happened to.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Victim {
    /// The domain.
    pub domain: DomainId,
    /// Its name.
    pub name: String,
    /// Its process.
    pub pid: i32,
    /// The epoch it started under; none: it was found running.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub epoch: Option<Epoch>,
    /// Why, of few.
    pub cause: Cause,
    /// Why, as a clause.
    pub why: String,
    /// When its right to live ends.
    #[serde(rename = "expires_ms", with = "millis")]
    pub expires: BootTime,
    /// What keeps it from being gone, for people.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub waits_for: Option<String>,
}

/// Why a process must die.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Cause {
    /// Its lease was not renewed in time.
    #[default]
    Lapsed,
    /// The authority denied it.
    Denied,
    /// The authority gave it here under a newer epoch.
    Stale,
    /// It was found running, and nobody allowed it.
    Unleased,
}

/// A watchdog that is fed no more.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Unfed {
    /// Its device file and identity.
    pub device: String,
    /// Its timeout in seconds.
    pub timeout_s: u32,
    /// What it is not fed for, as a clause.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub why: Option<String>,
    /// Its last feed.
    #[serde(rename = "fed_ms", with = "millis")]
    pub fed: BootTime,
    /// The host is reset by then, if nothing changes.
    #[serde(rename = "reset_by_ms", with = "millis")]
    pub reset_by: BootTime,
}

fn is_zero(count: &u64) -> bool {
    *count == 0
}

mod millis {
    use super::BootTime;
    use serde::{Deserialize, Deserializer, Serializer};

    pub fn serialize<S: Serializer>(at: &BootTime, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_u64(at.as_nanos() / 1_000_000)
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<BootTime, D::Error> {
        u64::deserialize(deserializer).map(|millis| BootTime::from_nanos(millis.saturating_mul(1_000_000)))
    }
}

mod some_millis {
    use super::{BootTime, millis};
    use serde::{Deserializer, Serializer};

    pub fn serialize<S: Serializer>(at: &Option<BootTime>, serializer: S) -> Result<S::Ok, S::Error> {
        millis::serialize(&at.unwrap_or(BootTime::ZERO), serializer)
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<BootTime>, D::Error> {
        millis::deserialize(deserializer).map(Some)
    }
}
