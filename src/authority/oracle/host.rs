//! An ideal host: obeys the protocol and nothing more, and kills as late as its promise allows.

use crate::lease::id::{BootId, DomainId, Epoch, Incarnation, NodeId, QuestionNumber};
use crate::lease::time::BootTime;
use crate::protocol::*;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::time::Duration;

pub(super) const DOMAINS: usize = 2;
/// The last one claims the node id of the first.
pub(super) const HOSTS: usize = 4;

pub(super) fn domain(n: usize) -> DomainId {
    DomainId::from_bytes([n as u8 + 1; 16])
}

pub(super) fn node(n: usize) -> NodeId {
    format!("n{}", n % (HOSTS - 1)).parse().unwrap()
}

#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Setup {
    pub ttl: u64,
    pub watchdog: u64,
    pub observe: bool,
    pub hold: [bool; DOMAINS],
}

impl Setup {
    pub(super) fn bound(&self) -> Option<u64> {
        (!self.observe).then_some((self.ttl + self.watchdog) * 1000)
    }

    pub(super) fn ends(&self, domain: usize, expiry: BootTime) -> BootTime {
        if self.observe || self.hold[domain] { BootTime::NEVER } else { expiry + Duration::from_secs(self.watchdog) }
    }

    pub(super) fn widens(&self, to: &Setup) -> bool {
        let held = (0..DOMAINS).any(|d| to.hold[d] && !self.hold[d]);
        held || to.observe && !self.observe || to.ttl > self.ttl || to.watchdog > self.watchdog
    }
}

#[derive(Debug, Clone, Copy)]
pub(super) struct Running {
    pub epoch: Epoch,
    pub dies: BootTime,
}

#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Known {
    pub lease: Option<(Epoch, BootTime, bool)>,
    pub sealed: Option<(Epoch, Incarnation, QuestionNumber)>,
    pub copy: Option<Running>,
}

impl Known {
    pub(super) fn over(&self, epoch: Epoch) -> bool {
        self.sealed.is_some_and(|(sealed, ..)| epoch <= sealed)
    }
}

#[derive(Debug)]
pub(super) struct Host {
    pub booted: BootTime,
    pub boot: u8,
    pub incarnation: u8,
    pub asked: u64,
    pub folded: u64,
    pub setup: Setup,
    pub wanted: Setup,
    pub known: [Known; DOMAINS],
    /// The list and tag of the last claims folded in, with those claims.
    pub claims: Option<(String, String, Vec<ClaimEntry>)>,
}

#[derive(Debug, Clone)]
pub(super) struct Flight {
    pub host: usize,
    pub boot: u8,
    pub sent: BootTime,
    pub stated: Setup,
    pub question: RenewRequest,
    pub answer: Option<RenewAnswer>,
}

impl Host {
    pub(super) fn ask(&mut self, n: usize, now: BootTime, named: u8, brief: bool) -> Flight {
        let host = &mut *self;
        host.asked += 1;
        // A wider promise is stated until it is acknowledged, a narrower one is in force already.
        let (is, to) = (host.setup, host.wanted);
        let stated = Setup {
            ttl: is.ttl.max(to.ttl),
            watchdog: is.watchdog.max(to.watchdog),
            observe: is.observe || to.observe,
            hold: std::array::from_fn(|d| is.hold[d] || to.hold[d]),
        };
        let listed = (0..DOMAINS).filter(|d| named & (1 << d) != 0);
        let domains: Vec<NamedDomain> = listed
            .map(|d| NamedDomain {
                domain: domain(d),
                name: String::new(),
                epoch: host.known[d].copy.map(|copy| copy.epoch),
                state: if host.known[d].copy.is_some() { NamedState::Running } else { NamedState::Wanted },
                held_on_lapse: stated.hold[d],
            })
            .collect();
        let digest = {
            let mut hasher = DefaultHasher::new();
            format!("{domains:?}").hash(&mut hasher);
            // Says what it names, so that a host knows it of a question that had the digest alone.
            let names: String =
                domains.iter().map(|named| format!("|{}|", named.domain.to_string().as_bytes()[1] - b'1')).collect();
            format!("{names}{:x}", hasher.finish())
        };
        let receipts = host.known.iter().enumerate().filter_map(|(d, known)| {
            let (epoch, denied_incarnation, denied_question) = known.sealed?;
            let gone = known.copy.is_none_or(|copy| copy.epoch > epoch);
            gone.then_some(Receipt { domain: domain(d), epoch, denied_incarnation, denied_question })
        });
        let claims_tag = host.claims.as_ref().filter(|(list, ..)| *list == digest).map(|(_, tag, _)| tag.clone());
        let question = RenewRequest {
            protocol: VERSION,
            incarnation: Incarnation::from_bytes([host.incarnation; 16]),
            question: QuestionNumber(host.asked),
            boot_id: BootId::from_bytes([host.boot; 16]),
            // Host 1 cannot show which machine it is.
            machine: Machine {
                hardware: if n == 1 { String::new() } else { format!("hw{n}") },
                key: format!("key{n}"),
            },
            uptime_ms: now.since(host.booted).as_millis() as u64,
            ttl_ms: is.ttl * 1000,
            bound_ms: stated.bound(),
            mode: if stated.observe { Mode::Observe } else { Mode::Enforce },
            list: QuestionList { digest, domains: (!brief || claims_tag.is_none()).then_some(domains), claims_tag },
            receipts: receipts.collect(),
        };
        Flight { host: n, boot: host.boot, sent: now, stated, question, answer: None }
    }

    /// Lives by another setup from now on: what it would never have killed it kills when that lapses, late.
    pub(super) fn adopt(&mut self, now: BootTime, setup: Setup) {
        self.setup = setup;
        for (d, known) in self.known.iter_mut().enumerate() {
            let expiry = known.lease.map_or(now, |(_, expiry, _)| expiry.max(now));
            if let Some(copy) = &mut known.copy {
                copy.dies = copy.dies.min(setup.ends(d, expiry));
            }
        }
    }

    /// Takes an answer in, as rule 3 says.
    pub(super) fn fold(&mut self, now: BootTime, flight: Flight) {
        let Some(answer) = flight.answer else { return };
        let host = &mut *self;
        let current = flight.boot == host.boot && answer.incarnation == Incarnation::from_bytes([host.incarnation; 16]);
        if !current || answer.question.0 <= host.folded || answer.list_wanted {
            return;
        }
        host.folded = answer.question.0;
        // A wider promise is in force once it is acknowledged, for a domain held on lapse only if that one was named.
        let named = |d: &usize| flight.question.list.digest.contains(&format!("|{d}|"));
        let to = host.wanted;
        let covers = answer.bound_ms.is_none() || to.bound().is_some_and(|bound| Some(bound) <= answer.bound_ms);
        if covers && !flight.stated.widens(&Setup { hold: flight.stated.hold, ..to }) {
            let hold = |d: usize| to.hold[d] && (host.setup.hold[d] || flight.stated.hold[d] && named(&d));
            let setup = Setup { hold: std::array::from_fn(hold), ..to };
            host.adopt(now, setup);
        }
        let digest = flight.question.list.digest;
        let claims = match (answer.claims.domains, &host.claims) {
            (Some(claims), _) => claims,
            (None, Some((list, tag, claims))) if *list == digest && *tag == answer.claims.tag => claims.clone(),
            (None, _) => return,
        };
        host.claims = Some((digest, answer.claims.tag, claims.clone()));
        let expiry = flight.sent + Duration::from_millis(answer.ttl_ms);
        for claim in claims {
            let d = (0..DOMAINS).find(|d| domain(*d) == claim.domain).unwrap();
            let setup = host.setup;
            let known = &mut host.known[d];
            match claim.claim {
                ClaimKind::Deny => {
                    if !known.over(claim.epoch) {
                        known.sealed = Some((claim.epoch, answer.incarnation, answer.question));
                    }
                    known.lease = known.lease.filter(|(epoch, ..)| *epoch > claim.epoch);
                }
                kind => {
                    let older = known.lease.is_some_and(|(epoch, ..)| claim.epoch < epoch);
                    if answer.ttl_ms == 0 || known.over(claim.epoch) || older {
                        continue;
                    }
                    let expiry = known
                        .lease
                        .filter(|(epoch, ..)| *epoch == claim.epoch)
                        .map_or(expiry, |(_, e, _)| e.max(expiry));
                    known.lease = Some((claim.epoch, expiry, kind != ClaimKind::Hold));
                    if let Some(copy) = known.copy.as_mut().filter(|copy| copy.epoch == claim.epoch) {
                        copy.dies = copy.dies.max(setup.ends(d, expiry));
                    }
                }
            }
        }
    }
}
