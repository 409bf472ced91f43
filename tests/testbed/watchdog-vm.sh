#!/bin/bash
# A machine with a watchdog that really resets it: a Debian kernel under plain emulation (no KVM needed), an initramfs
# of busybox and the files given, one script as its only program. Ends when the machine is reset or switched off.
#
#   watchdog-vm.sh fetch DIR                       puts kernel and modules into DIR, once, by apt-get download
#   watchdog-vm.sh run DIR WORKDIR SCRIPT [FILE ...]
#
# SCRIPT runs under busybox sh as pid 1 with /proc, /sys, /dev, /run and /tmp mounted; every FILE is in /bin, or under its
# own path when it is a shared object (a dynamic program and its libraries can be given like that). What it writes to
# the console goes to stdout.
#
# DEVICE=     i6300esb (default), softdog, iTCO_wdt or ib700wdt
# FILESYSTEM=1  ext4 can be mounted: /ext4.img is one, empty, for `mount -o loop`
# SYSTEMD=    a tree made by systemd-root.sh: its systemd is pid 1, and SCRIPT a service of it on the console. Units among
#             the FILEs are installed as a package would, with their program's path, /usr/sbin
# DISK=       a file: the image of a disk that outlives the machine, made where there is none, with ext4, mounted on /disk
# REAL_TIME=1 the machine's clocks follow this machine's. Otherwise they count its own instructions and jump where it
#             idles: a loaded machine then cannot make it late, and waiting costs nothing. Its watchdog counts the same
#             clock (QEMU_CLOCK_VIRTUAL), so that instants within the machine are to be read on its own clock alone.
# NEVER_FIRES=1 the device counts down and nothing comes of it, as under a hypervisor that was told to ignore it
# SHIFT=      2^SHIFT ns of its time are one instruction (default 1)
# LIMIT=      seconds of this machine's time after which it is given up (default 240)
#
# Exit status: 0 reset or switched off, 1 neither within LIMIT, 2 it could not be tried.
# Needs the Debian packages qemu-system-x86, busybox-static, cpio, python3 and, for ext4, e2fsprogs.
set -euo pipefail
fail() { echo "watchdog-vm: $*" >&2; exit 2; }

fetch() {
  local dir=$1 package
  [[ ! -e $dir/vmlinux || ! -e $dir/virtio_blk.ko ]] || return 0
  mkdir -p "$dir/unpack"
  cd "$dir/unpack"
  package=$(apt-cache depends linux-image-amd64 | sed -n 's/.*Depends: *\(linux-image-[0-9].*amd64\).*/\1/p' | head -1)
  [[ -n $package ]] || fail "apt knows no linux-image-amd64; run apt-get update"
  apt-get download "$package" >log 2>&1 || { cat log >&2; fail "apt-get cannot download $package"; }
  dpkg-deb --fsys-tarfile "$package"_*.deb | tar x --wildcards './boot/vmlinuz-*' \
    './lib/modules/*/kernel/drivers/watchdog/*' './lib/modules/*/kernel/drivers/mfd/*' \
    './lib/modules/*/kernel/drivers/block/loop.ko' './lib/modules/*/kernel/crypto/crc32c_generic.ko' \
    './lib/modules/*/kernel/drivers/block/virtio_blk.ko' './lib/modules/*/kernel/drivers/virtio/*' \
    './lib/modules/*/kernel/lib/crc16.ko' './lib/modules/*/kernel/fs/*'
  find lib -name '*.ko' -exec mv -t "$dir" {} +
  # Unpacked once here and not at every boot by the emulated machine: half of its start. The kernel is moved last, for it
  # says that all is there.
  python3 - boot/vmlinuz-* <<'X'
import lzma, sys
image = open(sys.argv[1], 'rb').read()
start = image.index(b'\xfd7zXZ\0')
open('vmlinux', 'wb').write(lzma.LZMADecompressor().decompress(image[start:]))
X
  mv vmlinux "$dir"
  cd "$dir"
  rm -rf unpack
}

run() {
  local kernel_dir=$1 work=$2 script=$3 root module file code=0
  shift 3
  local device=${DEVICE:-i6300esb} modules=() hardware=() time=(-icount "shift=${SHIFT:-1},sleep=off" -rtc 'clock=vm')
  case $device in
    i6300esb) modules=(watchdog i6300esb) hardware=(-device i6300esb) ;;
    softdog) modules=(watchdog softdog) ;;
    # Without noreboot=off QEMU's counts down, starts again, and never resets.
    iTCO_wdt) modules=(watchdog iTCO_vendor_support intel_pmc_bxt lpc_ich iTCO_wdt)
      hardware=(-machine q35 -global ICH9-LPC.noreboot=off) ;;
    ib700wdt) modules=(ib700wdt) hardware=(-device ib700) ;;
    *) fail "no device $device" ;;
  esac
  local action=reset
  [[ -z ${NEVER_FIRES:-} ]] || action=none
  [[ -z ${REAL_TIME:-} ]] || time=()
  mkdir -p "$work"
  root=$work/root
  mkdir "$root" "$root"/{bin,dev,proc,sys,run,tmp,var,etc,mnt,disk}
  for applet in $(/bin/busybox --list); do ln -sf busybox "$root/bin/$applet"; done
  ln -sf ../proc/mounts "$root/etc/mtab"
  rm -f "$root/bin/busybox"
  cp /bin/busybox "$root/bin/"
  [[ -z ${FILESYSTEM:-}${DISK:-} ]] || modules+=(crc16 crc32c_generic mbcache jbd2 ext4)
  local mount=
  if [[ -n ${DISK:-} ]]; then
    modules+=(virtio_ring virtio virtio_pci_legacy_dev virtio_pci_modern_dev virtio_pci virtio_blk)
    # What it has written is this machine's when it is reset, synced here or not.
    hardware+=(-drive "file=$DISK,if=none,id=disk,format=raw,cache=unsafe" -device virtio-blk-pci,drive=disk)
    mount='mount -t ext4 /dev/vda /disk'
    [[ -e $DISK ]] || { truncate -s 8M "$DISK" && mkfs.ext4 -q "$DISK"; }
  fi
  if [[ -n ${FILESYSTEM:-} ]]; then
    modules+=(loop)
    truncate -s 8M "$root/ext4.img"
    mkfs.ext4 -q -O ^has_journal "$root/ext4.img"
  fi
  local insert=
  for module in "${modules[@]}"; do
    cp "$kernel_dir/$module.ko" "$root/"
    insert+="insmod /$module.ko; "
  done
  for file in "$@"; do
    case $file in
      *.so | *.so.*) install -D "$file" "$root$file" ;;
      *.service) install -D -m 644 "$file" -t "$root/lib/systemd/system" ;;
      *.target.d/*.conf) install -D -m 644 "$file" -t "$root/lib/systemd/system/$(basename "$(dirname "$file")")" ;;
      # Some have the name of an applet, which is a link to busybox itself.
      *) cp --remove-destination "$file" "$root/bin/" ;;
    esac
  done
  # What a debug build carries would not fit, and takes its time to be unpacked. Scripts are left as they are.
  strip --strip-debug "$root"/bin/* 2>/dev/null || true
  cp "$script" "$root/main"
  local first='sh /main'
  if [[ -n ${SYSTEMD:-} ]]; then
    first=/lib/systemd/systemd
    cp -rT "$SYSTEMD" "$root"
    mkdir -p "$root"/{etc/systemd/system,usr}
    ln -s ../bin "$root/usr/sbin"
    echo 0123456789abcdef0123456789abcdef >"$root/etc/machine-id"
    # No journal here: what services tell goes to the console.
    printf '[Manager]\nDefaultStandardOutput=tty\n' >"$root/etc/systemd/system.conf"
    printf '[Unit]\nWants=main.service\n' >"$root/etc/systemd/system/default.target"
    cat >"$root/etc/systemd/system/main.service" <<X
[Unit]
After=basic.target
[Service]
Environment=PATH=/bin
WorkingDirectory=/
ExecStart=/bin/sh /main
X
  fi
  cat >"$root/init" <<X
#!/bin/busybox sh
export PATH=/bin
mount -t proc proc /proc; mount -t sysfs sysfs /sys; mount -t devtmpfs dev /dev; mount -t tmpfs run /run; mount -t tmpfs tmp /tmp
$insert
$mount
ip link set lo up
exec $first
X
  chmod +x "$root/init"
  (cd "$root" && find . | cpio -o -H newc --quiet) >"$work/initramfs"
  rm -rf "$root"
  timeout "${LIMIT:-240}" qemu-system-x86_64 -accel tcg "${time[@]}" "${hardware[@]}" -m 768 -nographic -no-reboot \
    -action "watchdog=${action}" -nic none -kernel "$kernel_dir/vmlinux" -initrd "$work/initramfs" \
    -append "console=ttyS0 quiet panic=0 nokaslr mitigations=off tsc=reliable cryptomgr.notests" </dev/null || code=$?
  rm -f "$work/initramfs"
  [[ $code == 0 ]] || exit 1
}

case ${1:-} in
  fetch) [[ $# == 2 ]] && fetch "$(mkdir -p "$2" && cd "$2" && pwd)" ;;
  run) [[ $# -ge 4 ]] && run "${@:2}" ;;
  *) sed -n '2,24p' "$0"; exit 2 ;;
esac
