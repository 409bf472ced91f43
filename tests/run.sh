#!/bin/bash
# Everything that is checked, in one run: tools, format, lints, licences, unit and property tests, the model, the release
# binary, emulated machines whose watchdogs really reset them, and the end-to-end tests on real libvirt. As root on Debian
# 12; about twenty-five minutes on two cores from a clean clone.
#
# A check that cannot be made says `skipped: why`; with CI=true in the environment that fails the run.
# The last line is `N passed, N failed, N skipped`, the sum of all tests; a stage that fails counts as one more failure.
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
PATH=$PATH:${CARGO_HOME:-$HOME/.cargo}/bin:$PWD/target/tools/bin
# An exported RUSTFLAGS replaces the project's own, and with them the static link (.cargo/config.toml).
unset RUSTFLAGS
export CARGO_TERM_COLOR=never

log=$(mktemp)
trap 'rm -f "$log"' EXIT
failed_stages=() summary=()

# stage NAME COMMAND...: runs it, shows and keeps its output, notes its time.
stage() {
  local name=$1 start=$SECONDS code=0
  shift
  echo "=== $name"
  "$@" 2>&1 | tee -a "$log" || code=$?
  summary+=("$(printf '%-28s %4d s  %s' "$name" $((SECONDS - start)) "$([[ $code == 0 ]] && echo ok || echo FAILED)")")
  [[ $code == 0 ]] || failed_stages+=("$name")
  return $code
}

end() {
  local passed failed skipped
  passed=$(sed -n 's/^test result: .* \([0-9]*\) passed; .*/\1/p' "$log" | paste -sd+ | bc_sum)
  failed=$(sed -n 's/^test result: .* \([0-9]*\) failed; .*/\1/p' "$log" | paste -sd+ | bc_sum)
  skipped=$(grep -c '^skipped: ' "$log")
  # Ignored tests are none that were skipped: others run them, inside a host of their own.
  local code=0
  if [[ ${#failed_stages[@]} -gt 0 ]]; then
    echo "failed: $(IFS=,; echo "${failed_stages[*]}")"
    [[ $failed -gt 0 ]] || failed=${#failed_stages[@]}
    code=1
  fi
  if [[ $skipped -gt 0 && ${CI:-} == true ]]; then
    echo "failed: in CI nothing may be skipped"
    code=1
  fi
  echo "$passed passed, $failed failed, $skipped skipped"
  exit $code
}
bc_sum() { local sum; read -r sum || true; echo $((${sum:-0})); }

# The stages' times, before the last stage: the closing lines are the tests' own.
table() {
  echo "=== so far"
  printf '%s\n' "${summary[@]}"
}

deny() {
  if ! command -v cargo-deny >/dev/null; then
    echo "building cargo-deny once, into target/tools"
    if ! cargo install -q cargo-deny@0.20.2 --locked --debug --root target/tools --target-dir target/tools/build; then
      echo "skipped: licences, bans and sources (cargo-deny cannot be installed)"
      return 0
    fi
    rm -rf target/tools/build
  fi
  cargo deny check licenses bans sources || return 1
  # Advisories need RustSec's git repository: worth having, and no reason to fail where it cannot be reached.
  if git ls-remote -q --exit-code https://github.com/RustSec/advisory-db HEAD >/dev/null 2>&1; then
    cargo deny check advisories
  else
    echo "advisories: not checked, the RustSec database cannot be reached from here"
  fi
}

inner_tests() {
  local targets
  targets=$(cargo metadata --format-version 1 --no-deps |
    jq -r '.packages[0].targets[] | select(.kind == ["test"] and .name != "e2e" and .name != "watchdog" and .name != "model") | "--test", .name')
  # shellcheck disable=SC2086  # one word each
  cargo test --all-features --lib --bins $targets && cargo test --all-features --doc
}

# The pure core alone, optimised: millions of its states.
model() { cargo test --profile checks --no-default-features --test model; }

# Faults made on purpose, one line each: some net must catch each of them (docs/mutants.md).
faults() { python3 tests/mutants.py; }

build() {
  cargo build --release --features leasehold-authority --bin leasehold-authority &&
    cp "$release/leasehold-authority" "$binaries/" &&
    cargo build --release && cp "$release/leasehold" "$binaries/"
}

# The binary itself, in virtual time: no schedule of faults breaks a promise, and the median and worst time to safe are told.
schedules() { "$binaries/leasehold" simulate --random 100000; }

# What the binary must be, whatever was compiled into it.
binary() {
  local binary=$binaries/leasehold size most=$((4608 << 10)) bad=0 word  # half a MiB of it is the simulator
  size=$(stat -c %s "$binary")
  echo "$binary: $size bytes"
  [[ $size -le $most ]] || { echo "larger than $most bytes"; bad=1; }
  readelf -lW "$binary" | grep -qE '^ *(INTERP|DYNAMIC) ' && { echo "it is not static: it has an interpreter or a dynamic section"; bad=1; }
  # getaddrinfo in a static binary loads the C library's modules at run time, and so brings back DNS, NSS and their
  # hangs. The linker does not warn; the strings that glibc's resolver cannot do without tell, also after strip.
  for word in /etc/gai.conf libnss_ nsswitch.conf; do
    grep -qaF "$word" "$binary" && { echo "it resolves names through the system: '$word' is in it"; bad=1; }
  done
  # The authority's parts belong to the controller. Their source paths would be in their panic messages.
  for word in /tokio- /axum- /redb-; do
    grep -qaF -- "$word" "$binary" && { echo "the node's binary carries '$word'"; bad=1; }
  done
  "$binary" --version >/dev/null || { echo "it does not run"; bad=1; }
  return $bad
}

end_to_end() {
  LEASEHOLD_BIN=$binaries/leasehold LEASEHOLD_AUTHORITY_BIN=$binaries/leasehold-authority \
    cargo test --all-features --test e2e -- --test-threads 5
}

watchdog() {
  LEASEHOLD_BIN=$binaries/leasehold LEASEHOLD_AUTHORITY_BIN=$binaries/leasehold-authority \
    cargo test --all-features --test watchdog
}

stage tools packaging/install-build-deps.sh || end
PATH=$PATH:${CARGO_HOME:-$HOME/.cargo}/bin
release=$(cargo metadata --format-version 1 --no-deps | jq -r .target_directory)/x86_64-unknown-linux-gnu/release
# The tests run their own copy: nothing they run changes when something is built meanwhile.
binaries=$(dirname "$release")/tested
mkdir -p "$binaries"
stage format cargo fmt --check
stage lints cargo clippy --all-targets --all-features -- -D warnings
stage "licences, bans, sources" deny
stage "unit and property tests" inner_tests
stage "model" model
stage "deliberate faults" faults
if stage "release build" build; then
  stage "the binary" binary
  stage "100 000 schedules of faults" schedules
  stage "watchdogs that really reset" watchdog
  table
  stage "end to end" end_to_end
else
  table
fi
end
