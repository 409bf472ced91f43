//! The names of things: domains, nodes, epochs, boots, questions, processes.

use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;
use uuid::Uuid;

/// What is wrong with a name that was given.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct BadId(String);

impl fmt::Display for BadId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for BadId {}

macro_rules! uuid_newtype {
    ($(#[$doc:meta])* $name:ident, $what:literal) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        #[serde(transparent)]
        pub struct $name(Uuid);

        impl $name {
            /// From its 16 bytes.
            pub const fn from_bytes(bytes: [u8; 16]) -> Self {
                $name(Uuid::from_bytes(bytes))
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.hyphenated().fmt(f)
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.hyphenated().fmt(f)
            }
        }

        impl FromStr for $name {
            type Err = BadId;
            fn from_str(text: &str) -> Result<Self, BadId> {
                Uuid::try_parse(text.trim()).map($name).map_err(|_| BadId(format!(concat!("'{}' is not ", $what), text.escape_debug())))
            }
        }
    };
}

uuid_newtype!(
    /// A libvirt domain, named by its UUID: names change and get reused.
    DomainId, "a domain's uuid"
);
uuid_newtype!(
    /// One boot of one kernel: /proc/sys/kernel/random/boot_id (random(4)).
    BootId, "a boot id"
);
uuid_newtype!(
    /// One process of a guard, or of an authority: a random number made when it starts.
    Incarnation, "an incarnation id"
);

/// A KVM host. One to 64 characters of `[A-Za-z0-9._-]`, so that it can stand in a URL, a file name and a log line.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct NodeId(String);

impl NodeId {
    /// The id as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for NodeId {
    type Err = BadId;
    fn from_str(text: &str) -> Result<Self, BadId> {
        let good = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-');
        if text.is_empty() || text.len() > 64 || !text.chars().all(good) || text.starts_with('.') {
            return Err(BadId(format!(
                "'{}' is not a node id: 1 to 64 letters, digits, '.', '_' or '-', not beginning with '.'",
                text.escape_debug()
            )));
        }
        Ok(NodeId(text.to_owned()))
    }
}

impl TryFrom<String> for NodeId {
    type Error = BadId;
    fn try_from(text: String) -> Result<Self, BadId> {
        text.parse()
    }
}

impl From<NodeId> for String {
    fn from(id: NodeId) -> String {
        id.0
    }
}

impl fmt::Display for NodeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for NodeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// The fencing token: grows with every change of a domain's owner. An authority draws it from one counter for all
/// domains, so the newest number issued seals every claim there ever was.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Epoch(pub u64);

impl fmt::Display for Epoch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// The number of a question, counted by one incarnation of a guard from 1.
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
#[serde(transparent)]
pub struct QuestionNumber(pub u64);

impl fmt::Display for QuestionNumber {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// One process, immune to reused pids: the pid and its start time in clock ticks since boot
/// (`starttime`, field 22 of /proc/PID/stat, proc_pid_stat(5)).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub struct ProcessKey {
    /// The process id in the guard's pid namespace.
    pub pid: i32,
    /// Start time in clock ticks (USER_HZ, 100 per second on Linux) since boot.
    pub started: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_id_is_safe_in_a_url_and_a_file_name() {
        for good in ["n1", "host-3.example.org", "A_b"] {
            assert_eq!(good.parse::<NodeId>().unwrap().as_str(), good);
        }
        for bad in ["", "a/b", "a b", "..", ".hidden", "ü", &"x".repeat(65)] {
            assert!(bad.parse::<NodeId>().is_err(), "{bad}");
        }
    }

    #[test]
    fn a_domain_id_reads_as_libvirt_prints_it() {
        let text = "fc3be091-56d3-4c69-8adb-2fdb8b0a35d2";
        assert_eq!(text.parse::<DomainId>().unwrap().to_string(), text);
        assert!("web-1".parse::<DomainId>().is_err());
    }
}
