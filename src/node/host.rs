#![allow(missing_docs)]
use crate::lease::id::*; use crate::protocol::Machine;
pub fn boot_id() -> std::io::Result<BootId> { std::fs::read_to_string("/proc/sys/kernel/random/boot_id")?.parse().map_err(std::io::Error::other) }
pub fn incarnation() -> Incarnation { std::fs::read_to_string("/proc/sys/kernel/random/uuid").unwrap().parse().unwrap() }
pub fn machine(_: &std::path::Path) -> std::io::Result<Machine> { Ok(Machine{hardware: String::new(), key: "k".into()}) }
