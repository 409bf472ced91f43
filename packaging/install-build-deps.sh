#!/bin/bash
# Installs what building and testing leasehold needs: on Debian 12, as root, by apt; Rust by rustup if there is none.
# Does nothing, in half a second, when everything is there.
#
# No libvirtd is started: the tests run their own in namespaces. (Debian enables the units all the same, so an
# ordinary one comes up at the machine's next boot; `systemctl disable --now libvirtd.service libvirtd.socket
# libvirtd-ro.socket libvirtd-admin.socket` prevents that.)
set -euo pipefail
say() { echo "install-build-deps: $*"; }
fail() { echo "install-build-deps: $*" >&2; exit 1; }

packages=(
  libvirt-daemon-system libvirt-clients libvirt-daemon-driver-qemu qemu-system-x86 qemu-utils
  swtpm swtpm-tools
  iproute2 nftables util-linux procps python3 jq
  busybox-static cpio e2fsprogs strace stress-ng
  gcc libc6-dev binutils ca-certificates curl
)

installed() { [[ $(dpkg-query -W -f='${db:Status-Status}' "$1" 2>/dev/null) == installed ]]; }
candidate() { LC_ALL=C apt-cache policy "$1" | sed -n 's/^  Candidate: //p'; }

missing=()
if command -v dpkg-query >/dev/null; then
  for package in "${packages[@]}"; do installed "$package" || missing+=("$package"); done
else
  for program in libvirtd virsh qemu-system-x86_64 qemu-img swtpm ip nft unshare python3 jq busybox cpio mkfs.ext4 strace stress-ng gcc readelf nm; do
    command -v $program >/dev/null || fail "this is no Debian and has no $program; install it by your system's means"
  done
fi

if [[ ${#missing[@]} -gt 0 ]]; then
  [[ $(id -u) == 0 ]] || fail "missing: ${missing[*]}; run this as root, or install them yourself"
  # Maintainer scripts ask this file whether they may start what they install.
  if [[ ! -e /usr/sbin/policy-rc.d ]]; then
    printf '#!/bin/sh\nexit 101\n' >/usr/sbin/policy-rc.d
    chmod +x /usr/sbin/policy-rc.d
    trap 'rm -f /usr/sbin/policy-rc.d' EXIT
  fi
  export DEBIAN_FRONTEND=noninteractive
  apt_install() {
    # QEMU's packages have to be of one version. Where a newer qemu-utils came from backports, it breaks the
    # distribution's QEMU, and apt would rather install nothing: name the version for all of the family.
    local wanted=("${missing[@]}") family=(qemu-utils qemu-block-extra qemu-system-common qemu-system-data qemu-system-gui)
    local version package have
    version=$(candidate qemu-system-x86)
    if [[ " ${missing[*]} " == *" qemu-system-x86 "* && -n $version && $version != '(none)' ]]; then
      for package in "${family[@]}"; do
        have=$(dpkg-query -W -f='${Version}' "$package" 2>/dev/null) || continue
        if installed "$package" && dpkg --compare-versions "$have" gt "$version"; then
          say "$package $have is newer than the QEMU of this distribution and breaks it: going back to $version"
          wanted+=("$package=$version")
        fi
      done
    fi
    apt-get install -y -q --no-install-recommends --allow-downgrades "${wanted[@]}"
  }
  have_candidates() {
    local package
    for package in "${missing[@]}"; do
      case $(candidate "$package") in '' | '(none)') return 1 ;; esac
    done
  }
  say "installing ${missing[*]}"
  log=$(mktemp)
  have_candidates || apt-get update -q >"$log" 2>&1 || { cat "$log" >&2; fail "apt-get update failed"; }
  # Lists can be older than what the mirror still has.
  if ! apt_install >"$log" 2>&1; then
    say "once more, with fresh package lists"
    apt-get update -q >"$log" 2>&1 || true
    apt_install >"$log" 2>&1 || { tail -30 "$log" >&2; fail "apt could not install: ${missing[*]}"; }
  fi
  rm -f "$log"
fi

PATH=$PATH:${CARGO_HOME:-$HOME/.cargo}/bin
if ! command -v cargo >/dev/null; then
  say "no Rust here: installing it by rustup, into ${CARGO_HOME:-$HOME/.cargo}"
  curl --proto '=https' --tlsv1.2 -fsSL --max-time 60 https://sh.rustup.rs -o /tmp/rustup-init.$$ \
    || fail "cannot fetch https://sh.rustup.rs; install Rust (https://rustup.rs), or put cargo into the PATH"
  sh /tmp/rustup-init.$$ -y -q --profile minimal -c rustfmt -c clippy --no-modify-path \
    || fail "rustup failed; install Rust by hand (https://rustup.rs)"
  rm -f /tmp/rustup-init.$$
fi
