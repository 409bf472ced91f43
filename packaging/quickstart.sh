#!/bin/bash
# leasehold in a few minutes, on a machine that stays as it was: as root on Debian 12, builds it and shows it on a
# private libvirt host in namespaces, with a real libvirtd and a real QEMU, without KVM.
#
#   packaging/quickstart.sh
#
# A start without a lease is refused; with one it works; revoked, the domain is dead in N ms; the authority stopped,
# it is dead when its lease ends. Every time is measured on the spot. Exit status 0 only if every step happened.
# What stays behind: the Debian packages, Rust if there was none, target/, and two empty directories
# (/etc/leasehold, /var/lib/leasehold).
set -euo pipefail

now() { local t=${EPOCHREALTIME/[.,]/}; echo $((t / 1000)); }            # milliseconds
step() { printf '\n\e[1m%s\e[0m\n' "$*"; }
show() { printf '    $ %s\n' "$*"; }
quote() { sed 's/^/    /'; }
fail() { printf '\nquickstart: %s\n' "$*" >&2; exit 1; }

# until_gone PID LIMIT-MS: waits until the process is gone or a zombie that its parent has yet to collect; fails late.
until_gone() {
  local end=$(($(now) + $2)) state
  while state=$(sed -n 's/^State:[[:space:]]*\(.\).*/\1/p' "/proc/$1/status" 2>/dev/null) && [[ -n $state && $state != [ZX] ]]; do
    [[ $(now) -lt $end ]] || fail "process $1 still lives after $2 ms"
    sleep 0.002
  done
}

outside() {
  cd "$(dirname "${BASH_SOURCE[0]}")/.."
  [[ $(id -u) == 0 ]] || fail "run it as root: it makes namespaces, and installs Debian packages if some are missing"
  local start; start=$(now)
  step "1. What it needs: libvirt, QEMU, a compiler, Rust"
  packaging/install-build-deps.sh
  PATH=$PATH:${CARGO_HOME:-$HOME/.cargo}/bin
  unset RUSTFLAGS                                  # it would replace the flags of .cargo/config.toml
  step "2. Building the node's binary and the reference authority (two to four minutes the first time)"
  # Both at once, to compile everything once. The linker leaves the authority's parts out of the node's binary, as
  # tests/run.sh checks; to install, build it alone: cargo build --release.
  cargo build --release --features leasehold-authority
  release=${CARGO_TARGET_DIR:-target}/x86_64-unknown-linux-gnu/release
  work=$(mktemp -d)
  chmod 755 "$work"
  host=quickstart-$$
  trap 'clean' EXIT
  cp "$release/leasehold" "$release/leasehold-authority" "$work/"
  printf '    %s bytes, static: ' "$(stat -c %s "$work/leasehold")"
  readelf -lW "$work/leasehold" | grep -qE '^ *(INTERP|DYNAMIC) ' && fail "the binary is not static"
  echo "no interpreter, no dynamic section"
  step "3. A libvirt host of its own, in namespaces"
  # libvirt shows the hook's PATH with every refusal: a short one reads better.
  env PATH=/usr/sbin:/usr/bin:/sbin:/bin HOOK="$work/leasehold" \
    tests/testbed/libvirt-node.sh "$host" "$work" -- bash "$PWD/packaging/quickstart.sh" --inside "$work"
  clean
  [[ ! -e $work ]] || fail "could not clean up $work"
  step "Every step happened, in $((($(now) - start) / 1000)) s. Nothing of it runs any more."
}

# The host's processes died with its pid namespace; its groups and files are left to remove.
clean() {
  trap - EXIT
  local group
  for group in /sys/fs/cgroup/"host-$host" /sys/fs/cgroup/*/"host-$host"; do
    [[ -d $group ]] || continue
    for _ in $(seq 100); do
      find "$group" -depth -type d -exec rmdir {} \; 2>/dev/null
      [[ -d $group ]] || break
      sleep 0.05
    done
  done
  rm -rf "$work"
}

inside() {
  work=$1
  trap 'code=$?; if [[ $code != 0 ]]; then tail -n 20 "$work"/{authority,guard}.log 2>/dev/null; fi; kill $(jobs -p) 2>/dev/null; exit $code' EXIT
  local domain=fc3be091-56d3-4c69-8adb-2fdb8b0a35d2 name=web-1 t0 t1 pid said left end
  leasehold() { "$work/leasehold" "$@"; }
  lease() { leasehold lease "$@" --endpoint http://127.0.0.1:7470 --token-file "$work/controller-token"; }
  local arguments=(--listen 127.0.0.1:7470 --data "$work/data" --node-tokens "$work/node-tokens"
    --controller-token-file "$work/controller-token")

  (umask 077
   token() { head -c 24 /dev/urandom | base64; }
   token >/etc/leasehold/token
   echo "n1 $(cat /etc/leasehold/token)" >"$work/node-tokens"
   token >"$work/controller-token")
  cat >/etc/leasehold/leasehold.toml <<TOML
node = "n1"
profile = "fast"

[contact]
kind = "native"
endpoints = ["http://127.0.0.1:7470"]
token_file = "/etc/leasehold/token"
TOML
  quote </etc/leasehold/leasehold.toml
  leasehold check-config >"$work/check" || fail "the configuration is not good"
  head -1 "$work/check" | quote
  cat >"$work/$name.xml" <<XML
<domain type='qemu'>
  <name>$name</name> <uuid>$domain</uuid> <memory unit='MiB'>32</memory>
  <os><type arch='x86_64'>hvm</type></os>
  <devices><controller type='usb' model='none'/><memballoon model='none'/></devices>
</domain>
XML
  virsh -q define "$work/$name.xml" || fail "libvirt does not take the domain"

  step "4. The authority and the guard"
  "$work/leasehold-authority" "${arguments[@]}" >"$work/authority.log" 2>&1 &
  local authority=$!
  "$work/leasehold" guard >"$work/guard.log" 2>&1 &
  for _ in $(seq 200); do
    lease list >/dev/null 2>&1 && leasehold status --json 2>/dev/null | jq -e '.contact_age_ms != null' >/dev/null && break
    sleep 0.05
  done
  leasehold status --json | jq -e '.contact_age_ms != null' >/dev/null || fail "the guard never reached the authority"
  leasehold status | quote

  step "5. A start without a lease is refused"
  show virsh start $name
  if said=$(virsh start $name 2>&1); then fail "it started"; fi
  quote <<<"$said"
  grep -q "no lease for domain $name ($domain)" <<<"$said" || fail "it was refused for another reason"
  [[ -z $(pid_of) ]] || fail "a QEMU runs all the same"

  step "6. Granted, it starts"
  show leasehold lease grant $domain n1 --name $name
  lease grant $domain n1 --name $name | quote
  show virsh start $name
  t0=$(now)
  virsh start $name | quote
  pid=$(pid_of)
  [[ -n $pid ]] || fail "there is no QEMU"
  echo "    started in $(($(now) - t0)) ms, process $pid"
  until_known_running
  show leasehold status
  leasehold status | quote

  step "7. Revoked, it is dead"
  show leasehold lease revoke $domain
  t0=$(now)
  lease revoke $domain | quote
  until_gone "$pid" 4000
  t1=$(now)
  lease wait $domain | quote
  echo "    dead $((t1 - t0)) ms after the revocation was asked for; proven gone at the controller after $(($(now) - t0)) ms"
  [[ $(lease show $domain --json | jq -r '.last_proof.proof') == receipt ]] || fail "the proof is no receipt"
  said=$(virsh domstate --reason $name)
  for _ in $(seq 100); do [[ $said == running* ]] || break; sleep 0.05; said=$(virsh domstate --reason $name); done
  echo "    libvirt says: $said"

  step "8. The authority stopped, it is dead when its lease ends"
  lease grant $domain n1 --name $name >/dev/null
  virsh -q start $name
  pid=$(pid_of)
  [[ -n $pid ]] || fail "there is no QEMU"
  until_known_running
  kill -9 $authority
  wait $authority 2>/dev/null || true
  t0=$(now)
  left=$(leasehold status --json | jq -r ".domains[] | select(.domain == \"$domain\") | .left_ms")
  end=$((t0 + left))
  echo "    authority killed; the lease has $left ms left, and libvirt is asked 1000 ms before its end"
  until_gone "$pid" 8000
  t1=$(now)
  if [[ $t1 -le $end ]]; then
    echo "    dead $((t1 - t0)) ms later, $((end - t1)) ms before the lease ended"
  else
    echo "    dead $((t1 - t0)) ms later, $((t1 - end)) ms after the lease ended"
  fi
  # E is told in whole milliseconds and read a moment before or after; a QEMU needs some to exit.
  [[ $t1 -le $((end + 500)) ]] || fail "that is too late"
  [[ $t1 -ge $((end - 1200)) ]] || fail "that is too early: the lease was still good"
  leasehold status | quote
}

# The guard sees libvirt's files a moment after virsh returns.
until_known_running() {
  for _ in $(seq 100); do
    [[ $(leasehold status --json | jq -r '.domains[] | select(.name == "web-1") | .state') == running ]] && return
    sleep 0.05
  done
  fail "the guard does not know the domain as running"
}

pid_of() { cat /run/libvirt/qemu/web-1.pid 2>/dev/null || true; }

case ${1:-} in
  '') outside ;;
  --inside) inside "$2" ;;
  *) sed -n '2,12p' "$0"; exit 2 ;;
esac
