#!/bin/bash
# One libvirt "host" in its own mount, UTS, PID and network namespaces, so that several real
# libvirtd + QEMU hosts run side by side on one machine, without KVM, and can even run
# the same domain UUID at once (which is what a double-run test has to be able to see).
#
#   libvirt-node.sh NAME WORKDIR -- COMMAND [ARG ...]
#
# Runs COMMAND inside the host, with virtlogd and libvirtd started and /etc/libvirt,
# /var/lib/libvirt, /var/log/libvirt and /run private to it; stops them when COMMAND ends.
# WORKDIR is shared by all hosts (put the "shared storage" there). The network namespace has only
# its own loopback: add a veth pair from outside to connect or cut it (ip link ... netns PID).
#
# Needs root and the Debian packages libvirt-daemon-system libvirt-clients libvirt-daemon-driver-qemu
# qemu-system-x86 (apt-get install --no-install-recommends).
# Domains: <domain type='qemu'>, memory 32 MiB, start in about 0.3 s each.
set -euo pipefail
if [[ ${1:-} != --inside ]]; then
  [[ $# -ge 4 && $3 == -- ]] || { sed -n '2,17p' "$0"; exit 2; }
  # A cgroup of its own in every hierarchy, and a cgroup namespace on it: two hosts would otherwise share
  # /machine/qemu-1-NAME, and killing one's domain by cgroup would kill the other's.
  for hierarchy in /sys/fs/cgroup/*/ /sys/fs/cgroup/; do
    [[ -e $hierarchy/cgroup.procs ]] || continue
    # libvirt's v2 back end wants at least one controller below the root.
    if [[ -e $hierarchy/cgroup.subtree_control ]]; then
      for controller in $(cat "$hierarchy/cgroup.controllers"); do echo "+$controller" >"$hierarchy/cgroup.subtree_control" || true; done
    fi
    mkdir -p "$hierarchy/host-$1"
    if [[ -e $hierarchy/cpuset.cpus ]]; then
      cat "$hierarchy/cpuset.cpus" >"$hierarchy/host-$1/cpuset.cpus"; cat "$hierarchy/cpuset.mems" >"$hierarchy/host-$1/cpuset.mems"
    fi
    echo $$ >"$hierarchy/host-$1/cgroup.procs"
  done
  exec unshare --mount --uts --net --pid --cgroup --fork --mount-proc bash "$0" --inside "$@"
fi
shift
name=$1 work=$2
shift 3
home=$work/hosts/$name
mkdir -p "$home"/{etc,lib,log}
[[ -e $home/etc/qemu.conf ]] || { cp -a /etc/libvirt/. "$home/etc/"; rm -rf "$home"/etc/qemu/*.xml "$home"/etc/hooks; }
mkdir -p "$home/etc/hooks/qemu.d"
# Live migration refuses two hosts of one uuid, and both would read the machine's own.
grep -q "^host_uuid" "$home/etc/libvirtd.conf" || echo "host_uuid = \"$(cat /proc/sys/kernel/random/uuid)\"" >>"$home/etc/libvirtd.conf"
# CGROUP=v2 (default): one unified tree, as on current distributions; CGROUP=hybrid: the machine's own v1 + v2 mix.
case ${CGROUP:-v2} in
  v2) umount -l /sys/fs/cgroup; mount -t cgroup2 cgroup2 /sys/fs/cgroup ;;
  hybrid)
    for hierarchy in /sys/fs/cgroup/*/; do
      kind=$(basename "$hierarchy")
      umount "$hierarchy"
      case $kind in
        unified) mount -t cgroup2 cgroup2 "$hierarchy" ;;
        systemd) mount -t cgroup -o none,name=systemd cgroup "$hierarchy" ;;
        *) mount -t cgroup -o "$kind" cgroup "$hierarchy" ;;
      esac
    done ;;
esac
mount -t tmpfs run /run
# With a /dev/kvm that root can open and QEMU's user cannot, libvirt distrusts its cache of what QEMU can do and
# probes again, for 8 to 16 seconds, at every start.
if [[ -c /dev/kvm ]]; then mknod -m 666 /run/kvm c 10 232 && mount --bind /run/kvm /dev/kvm; fi
mkdir -p /run/libvirt /run/lock
mount --bind "$home/etc" /etc/libvirt
mount --bind "$home/lib" /var/lib/libvirt
mount --bind "$home/log" /var/log/libvirt
hostname "$name"
ip link set lo up
# libvirtd looks for hook scripts when it starts: put yours in place before, or restart it.
rm -f /etc/libvirt/hooks/qemu.d/leasehold
[[ -z ${HOOK:-} ]] || ln -s "$HOOK" /etc/libvirt/hooks/qemu.d/leasehold
virtlogd -d
libvirtd -d
for _ in $(seq 100); do virsh -q list >/dev/null 2>&1 && break; sleep 0.1; done
code=0
"$@" || code=$?
for f in /run/libvirtd.pid /run/virtlogd.pid; do [[ -e $f ]] && kill "$(cat $f)" 2>/dev/null || true; done
exit $code
