//! Where cgroups are: the mount table, and which part of a process's cgroup path libvirt made for its domain.

use serde::{Deserialize, Serialize};
use std::io;
use std::path::{Path, PathBuf};

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Kind {
    /// cgroup v2.
    Unified,
    /// A cgroup v1 hierarchy.
    Legacy,
}

/// Where the cgroup hierarchies are mounted, as this process sees them: right inside a cgroup namespace too.
#[derive(Debug, Clone)]
pub struct Mounts(Vec<Mount>);

#[derive(Debug, Clone)]
struct Mount {
    kind: Kind,
    root: String,
    point: PathBuf,
    options: String,
}

impl Mounts {
    /// Reads /proc/self/mountinfo.
    ///
    /// # Errors
    /// It cannot be read.
    pub fn read() -> io::Result<Mounts> {
        let text = super::files::read_bounded(Path::new("/proc/self/mountinfo"), 16 << 20)?;
        Ok(Mounts(String::from_utf8_lossy(&text).lines().filter_map(Mount::parse).collect()))
    }

    /// Where the unified hierarchy is mounted, if it is.
    pub(super) fn unified(&self) -> Option<&Path> {
        self.0.iter().find(|mount| mount.kind == Kind::Unified).map(|mount| mount.point.as_path())
    }
}

impl Mount {
    /// proc_pid_mountinfo(5): `ID PARENT MAJ:MIN ROOT POINT OPTIONS [TAG...] - TYPE SOURCE SUPER-OPTIONS`.
    fn parse(line: &str) -> Option<Mount> {
        let (mount, filesystem) = line.split_once(" - ")?;
        let mut filesystem = filesystem.split(' ');
        let kind = match filesystem.next()? {
            "cgroup2" => Kind::Unified,
            "cgroup" => Kind::Legacy,
            _ => return None,
        };
        let options = filesystem.nth(1)?.to_owned();
        let mut mount = mount.split(' ').skip(3);
        let (root, point) = (unescape(mount.next()?), unescape(mount.next()?));
        Some(Mount { kind, root, point: point.into(), options })
    }
}

/// Space, tab, newline and backslash stand in mountinfo as `\` and three octal digits.
pub(super) fn unescape(text: &str) -> String {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((&byte, behind)) = rest.split_first() {
        let octal = rest.get(1..4).filter(|_| byte == b'\\').and_then(|digits| std::str::from_utf8(digits).ok());
        match octal.and_then(|digits| u8::from_str_radix(digits, 8).ok()) {
            Some(escaped) => {
                bytes.push(escaped);
                rest = &rest[4..];
            }
            None => {
                bytes.push(byte);
                rest = behind;
            }
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

/// A line of /proc/PID/cgroup: `ID:CONTROLLERS:PATH`, with no controllers for cgroup v2.
pub(super) fn hierarchies(text: &str) -> impl Iterator<Item = (&str, &str)> {
    text.lines().filter_map(|line| line.split_once(':')?.1.split_once(':'))
}

/// The part of a process's cgroup path that is the domain's own: up to the component that libvirt made for the domain.
/// That is `machine-qemu\x2dID\x2dNAME.scope` under systemd and `qemu-ID-NAME.libvirt-qemu` without; below it libvirt has its own
/// `libvirt`, `emulator`, `vcpuN`. The innermost one: a host may itself be a domain's guest in a container.
pub(super) fn domains_own(path: &str) -> Option<&str> {
    let libvirts = |component: &str| {
        (component.starts_with(r"machine-qemu\x2d") && component.ends_with(".scope"))
            || component.ends_with(".libvirt-qemu")
    };
    let mut end = path.len();
    loop {
        let start = path[..end].rfind('/')?;
        if libvirts(&path[start + 1..end]) {
            return Some(&path[..end]);
        }
        end = start;
    }
}

impl Mount {
    fn is_of(&self, controllers: &str) -> bool {
        match controllers.split(',').next() {
            None | Some("") => self.kind == Kind::Unified,
            Some(first) => self.kind == Kind::Legacy && self.options.split(',').any(|option| option == first),
        }
    }
}

impl Mounts {
    /// Whether the hierarchy with these controllers (none: cgroup v2) is mounted anywhere.
    pub(super) fn has(&self, controllers: &str) -> bool {
        self.0.iter().any(|mount| mount.is_of(controllers))
    }

    /// The directory of a cgroup path. A mount shows only what is below its root.
    pub(super) fn directory(&self, controllers: &str, path: &str) -> Option<PathBuf> {
        self.0.iter().filter(|mount| mount.is_of(controllers)).find_map(|mount| {
            let below = if mount.root == "/" { path } else { path.strip_prefix(&mount.root)? };
            let below = below.strip_prefix('/')?;
            (!below.split('/').any(|component| component == "..")).then(|| mount.point.join(below))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_domains_own_cgroup_is_the_component_that_libvirt_made() {
        for (path, own) in [
            (
                r"/machine.slice/machine-qemu\x2d3\x2dweb.scope/libvirt/vcpu0",
                r"/machine.slice/machine-qemu\x2d3\x2dweb.scope",
            ),
            (r"/machine.slice/machine-qemu\x2d3\x2dweb.scope", r"/machine.slice/machine-qemu\x2d3\x2dweb.scope"),
            ("/machine/qemu-1-abq.libvirt-qemu/emulator", "/machine/qemu-1-abq.libvirt-qemu"),
            ("/gold.partition/qemu-1-a.libvirt-qemu", "/gold.partition/qemu-1-a.libvirt-qemu"),
            (
                "/qemu-1-a.libvirt-qemu/kubepods/qemu-7-b.libvirt-qemu/x",
                "/qemu-1-a.libvirt-qemu/kubepods/qemu-7-b.libvirt-qemu",
            ),
        ] {
            assert_eq!(domains_own(path), Some(own), "{path}");
        }
        for daemons in [
            "/",
            "/system.slice/libvirtd.service",
            "/machine.slice",
            "/machine-qemu.slice",
            "",
            r"/machine-lxc\x2d1.scope",
        ] {
            assert_eq!(domains_own(daemons), None, "{daemons}");
        }
    }

    fn mounts(lines: &[&str]) -> Mounts {
        Mounts(lines.iter().filter_map(|line| Mount::parse(line)).collect())
    }

    #[test]
    fn a_path_is_found_below_the_mount_that_shows_it() {
        let hybrid = mounts(&[
            "31 23 0:28 / /sys/fs/cgroup rw,relatime - tmpfs tmpfs rw,mode=755",
            r"32 31 0:29 / /sys/fs/a\040b/cpu rw shared:9 - cgroup cgroup rw,cpu,cpuacct",
            "40 31 0:37 / /sys/fs/cgroup/systemd rw - cgroup cgroup rw,name=systemd",
            "41 31 0:38 /host-1 /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw,nsdelegate",
        ]);
        assert_eq!(hybrid.directory("cpu,cpuacct", "/m/q"), Some("/sys/fs/a b/cpu/m/q".into()));
        assert_eq!(hybrid.directory("name=systemd", "/m"), Some("/sys/fs/cgroup/systemd/m".into()));
        assert_eq!(hybrid.directory("", "/host-1/m"), Some("/sys/fs/cgroup/unified/m".into()));
        for (controllers, path) in [("", "/host-11/m"), ("", "/m"), ("memory", "/m"), ("cpu", "/../m")] {
            assert_eq!(hybrid.directory(controllers, path), None, "{controllers} {path}");
        }
        assert!(hybrid.has("") && !hybrid.has("memory"));
    }

    #[test]
    fn each_line_names_a_hierarchy_and_a_path_that_may_hold_colons() {
        let text = "4:memory:/a:b\n0::/c\nrubbish\n";
        assert_eq!(hierarchies(text).collect::<Vec<_>>(), [("memory", "/a:b"), ("", "/c")]);
    }
}
