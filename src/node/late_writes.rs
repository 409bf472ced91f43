//! In which ways a living domain's writes could arrive after its death: for people, before it matters.

use super::descriptors::{self, Descriptor, Writable};
use super::domains::DomainProcess;
use super::mounts::{self, Mount};
use super::process::{Process, is_vanished};
use super::traces::{FileId, Traces};
use super::transport;
use crate::lease::late_write::{LateWrite, Way};
use nix::sys::stat::{major, minor};
use std::collections::BTreeSet;
use std::io;
use std::path::Path;

/// What of the domain's QEMU and of its helpers can be written after their death. `traces`: what was noted of them just now.
/// Asks no storage.
///
/// # Errors
/// An unreadable /proc.
pub fn of(domain: &DomainProcess, traces: &Traces) -> io::Result<BTreeSet<LateWrite>> {
    let mut found: BTreeSet<LateWrite> = traces
        .connections()
        .filter(|connection| !connection.is_local())
        .map(|connection| LateWrite { way: Way::Tcp, what: connection.to_string() })
        .collect();
    look(&domain.process, &mut found)?;
    for member in domain.cgroup.members()?.iter().filter(|member| member.pid > 0 && member.pid != domain.process.pid())
    {
        match Process::open(member.pid) {
            Err(error) if is_vanished(&error) => {}
            helper => look(&helper?, &mut found)?,
        }
    }
    Ok(found)
}

fn look(process: &Process, found: &mut BTreeSet<LateWrite>) -> io::Result<()> {
    let descriptors = descriptors::of(process)?;
    let rings = descriptors.iter().any(Descriptor::is_io_uring);
    let mounts = match mounts::of(process.pid()) {
        // It has ended.
        Err(error) if is_vanished(&error) || error.kind() == io::ErrorKind::InvalidInput => return Ok(()),
        mounts => mounts?,
    };
    for descriptor in descriptors.iter().filter(|descriptor| descriptor.target.is_absolute()) {
        match descriptor.writable() {
            Err(error) if is_vanished(&error) => {}
            Err(error) => return Err(error),
            Ok(None) => {}
            Ok(Some(file)) => ways(descriptor, &file, &mounts, rings, found),
        }
    }
    Ok(())
}

fn ways(descriptor: &Descriptor, file: &Writable, mounts: &[Mount], rings: bool, found: &mut BTreeSet<LateWrite>) {
    let path = descriptor.target.display();
    let mount = mounts.iter().find(|mount| Some(mount.id) == file.mount);
    let mut add = |way, what| found.extend([LateWrite { way, what }]);
    let device = match file.id {
        FileId::BlockDevice(number) => format!("{}:{}", major(number), minor(number)),
        // Memory of the guest, a pid file: no storage. memfd's mount is in no table.
        FileId::File { .. } if mount.is_none_or(Mount::is_memory) => return,
        FileId::File { .. } => mount.map(|mount| mount.device.clone()).unwrap_or_default(),
    };
    if !file.direct {
        add(Way::PageCache, path.to_string());
    } else if rings {
        add(if file.locked.is_some() { Way::IoUring } else { Way::IoUringUnseen }, path.to_string());
    }
    if let Some(client) = transport::network_client(Path::new("/sys"), &device) {
        add(Way::KernelBlockClient, format!("{path}: {client}"));
    }
    // A device's node is on a file system too, and says nothing.
    if let (FileId::File { .. }, Some(mount)) = (file.id, mount) {
        if mount.is_network() {
            add(Way::NetworkFileSystem, format!("{path}: {}", mount.kind));
        } else if mount.is_fuse() {
            add(Way::FileServer, format!("{path}: {}", mount.kind));
        }
    }
}
