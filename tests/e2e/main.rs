//! End-to-end tests on real libvirt and real QEMU, without KVM and without touching the machine's own libvirt.

mod harness;

mod testbed;
