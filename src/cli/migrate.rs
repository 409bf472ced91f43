//! `leasehold migrate`: a strict live migration. Never do two copies run, whatever fails at whichever step: the
//! destination's copy comes paused, and its own guard resumes it once the source's is proven gone.

use super::controller::{Controller, LeaseAction, Reach};
use super::lease::{Run, Time};
use super::waiting::{Waited, left_over, title};
use super::{Exit, Terminal, finish};
use crate::lease::id::{DomainId, NodeId};
use crate::lease::time::BootTime;
use crate::node::clock;
use crate::node::libvirt::{AtSource, Libvirt};
use crate::note;
use crate::protocol::{GrantRequest, LeaseView, NamedState};
use crate::sources::http::HttpError;
use clap::Args;
use std::time::Duration;

/// Between two looks at what nobody tells us of.
const PAUSE: Duration = Duration::from_millis(200);
/// While the authority does not answer.
const RETRY: Duration = Duration::from_secs(1);
/// libvirt's word on a domain comes within this.
const WORD: Duration = Duration::from_secs(10);
/// A destination in good health has killed what was revoked there within this; a failed migration waits for no other.
const CLEARED: Duration = Duration::from_secs(10);

/// Migrate a running domain to another node, so that never two copies of it run.
///
/// Asks the authority to let the node receive it, has libvirt migrate it with the destination paused, says `moved`, and
/// returns when the destination's guard has resumed it, which it does once the source's copy is proven gone. On failure
/// the destination's copy is revoked and the source keeps the domain. Interrupted, run it again: it goes on from where
/// things are.
#[derive(Debug, Args)]
pub struct Migrate {
    /// The domain's uuid, or its name if exactly one domain has it
    domain: String,
    /// The node to migrate it to
    node: NodeId,
    /// libvirt on that node [default: qemu+ssh://NODE/system]
    #[arg(long, value_name = "URI")]
    to: Option<String>,
    /// libvirt on the node that runs it now
    #[arg(long, value_name = "URI", default_value = "qemu:///system")]
    connect: String,
    #[command(flatten)]
    time: Time,
    #[command(flatten)]
    reach: Reach,
    /// More options for `virsh migrate`, after `--`: --migrateuri tcp://10.0.0.2, --copy-storage-all, --persistent ...
    #[arg(last = true, value_name = "VIRSH OPTIONS")]
    options: Vec<String>,
}

/// Runs the command.
pub fn run(args: &Migrate, terminal: &mut Terminal<'_>) -> Exit {
    let done = args.reach.controller().and_then(|controller| {
        let domain = controller.domain(&args.domain)?;
        let until = clock::now() + args.time.span();
        let (to, source) = (&args.node, Libvirt::new(&args.connect));
        Migration { args, controller: &controller, domain, to, source, until }.run(terminal)
    });
    finish(terminal, done)
}

struct Migration<'a> {
    args: &'a Migrate,
    controller: &'a Controller,
    domain: DomainId,
    to: &'a NodeId,
    source: Libvirt,
    until: BootTime,
}

impl Migration<'_> {
    fn run(&self, terminal: &mut Terminal<'_>) -> Result<Exit, String> {
        let lease = self.lease()?;
        let (who, to) = (title(self.domain, &lease.name), self.to);
        match (&lease.owner, &lease.incoming) {
            (Some(owner), None) if owner.node == *to => self.arrive(terminal),
            (None, Some(open)) if open.node == *to => self.arrive(terminal),
            (Some(_), Some(open)) if open.node != *to => Err(format!(
                "{who} is being migrated to node {} already. Finish that with `leasehold migrate`, or end it with `leasehold lease abort`",
                open.node
            )),
            (None, _) => {
                Err(format!("{who} is owned by no node, so there is nothing to migrate; see `leasehold lease show`"))
            }
            (Some(owner), None) => self.open(terminal, &who, &owner.node),
            (Some(owner), Some(_)) => {
                note!(
                    terminal,
                    "{who}: its migration from {} to {to} is open already; going on from there",
                    owner.node
                );
                self.go_on(terminal, &who, &owner.node)
            }
        }
    }

    fn open(&self, terminal: &mut Terminal<'_>, who: &str, from: &NodeId) -> Result<Exit, String> {
        match self.at_source()? {
            AtSource::Running => {}
            AtSource::Paused => {
                return Err(format!(
                    "{who} is paused on node {from}; resume it first: it is resumed at its destination anyhow"
                ));
            }
            AtSource::Gone => {
                return Err(format!(
                    "{who} does not run at {}, the libvirt of its owner {from}. Run this there, or name that libvirt with --connect; a stopped domain is moved with `leasehold lease move`",
                    self.args.connect
                ));
            }
        }
        let request = GrantRequest { node: from.clone(), incoming: Some(self.to.clone()), name: None };
        self.controller.grant(self.domain, &request).map_err(|e| e.to_string())?;
        self.transfer(terminal, who, from)
    }

    /// An earlier run of this command opened the migration and did not end it.
    fn go_on(&self, terminal: &mut Terminal<'_>, who: &str, from: &NodeId) -> Result<Exit, String> {
        while self.source.is_migrating(self.domain, self.word_by()).map_err(|e| e.to_string())? {
            if clock::now() >= self.until {
                note!(terminal, "leasehold: {who} is still being migrated; run this again to finish it");
                return Ok(Exit::NotYet);
            }
            std::thread::sleep(PAUSE);
        }
        match self.at_source()? {
            AtSource::Running => self.transfer(terminal, who, from),
            AtSource::Gone
                if self.has_come().map_err(|unknown| {
                    self.undecided(who, from, "an earlier run of this command was interrupted", &unknown)
                })? =>
            {
                self.arrive(terminal)
            }
            _ => self.fail(terminal, who, from, "an earlier run of this command was interrupted"),
        }
    }

    fn transfer(&self, terminal: &mut Terminal<'_>, who: &str, from: &NodeId) -> Result<Exit, String> {
        note!(terminal, "{who}: migrating from {from} to {} ({})", self.to, self.uri());
        let Err(why) = self.source.migrate_paused(self.domain, &self.uri(), &self.args.options, self.until) else {
            return self.arrive(terminal);
        };
        // What libvirt calls a failure may be one of its very last step, when the destination has everything.
        let gone = self.at_source().map(|state| state == AtSource::Gone);
        match gone.and_then(|gone| Ok(gone && self.has_come()?)) {
            Ok(true) => {
                note!(terminal, "{who}: {why}; but it has left {from} and come to {}", self.to);
                self.arrive(terminal)
            }
            Ok(false) => self.fail(terminal, who, from, &why.to_string()),
            Err(unknown) => Err(self.undecided(who, from, &why.to_string(), &unknown)),
        }
    }

    fn undecided(&self, who: &str, from: &NodeId, why: &str, unknown: &str) -> String {
        let (domain, to) = (self.domain, self.to);
        format!(
            "the migration of {who} ended in an error ({why}), and where it is now is not known: {unknown}. The migration stays open, and nothing runs twice. When that libvirt answers again, run this again; or decide: `leasehold lease abort {domain}` keeps it on {from}, `leasehold lease moved {domain}` gives it to {to}"
        )
    }

    fn uri(&self) -> String {
        self.args.to.clone().unwrap_or_else(|| format!("qemu+ssh://{}/system", self.to))
    }

    fn has_come(&self) -> Result<bool, String> {
        Libvirt::new(self.uri()).has_come(self.domain, self.word_by()).map_err(|e| e.to_string())
    }

    /// The source keeps the domain: the destination's copy, which never ran, is revoked.
    fn fail(&self, terminal: &mut Terminal<'_>, who: &str, from: &NodeId, why: &str) -> Result<Exit, String> {
        let lease = self.patiently(terminal, || self.controller.lease(self.domain))?;
        if lease.incoming.as_ref().is_none_or(|open| open.node != *self.to) || lease.owner.is_none() {
            self.display(terminal, &lease);
            return Err(format!("the migration of {who} failed: {why}. Its lease was changed meanwhile, see above"));
        }
        self.patiently(terminal, || self.controller.act(self.domain, LeaseAction::Abort))?;
        if let Waited::Over(leaving) = self.leave(terminal, CLEARED.min(self.until.left(clock::now())))? {
            note!(
                terminal,
                "leasehold: the destination's copy, which never ran, is {}; until then nothing migrates there",
                left_over(&leaving)
            );
        }
        let now = match self.at_source() {
            Ok(AtSource::Running) => format!("It runs on node {from} as before."),
            Ok(AtSource::Paused) => {
                format!("It is paused on node {from}, which owns it: `virsh resume {}` there.", self.domain)
            }
            Ok(AtSource::Gone) => {
                format!("It does not run on node {from} any more, which owns it: `virsh start {}` there.", self.domain)
            }
            Err(unknown) => format!("Node {from} owns it; whether it runs there is not known ({unknown})."),
        };
        Err(format!("the migration of {who} failed: {why}. {now} The destination's copy was revoked"))
    }

    /// The destination has everything: what remains is the order of the end.
    fn arrive(&self, terminal: &mut Terminal<'_>) -> Result<Exit, String> {
        let lease = self.patiently(terminal, || self.controller.lease(self.domain))?;
        let who = title(self.domain, &lease.name);
        if lease.owner.is_some() && lease.incoming.is_some() {
            self.patiently(terminal, || self.controller.act(self.domain, LeaseAction::Moved))?;
        }
        if let Waited::Over(leaving) = self.leave(terminal, self.until.left(clock::now()))? {
            note!(
                terminal,
                "leasehold: {who} waits paused on node {} until the source's copy is proven gone, and is resumed then by itself; {}",
                self.to,
                left_over(&leaving)
            );
            return Ok(Exit::NotYet);
        }
        loop {
            let lease = self.patiently(terminal, || self.controller.lease(self.domain))?;
            let Some(owner) = lease.owner.as_ref().filter(|owner| owner.node == *self.to) else {
                self.display(terminal, &lease);
                return Err(format!("{who} was given another way meanwhile; node {} does not own it", self.to));
            };
            if owner.reported == Some(NamedState::Running) {
                self.display(terminal, &lease);
                return Ok(Exit::Done);
            }
            if clock::now() >= self.until {
                self.display(terminal, &lease);
                note!(
                    terminal,
                    "leasehold: node {} owns {who} and does not report it running; see `leasehold status` there",
                    self.to
                );
                return Ok(Exit::NotYet);
            }
            std::thread::sleep(PAUSE);
        }
    }

    fn at_source(&self) -> Result<AtSource, String> {
        self.source.at_source(self.domain, self.word_by()).map_err(|e| e.to_string())
    }

    fn word_by(&self) -> BootTime {
        clock::now() + WORD
    }

    fn lease(&self) -> Result<LeaseView, String> {
        self.controller.lease(self.domain).map_err(|e| e.to_string())
    }

    /// Asks again while the authority does not answer: it may be restarting, which loses nothing.
    fn patiently<T>(&self, terminal: &mut Terminal<'_>, ask: impl Fn() -> Result<T, HttpError>) -> Result<T, String> {
        let mut said = false;
        loop {
            match ask() {
                Err(HttpError::NoAnswer { url, why }) if clock::now() + RETRY < self.until => {
                    if !std::mem::replace(&mut said, true) {
                        note!(terminal, "no answer from {url} ({why}); asking again");
                    }
                    std::thread::sleep(RETRY);
                }
                other => return other.map_err(|e| format!("{e}. Run this again to finish the migration")),
            }
        }
    }

    fn leave(&self, terminal: &mut Terminal<'_>, time: Duration) -> Result<Waited, String> {
        let lease = self.patiently(terminal, || self.controller.lease(self.domain))?;
        self.shown().leave(terminal, self.domain, &lease, time)
    }

    fn display(&self, terminal: &mut Terminal<'_>, lease: &LeaseView) {
        self.shown().show(terminal, lease);
    }

    fn shown(&self) -> Run<'_> {
        Run { controller: self.controller, json: self.args.reach.json }
    }
}
