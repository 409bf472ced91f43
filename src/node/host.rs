//! Which boot of which machine this is.

use super::files::{Durability, read_bounded, write_atomically};
use crate::lease::id::{BootId, Incarnation};
use crate::protocol::Machine;
use ring::digest::{SHA256, digest};
use ring::rand::{SecureRandom, SystemRandom};
use serde::{Deserialize, Serialize};
use std::path::Path;
use std::{fs, io};

/// The name of the file that keeps the machine's secret, in the state directory.
pub const KEY_FILE: &str = "machine.key";
/// The hardware's uuid, as the firmware tells it (SMBIOS type 1).
const PRODUCT_UUID: &str = "/sys/class/dmi/id/product_uuid";

/// The present boot (random(4)).
///
/// # Errors
/// /proc cannot be read.
pub fn boot_id() -> io::Result<BootId> {
    let path = Path::new("/proc/sys/kernel/random/boot_id");
    let text = String::from_utf8_lossy(&read_bounded(path, 64)?).into_owned();
    text.parse().map_err(|error| io::Error::new(io::ErrorKind::InvalidData, format!("{}: {error}", path.display())))
}

/// A number for this process that no other has had.
///
/// # Panics
/// When the kernel gives no random bytes: nothing can be told apart then.
pub fn incarnation() -> Incarnation {
    let mut bytes: [u8; 16] = random();
    // A version 4 uuid (RFC 9562), so that it looks like what it is.
    bytes[6] = bytes[6] & 0x0f | 0x40;
    bytes[8] = bytes[8] & 0x3f | 0x80;
    Incarnation::from_bytes(bytes)
}

fn random<const N: usize>() -> [u8; N] {
    let mut bytes = [0; N];
    SystemRandom::new().fill(&mut bytes).expect("getrandom(2) gives random bytes");
    bytes
}

/// The host's name, if it has one.
pub fn host_name() -> Option<String> {
    let name = fs::read_to_string("/proc/sys/kernel/hostname").ok()?;
    let name = name.trim();
    (!name.is_empty() && name != "(none)").then(|| name.to_owned())
}

/// The machine's secret, and the hardware it was made on.
#[derive(Serialize, Deserialize)]
struct KeyFile {
    hardware: String,
    secret: String,
}

/// Which machine this is: its hardware's uuid and the name of a random key kept in `state_dir`. The key is made when it is
/// missed, and made again on other hardware: a cloned image is another machine.
///
/// # Errors
/// The key cannot be read, understood or written; the message says what to do. Writing syncs the disk and may block.
pub fn machine(state_dir: &Path) -> io::Result<Machine> {
    machine_on(hardware()?, state_dir)
}

/// The hardware's uuid as the firmware tells it; empty when it tells none.
///
/// # Errors
/// It is there and cannot be read: that takes root.
pub fn hardware() -> io::Result<String> {
    match read_bounded(Path::new(PRODUCT_UUID), 256) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(String::new()),
        uuid => Ok(String::from_utf8_lossy(&uuid?).trim().to_owned()),
    }
}

fn machine_on(hardware: String, state_dir: &Path) -> io::Result<Machine> {
    let path = state_dir.join(KEY_FILE);
    let kept = match read_bounded(&path, 4096) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => None,
        bytes => Some(understood(&bytes?, &path)?),
    };
    let secret = match kept {
        Some(kept) if kept.hardware == hardware => kept.secret,
        _ => {
            let made = KeyFile { hardware: hardware.clone(), secret: hex(&random::<32>()) };
            fs::create_dir_all(state_dir)?;
            let text = serde_json::to_string(&made).map_err(io::Error::other)?;
            write_atomically(&path, text.as_bytes(), 0o600, Durability::Disk)?;
            made.secret
        }
    };
    Ok(Machine { hardware, key: hex(digest(&SHA256, secret.as_bytes()).as_ref()) })
}

fn understood(bytes: &[u8], path: &Path) -> io::Result<KeyFile> {
    match serde_json::from_slice::<KeyFile>(bytes) {
        Ok(kept) if kept.secret.len() == 64 => Ok(kept),
        _ => Err(io::Error::new(
            io::ErrorKind::InvalidData,
            format!(
                "{} is damaged; remove it to have a new one made (the authority then takes this for another machine, and waits its bound)",
                path.display()
            ),
        )),
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn a_machine_keeps_its_key_and_a_clone_gets_its_own() {
        let dir = tempfile::tempdir().unwrap();
        let first = machine_on("uuid-1".into(), dir.path()).unwrap();
        assert_eq!(machine_on("uuid-1".into(), dir.path()).unwrap(), first, "after a restart");
        let clone = machine_on("uuid-2".into(), dir.path()).unwrap();
        assert_eq!(clone.hardware, "uuid-2");
        assert_ne!(clone.key, first.key);
        let mode = fs::metadata(dir.path().join(KEY_FILE)).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
    }

    #[test]
    fn the_key_told_is_not_the_secret_kept() {
        let dir = tempfile::tempdir().unwrap();
        let machine = machine_on(String::new(), dir.path()).unwrap();
        assert_eq!(machine.key.len(), 64);
        assert!(!fs::read_to_string(dir.path().join(KEY_FILE)).unwrap().contains(&machine.key));
    }

    #[test]
    fn a_damaged_key_is_told_and_not_replaced() {
        let dir = tempfile::tempdir().unwrap();
        for damaged in ["", "{}", r#"{"hardware":"","secret":"short"}"#] {
            fs::write(dir.path().join(KEY_FILE), damaged).unwrap();
            let error = machine_on(String::new(), dir.path()).unwrap_err().to_string();
            assert!(error.contains("machine.key is damaged; remove it"), "{error}");
        }
    }

    #[test]
    fn the_boot_is_one_and_each_incarnation_another() {
        assert_eq!(boot_id().unwrap(), boot_id().unwrap());
        assert_ne!(incarnation(), incarnation());
    }

    #[test]
    fn this_host_has_the_name_that_the_kernel_tells() {
        let output = std::process::Command::new("uname").arg("-n").output().unwrap();
        assert_eq!(host_name().as_deref(), Some(String::from_utf8_lossy(&output.stdout).trim()));
    }
}
