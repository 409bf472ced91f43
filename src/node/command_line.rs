//! What a QEMU's arguments say: is it one of libvirt's, and which domain.

use super::process::{is_vanished, tasks_of};
use crate::lease::id::DomainId;
use std::fs::File;
use std::io::{self, Read};

/// The most of a command line that is read, in bytes. libvirt's have 2 to 50 KiB, with the name first and the uuid soon after.
const MAX_BYTES: u64 = 1 << 20;

/// A domain as a QEMU's arguments name it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NamedByArguments {
    /// The first `-uuid`. Later ones come from a `<qemu:commandline>` and are not libvirt's word.
    pub domain: DomainId,
    /// `-name guest=`, with doubled commas undone.
    pub name: String,
}

/// What the command line of a libvirt QEMU says; `None` for everything else.
///
/// Libvirt's are told by `-name guest=NAME` and a `-uuid` that is one, both of which libvirt always gives
/// (qemu_command.c), and by one of `-S` and `-no-user-config`. A copy of a domain's command line run by hand has the domain's disks and counts; a QEMU that a person or another manager wrote the arguments
/// of (no `guest=`, Proxmox's `-smbios uuid=`) does not.
pub fn parse(command_line: &[u8]) -> Option<NamedByArguments> {
    let mut arguments = command_line.split(|&byte| byte == 0).skip(1);
    let (mut domain, mut name, mut libvirts_own) = (None, None, false);
    while let Some(argument) = arguments.next() {
        match argument {
            b"-uuid" if domain.is_none() => domain = Some(std::str::from_utf8(arguments.next()?).ok()?.parse().ok()?),
            b"-name" if name.is_none() => name = Some(guest_name(arguments.next()?)?),
            b"-S" | b"-no-user-config" => libvirts_own = true,
            _ => {}
        }
    }
    libvirts_own.then_some(NamedByArguments { domain: domain?, name: name? })
}

/// `guest=NAME[,option...]`, where a comma of the name is doubled (QEMU's option syntax).
fn guest_name(value: &[u8]) -> Option<String> {
    let mut rest = value.strip_prefix(b"guest=")?.iter().copied().peekable();
    let mut name = Vec::new();
    while let Some(byte) = rest.next() {
        if byte == b',' && rest.next_if_eq(&b',').is_none() {
            break;
        }
        name.push(byte);
    }
    Some(String::from_utf8_lossy(&name).into_owned())
}

/// The command line of a process, or of a thread of it that still lives when the leader is dead: a QEMU with one thread
/// in state D loses its own command line at SIGKILL, the thread's stays. Empty for kernel threads and the dead.
///
/// # Errors
/// An unreadable /proc. A process that vanished is an empty command line.
pub(super) fn read(pid: i32) -> io::Result<Vec<u8>> {
    let own = read_file(&format!("/proc/{pid}/cmdline"))?;
    if !own.is_empty() {
        return Ok(own);
    }
    let tasks = match tasks_of(pid) {
        Err(error) if is_vanished(&error) => return Ok(Vec::new()),
        tasks => tasks?,
    };
    for tid in tasks {
        let of_thread = read_file(&format!("/proc/{pid}/task/{tid}/cmdline"))?;
        if !of_thread.is_empty() {
            return Ok(of_thread);
        }
    }
    Ok(Vec::new())
}

fn read_file(path: &str) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    match File::open(path).and_then(|file| file.take(MAX_BYTES).read_to_end(&mut bytes)) {
        Err(error) if !is_vanished(&error) => Err(error),
        _ => Ok(bytes),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const UUID: &str = "fc3be091-56d3-4c69-8adb-2fdb8b0a35d2";

    fn parsed(arguments: &[&str]) -> Option<String> {
        let line = arguments.iter().flat_map(|argument| [argument.as_bytes(), b"\0"].concat()).collect::<Vec<_>>();
        parse(&line).map(|named| format!("{} {}", named.domain, named.name))
    }

    #[test]
    fn libvirts_arguments_name_the_domain_whatever_its_name_holds() {
        for (option, name) in [
            ("guest=web-1,debug-threads=on", "web-1"),
            ("guest=a,,b & 'q',debug-threads=on", "a,b & 'q'"),
            ("guest=,,,,", ",,"),
            ("guest=-uuid,process=qemu:-uuid", "-uuid"),
            ("guest=tab\tand\nnewline", "tab\tand\nnewline"),
            ("guest=ü", "ü"),
        ] {
            let named = parsed(&["/usr/libexec/qemu-kvm", "-name", option, "-S", "-uuid", UUID]);
            assert_eq!(named, Some(format!("{UUID} {name}")));
        }
    }

    #[test]
    fn the_first_uuid_and_the_first_name_are_libvirts() {
        let other = "00000000-0000-0000-0000-000000000001";
        let line = ["q", "-name", "guest=a", "-no-user-config", "-uuid", UUID, "-uuid", other, "-name", "guest=b"];
        assert_eq!(parsed(&line), Some(format!("{UUID} a")));
    }

    #[test]
    fn a_qemu_that_is_not_libvirts_is_not_a_domain() {
        for line in [
            &["qemu-system-x86_64", "-hda", "disk.img"][..],
            &["q", "-name", "mine", "-uuid", UUID, "-S"],
            &["q", "-name", "guest=mine", "-S"],
            &["q", "-name", "guest=mine", "-uuid", "mine", "-S"],
            &["q", "-name", "guest=mine", "-uuid", UUID],
            &["q", "-S", "-name", "guest=mine", "-uuid"],
            &["-uuid", UUID],
            &[],
        ] {
            assert_eq!(parsed(line), None, "{line:?}");
        }
    }
}
