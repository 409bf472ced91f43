//! `leasehold fence` and `leasehold unfence`: a whole node loses everything, and may have it again.

use super::controller::{NodeAction, Reach};
use super::lease::Time;
use super::waiting::{Waited, left_over, wait};
use super::{Exit, Terminal, finish};
use crate::lease::id::NodeId;
use crate::{note, out};
use clap::Args;
use std::time::Duration;

/// Revoke everything a node has, and grant it nothing until `unfence`.
#[derive(Debug, Args)]
pub struct Fence {
    /// The node
    node: NodeId,
    /// Return only when everything on it is proven gone: then it may be evacuated
    #[arg(long)]
    wait: bool,
    #[command(flatten)]
    time: Time,
    #[command(flatten)]
    reach: Reach,
}

/// Let a fenced node be granted domains again. What was revoked stays revoked.
#[derive(Debug, Args)]
pub struct Unfence {
    /// The node
    node: NodeId,
    #[command(flatten)]
    reach: Reach,
}

/// Runs `fence`.
pub fn run(fence: &Fence, terminal: &mut Terminal<'_>) -> Exit {
    let done = fence_node(fence, terminal);
    finish(terminal, done)
}

/// Runs `unfence`.
pub fn run_unfence(unfence: &Unfence, terminal: &mut Terminal<'_>) -> Exit {
    let done = unfence.reach.controller().and_then(|controller| {
        let view = controller.act_on_node(&unfence.node, NodeAction::Unfence).map_err(|e| e.to_string())?;
        if unfence.reach.json {
            terminal.json(&view);
        } else {
            out!(terminal, "{}: not fenced", unfence.node);
        }
        Ok(Exit::Done)
    });
    finish(terminal, done)
}

fn fence_node(fence: &Fence, terminal: &mut Terminal<'_>) -> Result<Exit, String> {
    let (node, json) = (&fence.node, fence.reach.json);
    let controller = fence.reach.controller()?;
    let view = controller.act_on_node(node, NodeAction::Fence).map_err(|e| e.to_string())?;
    if !fence.wait {
        if json {
            terminal.json(&view);
        } else {
            out!(terminal, "{node}: fenced; {}", copies(view.leaving));
        }
        return Ok(Exit::Done);
    }
    let first = controller.wait_node(node, Duration::ZERO).map_err(|e| e.to_string())?;
    let ask = |span| controller.wait_node(node, span);
    let proof = |domain| controller.lease(domain).ok()?.last_proof;
    let waited = wait(terminal, fence.time.span(), first.leaving, ask, proof)?;
    let leaving = match &waited {
        Waited::Safe => &[][..],
        Waited::Over(leaving) => leaving,
    };
    if json {
        let safe = leaving.is_empty();
        terminal.json(&serde_json::json!({ "node": node, "fenced": true, "safe": safe, "leaving": leaving }));
    }
    if let Waited::Over(leaving) = &waited {
        note!(terminal, "leasehold: {}; do not evacuate {node}", left_over(leaving));
        return Ok(Exit::NotYet);
    }
    if !json {
        out!(terminal, "{node}: fenced, and everything on it is proven gone; it may be evacuated");
    }
    Ok(Exit::Done)
}

fn copies(n: usize) -> String {
    match n {
        0 => "every copy is proven gone".to_owned(),
        1 => "1 copy is not proven gone".to_owned(),
        n => format!("{n} copies are not proven gone"),
    }
}
