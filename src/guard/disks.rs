//! `[admission] host_cached_disks`: what becomes of a start whose disks go through the host's page cache.

use super::record::Record;
use crate::config::HostCachedDisks;
use crate::lease::event::Severity;
use crate::lease::id::DomainId;
use crate::lease::ledger::label;
use crate::local::HookRequest;
use std::collections::BTreeMap;
use std::sync::Mutex;

/// How many domains are remembered as warned of; then all are forgotten, and warned of again.
const REMEMBERED: usize = 10_000;

/// The rule, and whom it has warned of.
pub struct DiskRule {
    rule: HostCachedDisks,
    observe: bool,
    warned: Mutex<BTreeMap<DomainId, String>>,
    record: Record,
}

impl DiskRule {
    /// From the configuration. An observing node refuses nothing and says what it would have refused.
    pub fn new(rule: HostCachedDisks, observe: bool, record: &Record) -> DiskRule {
        DiskRule { rule, observe, warned: Mutex::default(), record: record.clone() }
    }

    /// Whether `leasehold status` names such disks.
    pub fn is_shown(&self) -> bool {
        self.rule != HostCachedDisks::Allow
    }

    /// The sentence, if this start is refused.
    pub fn refusal(&self, request: &HookRequest) -> Option<String> {
        let (who, disks) = (label(&request.name, request.domain), &request.host_cached);
        if disks.is_none() {
            return None;
        }
        match self.rule {
            HostCachedDisks::Allow => None,
            HostCachedDisks::Refuse => {
                let sentence = format!(
                    "domain {who} is not started: {disks} would be written through this host's page cache, where writes \
                     outlive the domain. Set cache='none' (virsh edit), or allow it: host_cached_disks in [admission] of {}",
                    crate::config::PATH
                );
                if !self.observe {
                    return Some(sentence);
                }
                self.once(request.domain, format!("observing: would refuse: {sentence}"));
                None
            }
            HostCachedDisks::Warn => {
                self.once(
                    request.domain,
                    format!(
                        "domain {who} starts with {disks}, written through this host's page cache: after its death it \
                         counts as running until that is written back, and as long as its storage is away. \
                         cache='none' avoids it"
                    ),
                );
                None
            }
        }
    }

    /// Not at every start, but again when its disks have changed.
    fn once(&self, domain: DomainId, text: String) {
        let mut warned = self.warned.lock().expect("no holder panics");
        if warned.len() >= REMEMBERED {
            warned.clear();
        }
        if warned.get(&domain) != Some(&text) {
            warned.insert(domain, text.clone());
            self.record.say(Severity::Warning, text);
        }
    }
}
