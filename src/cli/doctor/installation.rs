//! What leasehold itself needs: its configuration, its guard, libvirt, the hook, and what it knows of the domains.

use super::{Finding, watchdog};
use crate::config::{self, Config};
use crate::lease::late_write::LateWrite;
use crate::lease::ledger::label;
use crate::lease::view::StatusView;
use crate::local::{self, Reply, Request};
use crate::node::domains::{self, Finder};
use crate::node::hook_audit::{self, Auditor};
use crate::node::libvirt::{self, Libvirt};
use crate::node::traces::Traces;
use crate::node::{clock, features, host, late_writes};
use crate::protocol::Mode;
use std::path::Path;
use std::time::Duration;

/// The guard's core answers within a turn, virsh within a second; what takes longer hangs.
const PATIENCE: Duration = Duration::from_secs(3);
/// A guard scans every 2 s at the latest. Longer than a loaded host takes for it.
const SCAN_MAY_TAKE: Duration = Duration::from_secs(10);
/// libvirt's that were seen to call a domain destroyed over a QEMU that lived on.
const LIES: &str = "9.";

pub(super) fn look(path: &Path) -> Vec<Finding> {
    let config = Config::load(path);
    let mut findings = vec![configuration(&config, path)];
    let config = config.ok();
    let run_dir = config.as_ref().map_or(Path::new(local::RUN_DIR), |config| &config.run_dir);
    let (libvirt_dir, hooks_dir, uri) = match &config {
        Some(config) => (&*config.libvirt.run_dir, &*config.libvirt.hooks_dir, &*config.libvirt.uri),
        None => (Path::new(domains::RUN_DIR), Path::new(hook_audit::HOOKS_DIR), "qemu:///system"),
    };
    let view = match local::ask(run_dir, &Request::Status, PATIENCE) {
        Ok(Reply::Status(view)) => Some(view),
        answer => {
            let why = answer.err().map_or("it answers something else: another version?".to_owned(), |e| e.to_string());
            findings.push(Finding::fail(
                "guard",
                format!(
                    "no guard answers on {} ({why}): every start is refused, and no lease is kept or ended",
                    local::socket_path(run_dir).display()
                ),
                "systemctl start leasehold; journalctl -u leasehold says why it is not there",
            ));
            None
        }
    };
    findings.push(memory(run_dir));
    if let Some(view) = &view {
        findings.extend(guard(view));
    }
    findings.extend(daemon(libvirt_dir, uri));
    findings.extend(faults(view.as_deref(), libvirt_dir, hooks_dir));
    findings.extend(watchdog::look(config.as_ref(), view.as_deref()));
    findings.extend(storage(libvirt_dir));
    findings
}

fn configuration(config: &Result<Config, config::ConfigError>, path: &Path) -> Finding {
    let unusable = |why: String| Finding::fail("config", why, "leasehold check-config shows the place");
    match config {
        Err(diagnosis) => {
            let first = diagnosis.to_string();
            unusable(first.lines().next().unwrap_or_default().to_owned())
        }
        Ok(config) => match config.contact.token_file.as_deref().map(config::read_token).transpose() {
            Err(error) => unusable(error.to_string()),
            Ok(_) => Finding::ok("config", format!("{}, node {}", path.display(), config.node)),
        },
    }
}

fn memory(run_dir: &Path) -> Finding {
    let shown = run_dir.display();
    match features::is_on_memory(run_dir) {
        Ok(true) => Finding::ok("run_dir", format!("{shown} is on memory")),
        Ok(false) => Finding::fail(
            "run_dir",
            format!("{shown} is on a disk: it would survive a reboot, and a hung disk would hold up every verdict"),
            "set run_dir to a directory on a tmpfs",
        ),
        Err(error) => Finding::warn("run_dir", format!("cannot look at {shown}: {error}"), "start the guard, as root"),
    }
}

fn guard(view: &StatusView) -> Vec<Finding> {
    let mut findings = Vec::new();
    let node = &view.node;
    findings.push(match view.mode {
        Mode::Enforce => Finding::ok("guard", format!("node {node}, enforcing")),
        Mode::Observe => Finding::warn(
            "guard",
            format!("node {node} observes: it refuses no start and kills nothing"),
            "set mode = \"enforce\" when nothing in its log is surprising any more",
        ),
    });
    let failure = view.contact_failure.as_deref().map_or(String::new(), |why| format!(" ({why})"));
    let mend = "leasehold status; look at the network, the authority, the token, the certificate, in that order";
    findings.push(match view.contact_age_ms {
        Some(age) if age < view.ttl_ms && failure.is_empty() => {
            Finding::ok("contact", format!("{:.1} s ago", age as f64 / 1000.0))
        }
        Some(age) if age < view.ttl_ms => Finding::warn(
            "contact",
            format!("{:.1} s ago, and the last question was not answered{failure}: leases end {:.1} s after the last contact", age as f64 / 1000.0, view.ttl_ms as f64 / 1000.0),
            mend,
        ),
        Some(age) => Finding::fail("contact", format!("lost {:.1} s ago{failure}: the leases are over", age as f64 / 1000.0), mend),
        None => Finding::fail("contact", format!("none in this boot{failure}: nothing may start"), mend),
    });
    let scan = view.scan_age_ms.map(Duration::from_millis);
    findings.push(match scan {
        Some(age) if age < SCAN_MAY_TAKE => Finding::ok("scan", format!("{:.1} s ago", age.as_secs_f64())),
        age => Finding::fail(
            "scan",
            format!(
                "no whole scan of this host {}: no receipt is sent",
                age.map_or("yet".to_owned(), |age| format!("for {:.0} s", age.as_secs_f64()))
            ),
            "journalctl -u leasehold says what cannot be read; dmesg shows tasks that hang",
        ),
    });
    let own_boot = host::boot_id().ok() == Some(view.boot_id);
    findings.push(if view.ledger_lost {
        Finding::fail(
            "ledger",
            "lost in this boot: nothing is let through",
            "wait until libvirt is quiet and a scan is whole: it heals by itself",
        )
    } else if !own_boot {
        Finding::fail("ledger", format!("of boot {}, which is not this one", view.boot_id), "restart the guard")
    } else {
        Finding::ok("ledger", "of this boot, and whole")
    });
    findings
}

fn daemon(run_dir: &Path, uri: &str) -> Vec<Finding> {
    let Some(daemon) = libvirt::daemon(run_dir) else {
        return vec![Finding::warn(
            "libvirt",
            "no libvirt daemon runs: domains are killed by SIGKILL alone, and libvirt shows them as crashed",
            "systemctl start libvirtd (or virtqemud), unless it is started by its socket",
        )];
    };
    vec![match Libvirt::new(uri).version(clock::now() + PATIENCE) {
        Err(error) => Finding::fail(
            "libvirt",
            format!("its daemon (pid {}) does not answer: {error}", daemon.pid),
            "restart it; leases end without it, by SIGKILL, but nothing starts",
        ),
        Ok(version) if version.starts_with(LIES) => Finding::ok(
            "libvirt",
            format!(
                "{version}, pid {}. It calls a domain destroyed over a QEMU that lives on: believe receipts, not `virsh destroy`",
                daemon.pid
            ),
        ),
        Ok(version) => Finding::ok("libvirt", format!("{version}, pid {}", daemon.pid)),
    }]
}

/// The guard knows whether libvirt has called the hook, which cannot be seen from outside, and what else it is refused.
fn faults(view: Option<&StatusView>, run_dir: &Path, hooks_dir: &Path) -> Vec<Finding> {
    let faults = match view {
        Some(view) => view.faults.clone(),
        None => {
            let daemon = libvirt::daemon(run_dir);
            Auditor::new(hooks_dir).audit(daemon, None, None).err().iter().map(ToString::to_string).collect()
        }
    };
    let check = |fault: &str| if fault.contains("hook") { "hook" } else { "guard" };
    let split = |fault: String| match fault.rsplit_once("; ") {
        Some((what, remedy)) => Finding::fail(check(&fault), what, remedy),
        None => Finding::fail(check(&fault), fault, "docs/operating.md, 'What a message means'"),
    };
    let mut findings: Vec<Finding> = faults.into_iter().map(split).collect();
    if findings.iter().all(|finding| finding.check != "hook") {
        findings.push(Finding::ok("hook", "installed and in force"));
    }
    findings
}

fn storage(run_dir: &Path) -> Vec<Finding> {
    let domains = match Finder::new(run_dir).scan() {
        Ok(domains) => domains,
        Err(error) => return vec![Finding::fail("domains", error.to_string(), "run leasehold doctor as root")],
    };
    let mut findings = Vec::new();
    let mut covered = 0;
    for domain in &domains {
        let who = label(&domain.name, domain.domain);
        let ways = Traces::of_domain(domain).and_then(|traces| late_writes::of(domain, &traces));
        match ways {
            Err(error) => findings.push(Finding::warn(
                "storage",
                format!("cannot see what {who} holds open: {error}"),
                "run leasehold doctor as root",
            )),
            Ok(ways) => {
                covered += ways.iter().filter(|late| late.way.is_covered()).count();
                findings.extend(ways.iter().filter(|late| !late.way.is_covered()).map(|late| outliving(&who, late)));
            }
        }
    }
    findings.push(Finding::ok(
        "storage",
        format!("{} domains; in {covered} ways their writes could outlive them, and leasehold waits for their end (leasehold status lists them)", domains.len()),
    ));
    findings
}

fn outliving(who: &str, late: &LateWrite) -> Finding {
    let what = format!(
        "domain {who} writes to {}, {}: that may still write when the domain is dead",
        late.what,
        late.way.name()
    );
    Finding::warn("storage", what, format!("what ends it: {}", late.way.ended_by()))
}
