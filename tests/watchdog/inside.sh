# What the rungs of the ladder do inside the emulated machine, under busybox sh. Instants are milliseconds of its
# CLOCK_BOOTTIME, as /proc/uptime tells them: 10 ms at a time.
U=7d1f3f0a-0000-4000-8000-00000000001a
CONTROL="--endpoint http://127.0.0.1:7470 --token-file /etc/controller"

# Nothing is ever written to this: reading it with a limit is a pause that starts no process.
mkfifo /tmp/never
exec 9<>/tmp/never

now() { read up _ </proc/uptime; f=${up#*.}; T=$((${up%.*} * 1000 + ${f#0} * 10)); }
say() { now; echo "$T $*"; }
pause() { f=$((1000 + $1 % 1000)); read -t $(($1 / 1000)).${f#1} x <&9; }
at() { now; [ $1 -le $T ] || pause $(($1 - T)); }
# until COMMAND...: it succeeded, within 30 s.
until_ok() {
  tries=600
  until "$@" >/dev/null 2>&1; do
    tries=$((tries - 1))
    [ $tries -gt 0 ] || { say "in vain: $*"; "$@"; cat /run/leasehold/ledger.json; leasehold status; over; }
    pause 50
  done
}
over() { say over; poweroff -f; while :; do pause 1000; done; }

# The machine lives: seen every 20 ms, so that the last time is the reset's.
pulse() { while :; do now; echo "$T alive"; pause 20; done; }

authority() {
  mkdir -p /etc/authority
  echo "n1 token-of-node-n1-for-tests" >/etc/nodes
  echo "token-of-the-controller-for-tests" >/etc/controller
  echo "token-of-node-n1-for-tests" >/etc/token
  chmod 600 /etc/nodes /etc/controller /etc/token
  leasehold-authority --listen 127.0.0.1:7470 --insecure-plain-http --data /etc/authority \
    --node-tokens /etc/nodes --controller-token-file /etc/controller &
  AUTHORITY=$!
  until_ok leasehold lease list $CONTROL
}

configure() {
  cat >/etc/leasehold.toml <<X
node = "n1"
profile = "$PROFILE"
state_dir = "${STATE:-/var/lib/leasehold}"
[watchdog]
device = "auto"
allow_softdog = true
last_resort = ${LAST_RESORT:-false}
[contact]
kind = "native"
endpoints = ["http://127.0.0.1:7470"]
token_file = "/etc/token"
X
  P=1000 W=10000
  [ $PROFILE = default ] || P=750 W=3000
}

# Starts it, behind $PREFIX, and waits for nothing.
guard() { $PREFIX leasehold guard --config /etc/leasehold.toml & GUARD=$!; }

# Dead when it returns: a second guard beside one that is still dying is refused.
kill_guard() { kill -9 $GUARD; wait $GUARD; say killed; }

field() { leasehold status --json | sed -n "s/^ *\"$1\": \"\{0,1\}\([^\",]*\).*/\1/p" | head -1; }
is() { [ "$(field $1)" = "$2" ]; }
state_is() { leasehold status --json | sed -n '/"watchdog": {/,/}/p' | grep -q "\"state\": \"$1\""; }
# Its lease is held, and what was found running is not condemned.
held() { leasehold status --json | grep -q '"why": "renewed by the authority"'; }

# A process that libvirt's files and its own arguments show as a QEMU, and that writes to its disk all the time.
guest() {
  DISK=/tmp/disk
  [ ! -e /ext4.img ] || { mount -o loop /ext4.img /mnt; DISK=/mnt/disk; }
  [ -e /bin/qemu-system-x86_64 ] || cp /bin/busybox /bin/qemu-system-x86_64
  echo "exec 9<>/tmp/never; while :; do echo x >>$DISK; read -t 0.05 x <&9; done" >/tmp/guest
  (exec -a sh /bin/qemu-system-x86_64 /tmp/guest -name guest=web-1 -S -uuid $U) &
  GUEST=$!
  mkdir -p /run/libvirt/qemu
  echo $GUEST >/run/libvirt/qemu/web-1.pid
  echo "<domstatus state='running' pid='$GUEST'><domain><uuid>$U</uuid></domain></domstatus>" >/run/libvirt/qemu/web-1.xml
}
guest_is() { grep -q "^State:.$1" /proc/$GUEST/status; }
# Its storage goes away: it cannot be killed any more.
freeze() { fsfreeze --freeze /mnt; until_ok guest_is D; say "the guest is in state D"; }

# A node as it should be: the domain runs under its lease, the watchdog is fed.
node() {
  configure
  authority
  leasehold lease grant $U n1 --name web-1 $CONTROL
  guest
  guard
  until_ok held
  until_ok state_is armed
  say "armed $(leasehold status --json | tr -d '\n' | sed 's/.*"watchdog": \({[^}]*}\).*/\1/')"
}
# The same with no domain.
empty_node() {
  configure
  authority
  guard
  until_ok state_is armed
  say armed
}

ledger_end() { tr ',{' '\n\n' </run/leasehold/ledger.json | sed -n '/"copies"/,$p' | sed -n 's/.*"expires":\([0-9]*\).*/\1/p' | head -1; }
# The authority is there and answers nobody any more. E is the lease's end, in milliseconds.
lose_contact() {
  kill -STOP $AUTHORITY
  say "contact lost"
  pause 300
  E=$(ledger_end)
  E=$((E / 1000000))
  say "E $E"
  say "E-P $((E - P))"
}
thread() { for t in /proc/$GUARD/task/*; do read name <$t/comm; [ "$name" != $1 ] || echo ${t##*/}; done; }
