//! The bearer token of this node: in a file of its own, so that the configuration can be shown to anybody.

use super::ConfigError;
use std::fs::File;
use std::io::Read;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// The longest token read, in bytes.
const MOST: u64 = 4096;

/// Reads a token: one line of printable ASCII, at most 4096 bytes, in a file that only its owner may read (mode 0600,
/// or 0400).
///
/// # Errors
/// Finished sentences: unreadable, empty, too long, no such text, or readable by others.
pub fn read_token(path: &Path) -> Result<String, ConfigError> {
    let shown = path.display();
    let fail = |sentence: String| Err(ConfigError::whole(sentence));
    let mut text = Vec::new();
    let read = File::open(path).and_then(|file| {
        let mode = file.metadata()?.mode();
        file.take(MOST + 1).read_to_end(&mut text)?;
        Ok(mode)
    });
    let mode = match read {
        Ok(mode) => mode,
        Err(cause) => return fail(format!("cannot read the token in {shown}: {cause}; write this node's token there")),
    };
    if mode & 0o077 != 0 {
        return fail(format!(
            "the token in {shown} can be read by others (mode {:04o}); chmod 600 {shown}",
            mode & 0o7777
        ));
    }
    let token = std::str::from_utf8(&text).unwrap_or("").trim();
    let good = !token.is_empty() && text.len() as u64 <= MOST && token.bytes().all(|byte| byte.is_ascii_graphic());
    if !good {
        return fail(format!("{shown} holds no token: one line of 1 to {MOST} printable characters without spaces"));
    }
    Ok(token.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::Permissions;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn a_token_is_one_line_that_only_its_owner_can_read() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("token");
        let put = |text: &[u8], mode| {
            std::fs::write(&path, text).unwrap();
            std::fs::set_permissions(&path, Permissions::from_mode(mode)).unwrap();
            read_token(&path).map_err(|error| error.to_string())
        };
        assert_eq!(put(b"abc123\n", 0o600).unwrap(), "abc123");
        assert!(put(b"abc123\n", 0o640).unwrap_err().contains("chmod 600"));
        for bad in [&b""[..], b"\n", b"two words", b"two\nlines", &[0xff, 0xfe], &[b'x'; 5000]] {
            assert!(put(bad, 0o600).unwrap_err().contains("holds no token"), "{bad:?}");
        }
        assert!(read_token(&dir.path().join("none")).unwrap_err().to_string().contains("cannot read the token"));
    }
}
