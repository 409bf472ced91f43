#!/bin/bash
# One libvirt "host" in its own mount, UTS, PID, cgroup and network namespaces, so that several real
# libvirtd + QEMU hosts run side by side on one machine, without KVM, and can even run
# the same domain UUID at once (which is what a double-run test has to be able to see).
#
#   libvirt-node.sh NAME WORKDIR -- COMMAND [ARG ...]
#
# Runs COMMAND inside the host, with virtlogd and libvirtd started and /etc/libvirt, /etc/leasehold,
# /var/lib/libvirt, /var/lib/leasehold, /var/log/libvirt and /run private to it; when COMMAND ends, or
# this script is killed, everything inside dies with it. WORKDIR is shared by all hosts (put the "shared
# storage" there). The network namespace has only its own loopback: add a veth pair from outside to
# connect or cut it (ip link ... netns PID).
#
# HOOK=PATH      links PATH as /etc/libvirt/hooks/qemu.d/leasehold-hook before libvirtd starts
# CGROUP=hybrid  keeps a v1 + v2 mix where the machine has one; CGROUP=v1 its v1 hierarchies alone; the default is one
#                unified v2 tree
#
# Needs root and the Debian packages libvirt-daemon-system libvirt-clients libvirt-daemon-driver-qemu
# qemu-system-x86 (apt-get install --no-install-recommends).
# Domains: <domain type='qemu'>, memory 32 MiB, start in about 0.3 s each.
set -euo pipefail
hierarchies() {
  # What a host that sees one v2 tree does not see is left alone: a v1 group would only take its real-time runtime away.
  local roots=(/sys/fs/cgroup/*/ /sys/fs/cgroup/)
  [[ ${CGROUP:-v2} != v2 ]] || roots=(/sys/fs/cgroup/unified/ /sys/fs/cgroup/)
  # A machine with one v2 tree has ordinary groups directly below; only hierarchies' roots are wanted.
  for hierarchy in "${roots[@]}"; do
    [[ -e $hierarchy/cgroup.procs ]] || continue
    [[ $hierarchy == /sys/fs/cgroup/ ]] || mountpoint -q "$hierarchy" || continue
    echo "${hierarchy%/}"
  done
}
case ${1:-} in
  --inside) ;;
  --leaf)
    # In a v2 tree no group may hold both processes and groups with controllers (cgroups(7), "no internal processes"),
    # and libvirt makes such groups below this host's root: so everything of the host goes into a leaf.
    for hierarchy in $(hierarchies); do
      [[ -e $hierarchy/cgroup.subtree_control ]] || continue
      mkdir -p "$hierarchy/host-$2/init"
      echo $$ >"$hierarchy/host-$2/init/cgroup.procs"
    done
    exec unshare --mount --uts --net --pid --fork --kill-child --mount-proc bash "$0" --inside "${@:2}" ;;
  *)
    [[ $# -ge 4 && $3 == -- ]] || { sed -n '2,22p' "$0"; exit 2; }
    # A cgroup of its own in every hierarchy, and a cgroup namespace on it: two hosts would otherwise share
    # /machine/qemu-1-NAME, and killing one's domain by cgroup would kill the other's.
    for hierarchy in $(hierarchies); do
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
    exec unshare --cgroup bash "$0" --leaf "$@" ;;
esac
shift
name=$1 work=$2
shift 3
home=$work/hosts/$name
mkdir -p "$home"/{etc,lib,log,leasehold,state}
[[ -e $home/etc/qemu.conf ]] || { cp -a /etc/libvirt/. "$home/etc/"; rm -rf "$home"/etc/qemu/*.xml "$home"/etc/qemu/networks "$home"/etc/hooks; }
mkdir -p "$home/etc/hooks/qemu.d"
# Live migration refuses two hosts of one uuid, and both would read the machine's own.
grep -q "^host_uuid" "$home/etc/libvirtd.conf" || echo "host_uuid = \"$(cat /proc/sys/kernel/random/uuid)\"" >>"$home/etc/libvirtd.conf"
# The other end of a migration reaches this libvirtd over the hosts' own network, which nobody else is in.
grep -q '^listen_tcp' "$home/etc/libvirtd.conf" || printf 'listen_tls = 0\nlisten_tcp = 1\nauth_tcp = "none"\n' >>"$home/etc/libvirtd.conf"
# Labels are the machine's, and its policy knows nothing of WORKDIR.
grep -q '^security_driver' "$home/etc/qemu.conf" || echo 'security_driver = "none"' >>"$home/etc/qemu.conf"
# QEMU as root: WORKDIR may be closed to others; and where only root may open /dev/kvm, a QEMU of another user makes
# libvirt probe it anew ten times at every start (6 s).
grep -q '^user' "$home/etc/qemu.conf" || printf 'user = "root"\ngroup = "root"\n' >>"$home/etc/qemu.conf"
# Root needs no disk to be its own, and the chown of a disk whose storage is away would hang libvirtd with it.
grep -q '^dynamic_ownership' "$home/etc/qemu.conf" || echo 'dynamic_ownership = 0' >>"$home/etc/qemu.conf"
case ${CGROUP:-v2} in
  v2) umount -l /sys/fs/cgroup; mount -t cgroup2 cgroup2 /sys/fs/cgroup ;;
  hybrid | v1)
    for hierarchy in /sys/fs/cgroup/*/; do
      kind=$(basename "$hierarchy")
      umount "$hierarchy"
      case $kind in
        unified) [[ $CGROUP == v1 ]] || mount -t cgroup2 cgroup2 "$hierarchy" ;;
        systemd) mount -t cgroup -o none,name=systemd cgroup "$hierarchy" ;;
        *) mount -t cgroup -o "$kind" cgroup "$hierarchy" ;;
      esac
    done ;;
esac
if [[ -e /sys/fs/cgroup/cgroup.subtree_control ]]; then
  for controller in $(cat /sys/fs/cgroup/cgroup.controllers); do echo "+$controller" >/sys/fs/cgroup/cgroup.subtree_control; done
fi
mount -t tmpfs -o mode=755 run /run
mkdir -p /run/libvirt /run/lock
mount --bind "$home/etc" /etc/libvirt
mount --bind "$home/lib" /var/lib/libvirt
mount --bind "$home/log" /var/log/libvirt
# The mount points have to exist; what is in them is this host's own.
mkdir -p /etc/leasehold /var/lib/leasehold
mount --bind "$home/leasehold" /etc/leasehold
mount --bind "$home/state" /var/lib/leasehold
# QEMU's start asks for this host's full name; without an answer here it waits for DNS servers that a namespace never
# reaches (6 s a start).
printf '127.0.0.1 localhost\n127.0.1.1 %s\n' "$name" >"$home/hosts"
mount --bind "$home/hosts" /etc/hosts
hostname "$name"
ip link set lo up
# libvirtd looks for hook scripts when it starts: put yours in place before, or reload it (SIGHUP).
[[ -z ${HOOK:-} ]] || ln -sf "$HOOK" /etc/libvirt/hooks/qemu.d/leasehold-hook
# AppArmor's profile goes by libvirtd's path, and lets it execute hooks from system folders only: a copy elsewhere is
# free to run a hook that was just built.
libvirtd=libvirtd
if [[ $(cat /sys/module/apparmor/parameters/enabled 2>/dev/null) == Y ]]; then
  libvirtd=$home/libvirtd
  [[ -e $libvirtd ]] || cp "$(command -v libvirtd)" "$libvirtd"
fi
echo "$libvirtd" >/run/libvirtd.path
virtlogd -d
"$libvirtd" -d --listen
for _ in $(seq 100); do virsh -q list >/dev/null 2>&1 && break; sleep 0.1; done
code=0
"$@" || code=$?
for f in /run/libvirtd.pid /run/virtlogd.pid; do [[ -e $f ]] && kill "$(cat $f)" 2>/dev/null || true; done
exit $code
