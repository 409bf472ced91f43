//! `leasehold lease`: who owns a domain, and changing it.

use super::controller::{Controller, LeaseAction, Reach};
use super::waiting::{Waited, how, left_over, title, wait};
use super::{Exit, Terminal, finish};
use crate::lease::id::{DomainId, NodeId};
use crate::protocol::{GrantRequest, LeaseState, LeaseView, LeavingView, ShareView, WaitedFor};
use crate::{note, out};
use clap::{Args, Subcommand};
use std::time::Duration;

/// Who owns a domain: show it, change it, wait for it.
#[derive(Debug, Args)]
pub struct Lease {
    #[command(flatten)]
    reach: Reach,
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// List all leases
    List,
    /// Show one lease
    Show(Domain),
    /// Grant a domain to a node that is to run it, or open its live migration
    Grant {
        #[command(flatten)]
        domain: Domain,
        /// The owner; to the present one nothing changes
        node: NodeId,
        /// The destination of a live migration, which may start a paused copy
        #[arg(long, value_name = "NODE")]
        incoming: Option<NodeId>,
        /// The domain's name, for people
        #[arg(long)]
        name: Option<String>,
    },
    /// Take a domain away from whoever has it
    Revoke(Domain),
    /// Revoke a domain, wait until every copy is gone, and grant it to a node; the authority does that even if this
    /// command is interrupted
    Move {
        #[command(flatten)]
        domain: Domain,
        /// The new owner
        node: NodeId,
        #[command(flatten)]
        time: Time,
    },
    /// Say that a live migration has finished: the destination becomes the owner when the source's copy is gone
    Moved(Domain),
    /// Say that a live migration has failed: the destination loses the domain, the source keeps it
    Abort(Domain),
    /// Revoke a domain and remove its record when every copy is gone
    Forget(Domain),
    /// Wait until every revoked copy of a domain is gone
    Wait {
        #[command(flatten)]
        domain: Domain,
        #[command(flatten)]
        time: Time,
    },
}

#[derive(Debug, Args)]
struct Domain {
    /// The domain's uuid, or its name if exactly one domain has it
    domain: String,
}

/// How long a command waits.
#[derive(Debug, Clone, Copy, Args)]
pub struct Time {
    /// Give up after so many seconds (exit status 3)
    #[arg(long, value_name = "SECONDS", default_value_t = 600, value_parser = clap::value_parser!(u64).range(0..=604_800))]
    timeout: u64,
}

impl Time {
    /// As a span.
    pub fn span(self) -> Duration {
        Duration::from_secs(self.timeout)
    }
}

/// Runs the command.
pub fn run(lease: &Lease, terminal: &mut Terminal<'_>) -> Exit {
    let done = lease.reach.controller().and_then(|controller| {
        Run { controller: &controller, json: lease.reach.json }.command(terminal, &lease.command)
    });
    finish(terminal, done)
}

/// Leases, asked for and shown.
pub(super) struct Run<'a> {
    pub(super) controller: &'a Controller,
    pub(super) json: bool,
}

impl Run<'_> {
    fn command(&self, terminal: &mut Terminal<'_>, command: &Command) -> Result<Exit, String> {
        let find = |domain: &Domain| self.controller.domain(&domain.domain);
        let view = match command {
            Command::List => return self.list(terminal),
            Command::Move { domain, node, time } => return self.move_to(terminal, find(domain)?, node, time.span()),
            Command::Wait { domain, time } => return self.wait(terminal, find(domain)?, time.span()),
            Command::Forget(domain) => return self.forget(terminal, find(domain)?),
            Command::Show(domain) => self.controller.lease(find(domain)?),
            Command::Grant { domain, node, incoming, name } => {
                let request = GrantRequest { node: node.clone(), incoming: incoming.clone(), name: name.clone() };
                self.controller.grant(find(domain)?, &request)
            }
            Command::Revoke(domain) => self.controller.act(find(domain)?, LeaseAction::Revoke),
            Command::Moved(domain) => self.controller.act(find(domain)?, LeaseAction::Moved),
            Command::Abort(domain) => self.controller.act(find(domain)?, LeaseAction::Abort),
        };
        self.show(terminal, &view.map_err(|e| e.to_string())?);
        Ok(Exit::Done)
    }

    fn list(&self, terminal: &mut Terminal<'_>) -> Result<Exit, String> {
        let leases = self.controller.leases().map_err(|e| e.to_string())?;
        if self.json {
            terminal.json(&serde_json::json!({ "leases": leases }));
            return Ok(Exit::Done);
        }
        let head = ["DOMAIN", "NAME", "STATE", "OWNER", "EPOCH", "SINCE"].map(str::to_owned);
        let rows = leases.iter().map(|lease| {
            let owner = lease.owner.as_ref();
            let (node, epoch, since) = match (owner, lease.leaving.first()) {
                (Some(owner), _) => (owner.node.to_string(), owner.epoch.to_string(), owner.since.clone()),
                (None, Some(leaving)) => {
                    (format!("({})", leaving.node), leaving.epoch.to_string(), leaving.since.clone())
                }
                (None, None) => ("-".to_owned(), "-".to_owned(), "-".to_owned()),
            };
            let name = lease.name.escape_debug().to_string();
            [lease.domain.to_string(), name, state(lease), node, epoch, since]
        });
        terminal.table(&[head].into_iter().chain(rows).collect::<Vec<_>>());
        Ok(Exit::Done)
    }

    pub(super) fn show(&self, terminal: &mut Terminal<'_>, lease: &LeaseView) {
        if self.json {
            return terminal.json(lease);
        }
        out!(terminal, "{}: {}", title(lease.domain, &lease.name), state(lease));
        let share = |what: &str, share: &ShareView| {
            let reported = share.reported.map_or_else(String::new, |state| format!(", {state:?} there").to_lowercase());
            format!("  {what} {} since {}, epoch {}{reported}", share.node, share.since, share.epoch)
        };
        if let Some(owner) = &lease.owner {
            out!(terminal, "{}", share("owned by", owner));
        }
        if let Some(open) = &lease.incoming {
            out!(terminal, "{}", share("migrating to", open));
        }
        for LeavingView { node, epoch, since, safe_in_ms, .. } in &lease.leaving {
            let safe = match safe_in_ms {
                Some(ms) => format!("safe in {} s by its bound, sooner by its receipt", ms.div_ceil(1000)),
                None => "no bound covers it: only its receipt frees it".to_owned(),
            };
            out!(terminal, "  revoked on {node} at {since}, epoch {epoch}: {safe}");
        }
        if let Some(to) = &lease.then {
            out!(terminal, "  granted to {to} when all that is gone");
        }
        if let Some(proof) = &lease.last_proof {
            out!(terminal, "  last gone: {} epoch {}, {}", proof.node, proof.epoch, how(proof));
        }
    }

    fn forget(&self, terminal: &mut Terminal<'_>, domain: DomainId) -> Result<Exit, String> {
        match self.controller.forget(domain).map_err(|e| e.to_string())? {
            Some(lease) => self.show(terminal, &lease),
            None if self.json => terminal.json(&serde_json::json!({ "domain": domain, "forgotten": true })),
            None => out!(terminal, "{domain}: forgotten"),
        }
        Ok(Exit::Done)
    }

    fn move_to(
        &self,
        terminal: &mut Terminal<'_>,
        domain: DomainId,
        to: &NodeId,
        time: Duration,
    ) -> Result<Exit, String> {
        let start = std::time::Instant::now();
        let begun = self.controller.move_to(domain, to.clone()).map_err(|e| e.to_string())?;
        if let (true, Some(proof)) = (begun.leaving.is_empty() && begun.owner.is_some(), &begun.last_proof) {
            note!(terminal, "{}: {}", proof.node, how(proof));
        }
        let waited = self.leave(terminal, domain, &begun, time)?;
        if let Waited::Over(leaving) = waited {
            return Ok(self.not_yet(terminal, domain, &leaving));
        }
        loop {
            let lease = self.controller.lease(domain).map_err(|e| e.to_string())?;
            if lease.owner.as_ref().is_some_and(|owner| owner.node == *to) {
                self.show(terminal, &lease);
                return Ok(Exit::Done);
            }
            if lease.then.as_ref() != Some(to) {
                self.show(terminal, &lease);
                return Err(format!(
                    "{} was given another way meanwhile; node {to} does not own it",
                    title(domain, &lease.name)
                ));
            }
            if start.elapsed() >= time {
                note!(
                    terminal,
                    "leasehold: every copy is gone, but node {to} is fenced and is granted nothing; unfence it"
                );
                return Ok(Exit::NotYet);
            }
            // The target was fenced after the move began; nothing says when that ends.
            std::thread::sleep(Duration::from_millis(500));
        }
    }

    fn wait(&self, terminal: &mut Terminal<'_>, domain: DomainId, time: Duration) -> Result<Exit, String> {
        let lease = self.controller.lease(domain).map_err(|e| e.to_string())?;
        if let Waited::Over(leaving) = self.leave(terminal, domain, &lease, time)? {
            return Ok(self.not_yet(terminal, domain, &leaving));
        }
        let lease = self.controller.lease(domain).map_err(|e| e.to_string())?;
        self.show(terminal, &lease);
        Ok(Exit::Done)
    }

    pub(super) fn leave(
        &self,
        terminal: &mut Terminal<'_>,
        domain: DomainId,
        lease: &LeaseView,
        time: Duration,
    ) -> Result<Waited, String> {
        let share = |share: &LeavingView| WaitedFor { domain, name: lease.name.clone(), share: share.clone() };
        let before = lease.leaving.iter().map(share).collect();
        let ask = |span| self.controller.wait_lease(domain, span);
        wait(terminal, time, before, ask, |domain| self.controller.lease(domain).ok()?.last_proof)
    }

    fn not_yet(&self, terminal: &mut Terminal<'_>, domain: DomainId, leaving: &[WaitedFor]) -> Exit {
        if self.json {
            terminal.json(&serde_json::json!({ "domain": domain, "safe": false, "leaving": leaving }));
        }
        note!(terminal, "leasehold: {}", left_over(leaving));
        Exit::NotYet
    }
}

fn state(lease: &LeaseView) -> String {
    let word = match lease.state {
        LeaseState::Held if lease.incoming.is_some() => "migrating",
        LeaseState::Held => "held",
        LeaseState::Revoking => "revoking",
        LeaseState::Free => "free",
    };
    word.to_owned()
}
