//! Somebody else's hook beside ours, slow on purpose.

use super::{Host, wait_until};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

/// Whether libvirt runs the neighbour before our hook or after it: it runs all of qemu.d in the order of strcmp.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Place {
    BeforeOurs,
    AfterOurs,
}

/// A hook that holds one operation open until it is let go. It is taken out when dropped.
pub struct Neighbour {
    hook: PathBuf,
    held: PathBuf,
    go: PathBuf,
}

impl Neighbour {
    /// In force at once: libvirt looks into qemu.d at every call.
    pub fn holding(host: &Host, place: Place, operation: &str) -> Neighbour {
        use std::os::unix::fs::PermissionsExt;
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let file = |name: &str| host.home().join(format!("neighbour-{number}-{name}"));
        let name = if place == Place::BeforeOurs { "00-neighbour" } else { "zz-neighbour" };
        let neighbour =
            Neighbour { hook: host.home().join("etc/hooks/qemu.d").join(name), held: file("held"), go: file("go") };
        let quoted = |path: &Path| format!("'{}'", path.display());
        let body = format!(
            "#!/bin/sh\n[ \"$2\" = {operation} ] || exit 0\ntouch {}\nwhile [ ! -e {} ]; do sleep 0.01; done\n",
            quoted(&neighbour.held),
            quoted(&neighbour.go)
        );
        // Written elsewhere and moved in: libvirt never executes half a script.
        let written = file("script");
        std::fs::write(&written, body).expect("the host's directory is writable");
        std::fs::set_permissions(&written, std::fs::Permissions::from_mode(0o755)).expect("it is ours");
        std::fs::rename(&written, &neighbour.hook).expect("the hooks' directory is writable");
        neighbour
    }

    /// Waits until libvirt is held.
    #[track_caller]
    pub fn wait_until_held(&self) {
        wait_until("libvirt was held by the neighbour's hook", Duration::from_secs(15), || self.held.exists());
    }

    /// Holds nothing any more.
    pub fn let_go(&self) {
        std::fs::write(&self.go, "").expect("the host's directory is writable");
    }
}

impl Drop for Neighbour {
    fn drop(&mut self) {
        self.let_go();
        // Nothing is lost when it has gone with its host.
        let _ = std::fs::remove_file(&self.hook);
    }
}
