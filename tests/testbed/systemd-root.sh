#!/bin/bash
# The part of a Debian systemd that a machine needs to have it as pid 1: a tree to be copied over the machine's root.
#
#   systemd-root.sh DIR             of this machine's own distribution
#   systemd-root.sh DIR backports   of the distribution's backports, from the same mirror
#
# Made once, by apt-get download, which needs no root. Prints systemd's version. Other libraries are this machine's.
set -euo pipefail
fail() { echo "systemd-root: $*" >&2; exit 2; }

# Lists of its own, so that this machine's packages stay what they are.
backports() {
  local work=$1 codename mirror
  codename=$(. /etc/os-release && echo "${VERSION_CODENAME:-}")
  mirror=$(apt-get indextargets --format '$(REPO_URI)' 'Created-By: Packages' "Codename: $codename" 'Component: main' | head -1)
  [[ -n $mirror ]] || fail "apt knows no mirror of $codename; run apt-get update"
  mkdir -p "$work/lists/partial"
  echo "deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] $mirror $codename-backports main" >"$work/list"
  apt=(-o "Dir::Etc::sourcelist=$work/list" -o Dir::Etc::sourceparts=- -o "Dir::State::lists=$work/lists"
    -o Dir::Cache::pkgcache= -o Dir::Cache::srcpkgcache= -t "$codename-backports")
  apt-get "${apt[@]}" update -q >"$work/log" 2>&1 || { cat "$work/log" >&2; fail "apt-get cannot update $codename-backports"; }
}

make() {
  local work=$1 root=$1/root unpacked=$1/unpacked program file apt=()
  [[ -z ${2:-} ]] || backports "$work"
  mkdir -p "$root" "$unpacked"
  cd "$work"
  apt-get "${apt[@]}" download systemd libsystemd-shared libsystemd0 >log 2>&1 || { cat log >&2; fail "apt-get cannot download systemd"; }
  for file in *.deb; do dpkg-deb -x "$file" unpacked; done
  export LD_LIBRARY_PATH=$unpacked/usr/lib/x86_64-linux-gnu/systemd:$unpacked/usr/lib/x86_64-linux-gnu:$unpacked/lib/x86_64-linux-gnu
  for program in lib/systemd/systemd bin/systemctl; do
    install -D "$unpacked/$program" "$root/$program"
    for file in $(ldd "$unpacked/$program" | grep -o '/[^ ]*'); do install -D "$file" "$root${file#"$unpacked"}"; done
  done
  for file in basic sysinit local-fs shutdown; do
    install -D -m 644 "$unpacked/lib/systemd/system/$file.target" -t "$root/lib/systemd/system"
  done
}

[[ $# == 1 || ($# == 2 && $2 == backports) ]] || { sed -n '2,7p' "$0"; exit 2; }
if [[ ! -d $1/root ]]; then
  work=$(mkdir -p "$1" && mktemp -d -p "$1")
  make "$(cd "$work" && pwd)" "${2:-}"
  # Moved when all is in it.
  mv "$work/root" "$1/"
  rm -rf "$work"
fi
find "$1/root" -name 'libsystemd-shared-*.so' | sed 's/.*shared-\([0-9]*\).*/\1/'
