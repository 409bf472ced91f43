use super::*;
use crate::node::testing::{Child, TestCgroup, skipped};
use std::process::Command;

/// Each kind of hierarchy that libvirt uses and this machine has.
const HIERARCHIES: [&str; 3] = ["", "freezer", "pids"];

#[test]
fn a_kill_reaches_the_helpers_below_and_then_the_cgroup_is_empty() {
    for cgroup in HIERARCHIES.iter().filter_map(|controllers| TestCgroup::new(controllers)) {
        let (qemu, helper) = (Child::sleeping(), Child::sleeping());
        TestCgroup::admit(&cgroup.below("emulator"), &qemu);
        TestCgroup::admit(&cgroup.0, &helper);
        let domain = DomainCgroup::of(qemu.pid()).unwrap();
        assert_eq!(domain, DomainCgroup::of(helper.pid()).unwrap(), "the part that is the domain's");
        assert!(!domain.is_none() && !domain.is_empty().unwrap());
        let mut pids: Vec<i32> = domain.members().unwrap().into_iter().map(|member| member.pid).collect();
        pids.sort_unstable();
        let mut expected = [qemu.pid(), helper.pid()];
        expected.sort_unstable();
        assert_eq!(pids, expected);

        let watched = [&qemu, &helper].map(|child| Process::open(child.pid()).unwrap());
        assert_eq!(domain.kill_all().unwrap(), 2);
        qemu.wait_exited(&watched[0]);
        helper.wait_exited(&watched[1]);
        assert!(domain.is_empty().unwrap());
    }
}

#[test]
fn libvirts_daemon_is_never_killed_with_a_domain_whoever_put_it_there() {
    let dir = tempfile::tempdir().unwrap();
    for cgroup in HIERARCHIES.iter().filter_map(|controllers| TestCgroup::new(controllers)) {
        let (helper, daemon) = (Child::sleeping(), Child::posing_as_qemu(dir.path(), "libvirtd", &[]));
        TestCgroup::admit(&cgroup.0, &helper);
        TestCgroup::admit(&cgroup.0, &daemon);
        let domain = DomainCgroup::of(helper.pid()).unwrap();
        let (helper_process, daemon_process) =
            (Process::open(helper.pid()).unwrap(), Process::open(daemon.pid()).unwrap());
        assert_eq!(domain.kill_all().unwrap(), 1);
        helper.wait_exited(&helper_process);
        assert!(!daemon_process.has_exited());
        assert!(!domain.is_empty().unwrap(), "so it is not called gone either");
    }
}

#[test]
fn a_later_cgroup_of_the_same_name_is_another() {
    for cgroup in HIERARCHIES.iter().filter_map(|controllers| TestCgroup::new(controllers)) {
        let first = Child::sleeping();
        TestCgroup::admit(&cgroup.0, &first);
        let domain = DomainCgroup::of(first.pid()).unwrap();
        let process = Process::open(first.pid()).unwrap();
        drop(first);
        assert!(process.has_exited() && domain.is_empty().unwrap());
        fs::remove_dir(&cgroup.0).unwrap();
        assert!(domain.is_empty().unwrap(), "a cgroup that is gone is empty");

        fs::create_dir(&cgroup.0).unwrap();
        let second = Child::sleeping();
        TestCgroup::admit(&cgroup.0, &second);
        assert!(domain.is_empty().unwrap());
        assert_eq!(domain.kill_all().unwrap(), 0);
        assert!(!Process::open(second.pid()).unwrap().has_exited());
    }
}

#[test]
fn a_frozen_cgroup_dies_too() {
    let Some(cgroup) = TestCgroup::new("freezer") else { return };
    let child = Child::sleeping();
    TestCgroup::admit(&cgroup.0, &child);
    fs::write(cgroup.0.join("freezer.state"), "FROZEN").unwrap();
    let (domain, process) = (DomainCgroup::of(child.pid()).unwrap(), Process::open(child.pid()).unwrap());
    domain.kill_all().unwrap();
    child.wait_exited(&process);
}

#[test]
fn a_dead_leader_with_a_living_thread_keeps_the_cgroup_populated_and_is_killed() {
    let script = "import threading, time, ctypes, sys\n\
        threading.Thread(target=time.sleep, args=(1000,)).start()\n\
        print('up', flush=True)\n\
        ctypes.CDLL(None).syscall(60, 0)";
    if !cfg!(target_arch = "x86_64") || Command::new("python3").arg("-V").output().is_err() {
        return skipped("needs python3 on x86_64 to end a leader before its thread");
    }
    for cgroup in HIERARCHIES.iter().filter_map(|controllers| TestCgroup::new(controllers)) {
        let mut command = Command::new("sh");
        // The shell waits for its line, so that python and all its threads are born in the cgroup.
        command.args(["-c", "read x; exec python3 -c \"$0\"", script]).stdout(std::process::Stdio::piped());
        let mut child = Child::spawn(command);
        TestCgroup::admit(&cgroup.0, &child);
        child.say_and_hear("go", "up");
        let stat = format!("/proc/{}/stat", child.pid());
        while process::stat_at(Path::new(&stat)).unwrap().state != 'Z' {
            std::thread::yield_now();
        }
        let domain = DomainCgroup::of(child.pid()).unwrap();
        assert!(!domain.is_none(), "seen by its living thread");
        assert!(!domain.is_empty().unwrap());
        let process = Process::open(child.pid()).expect("not exited");
        domain.kill_all().unwrap();
        child.wait_exited(&process);
        assert!(domain.is_empty().unwrap());
    }
}

#[test]
fn a_process_in_a_cgroup_of_no_domain_has_none() {
    let child = Child::sleeping();
    let none = DomainCgroup::of(child.pid()).unwrap();
    assert!(none.is_none() && none.is_empty().unwrap());
    assert_eq!(none.kill_all().unwrap(), 0);
    assert!(!Process::open(child.pid()).unwrap().has_exited());
}
