#!/bin/bash
# One libvirt "host" in its own mount, UTS, PID, cgroup and network namespaces, so that several real
# libvirtd + QEMU hosts run side by side on one machine, without KVM, and can even run
# the same domain UUID at once (which is what a double-run test has to be able to see).
#
#   [CGROUP=v2|hybrid] [HOOK=FILE] libvirt-node.sh NAME WORKDIR -- COMMAND [ARG ...]
#
# Runs COMMAND inside the host, with virtlogd and libvirtd started and /etc/libvirt, /var/lib/libvirt,
# /var/log/libvirt and /run private to it. When COMMAND ends, or this script is killed, so does everything in the
# host, and its cgroups go; what WORKDIR/hosts/NAME holds stays, for a restart of the same host.
# WORKDIR is shared by all hosts (put the "shared storage" there). The network namespace has only
# its own loopback: add a veth pair from outside to connect or cut it (ip link ... netns PID).
#
# CGROUP=v2 (default): one unified tree, as on current distributions; hybrid: the machine's own v1 + v2 mix.
# HOOK: a file to link as /etc/libvirt/hooks/qemu.d/leasehold before libvirtd starts; unset: no such hook.
#
# Needs root and the Debian packages libvirt-daemon-system libvirt-clients libvirt-daemon-driver-qemu
# qemu-system-x86 (apt-get install --no-install-recommends).
# Domains: <domain type='qemu'>, memory 32 MiB, start in about 0.4 s each, the first one in about 2 s.
set -euo pipefail

outside() {
  local name=$1 hierarchies controller hierarchy
  # A cgroup of its own in every hierarchy, and a cgroup namespace on it: two hosts would otherwise share
  # /machine/qemu-1-NAME, and killing one's domain by cgroup would kill the other's.
  mapfile -t hierarchies < <(awk '$(NF-2) ~ /^cgroup2?$/ { print $5 }' /proc/self/mountinfo)
  for hierarchy in "${hierarchies[@]}"; do
    # libvirt's v2 back end wants at least one controller below the root.
    if [[ -e $hierarchy/cgroup.subtree_control ]]; then
      for controller in $(<"$hierarchy/cgroup.controllers"); do
        echo "+$controller" >"$hierarchy/cgroup.subtree_control" || true
      done
    fi
    mkdir -p "$hierarchy/host-$name"
    if [[ -e $hierarchy/cpuset.cpus ]]; then
      cat "$hierarchy/cpuset.cpus" >"$hierarchy/host-$name/cpuset.cpus"
      cat "$hierarchy/cpuset.mems" >"$hierarchy/host-$name/cpuset.mems"
    fi
  done
  local code=0
  (
    for hierarchy in "${hierarchies[@]}"; do echo "$BASHPID" >"$hierarchy/host-$name/cgroup.procs"; done
    # Killed however it may be, this script takes the host with it: a process of a pid namespace does not outlive its init.
    exec setpriv --pdeathsig KILL unshare --mount --uts --net --pid --cgroup --fork --kill-child --mount-proc \
      bash "$0" --inside "$@"
  ) <&0 &
  local host=$!
  trap 'kill -KILL "$host" 2>/dev/null' TERM INT HUP
  wait "$host" || code=$?
  # The last processes of a host that was killed may take a moment to end.
  for _ in $(seq 50); do
    for hierarchy in "${hierarchies[@]}"; do
      find "$hierarchy/host-$name" -depth -type d -exec rmdir {} + 2>/dev/null || true
    done
    compgen -G "/sys/fs/cgroup/**/host-$name" >/dev/null || compgen -G "/sys/fs/cgroup/host-$name" >/dev/null || break
    sleep 0.1
  done
  return "$code"
}

inside() {
  local name=$1 work=$2
  shift 3
  local home=$work/hosts/$name hierarchy kind
  mkdir -p "$home"/{etc,lib,log}
  [[ -e $home/etc/qemu.conf ]] || { cp -a /etc/libvirt/. "$home/etc/"; rm -rf "$home"/etc/qemu/*.xml "$home"/etc/hooks; }
  mkdir -p "$home/etc/hooks/qemu.d"
  # Live migration refuses two hosts of one uuid, and both would read the machine's own.
  grep -q "^host_uuid" "$home/etc/libvirtd.conf" ||
    echo "host_uuid = \"$(</proc/sys/kernel/random/uuid)\"" >>"$home/etc/libvirtd.conf"
  case ${CGROUP:-v2} in
    v2)
      umount -l /sys/fs/cgroup
      mount -t cgroup2 cgroup2 /sys/fs/cgroup
      # A cgroup that holds processes gives its children no controllers: the daemons get one beside the domains'.
      mkdir /sys/fs/cgroup/daemons
      echo $$ >/sys/fs/cgroup/daemons/cgroup.procs ;;
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
  mkdir -p /run/libvirt /run/lock
  # With a /dev/kvm that root can open and QEMU's user cannot, libvirt distrusts its cache of what QEMU can do and
  # probes again at every start, which takes seconds.
  if [[ -c /dev/kvm ]]; then mknod -m 666 /run/kvm c 10 232; mount --bind /run/kvm /dev/kvm; fi
  mount --bind "$home/etc" /etc/libvirt
  mount --bind "$home/lib" /var/lib/libvirt
  mount --bind "$home/log" /var/log/libvirt
  hostname "$name"
  ip link set lo up
  # libvirtd looks for hook scripts when it starts: put yours in place before, or reload it.
  rm -f /etc/libvirt/hooks/qemu.d/leasehold
  [[ -z ${HOOK:-} ]] || ln -s "$HOOK" /etc/libvirt/hooks/qemu.d/leasehold
  virtlogd -d
  libvirtd -d
  for _ in $(seq 200); do virsh -q list >/dev/null 2>&1 && break; sleep 0.1; done
  # Not exec: as the namespace's init, bash reaps what its processes leave behind.
  "$@"
}

if [[ ${1:-} == --inside ]]; then
  shift
  inside "$@"
else
  [[ $# -ge 4 && $3 == -- ]] || { sed -n '2,21p' "$0"; exit 2; }
  outside "$@"
fi
