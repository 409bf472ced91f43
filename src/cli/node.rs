//! `leasehold node`: the nodes as the authority sees them.

use super::controller::{NodeAction, Reach};
use super::waiting::seconds;
use super::{Exit, Terminal, finish};
use crate::lease::id::NodeId;
use crate::out;
use crate::protocol::{Mode, NodeView};
use clap::{Args, Subcommand};

/// The nodes as the authority sees them.
#[derive(Debug, Args)]
pub struct Node {
    #[command(flatten)]
    reach: Reach,
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// List all nodes
    List,
    /// Show one node
    Show {
        /// The node
        node: NodeId,
    },
    /// Believe the machine that asks as a node now. Say so only when the one before it is off for good: everything
    /// that was revoked on it counts as gone from then on
    Accept {
        /// The node
        node: NodeId,
    },
}

/// Runs the command.
pub fn run(node: &Node, terminal: &mut Terminal<'_>) -> Exit {
    let json = node.reach.json;
    let done = node.reach.controller().and_then(|controller| {
        let view = match &node.command {
            Command::List => {
                let nodes = controller.nodes().map_err(|e| e.to_string())?;
                if json {
                    terminal.json(&serde_json::json!({ "nodes": nodes }));
                } else {
                    list(terminal, &nodes);
                }
                return Ok(Exit::Done);
            }
            Command::Show { node } => controller.node(node),
            Command::Accept { node } => controller.act_on_node(node, NodeAction::Accept),
        };
        let view = view.map_err(|e| e.to_string())?;
        if json {
            terminal.json(&view);
        } else {
            show(terminal, &view);
        }
        Ok(Exit::Done)
    });
    finish(terminal, done)
}

fn list(terminal: &mut Terminal<'_>, nodes: &[NodeView]) {
    let head = ["NODE", "STATE", "HEARD", "BOUND", "OWNS", "LEAVING"].map(str::to_owned);
    let rows = nodes.iter().map(|node| {
        let heard = node.silent_ms.map_or_else(|| "-".to_owned(), |ms| format!("{} ago", seconds(ms)));
        [node.node.to_string(), state(node), heard, bound(node), node.owns.to_string(), node.leaving.to_string()]
    });
    terminal.table(&[head].into_iter().chain(rows).collect::<Vec<_>>());
}

fn show(terminal: &mut Terminal<'_>, node: &NodeView) {
    out!(terminal, "{}: {}", node.node, state(node));
    match node.silent_ms {
        Some(ms) => out!(terminal, "  last heard {} ago", seconds(ms)),
        None => out!(terminal, "  not heard since the authority started"),
    }
    if let Some(boot) = node.boot_id {
        out!(terminal, "  boot {boot}");
    }
    out!(terminal, "  bound {}", bound(node));
    out!(terminal, "  owns {}, {} revoked and not proven gone", node.owns, node.leaving);
    if let Some(why) = &node.conflict {
        out!(terminal, "  conflict: {why}");
    }
}

fn state(node: &NodeView) -> String {
    let mode = match node.mode {
        None => "never asked",
        Some(Mode::Enforce) => "enforcing",
        Some(Mode::Observe) => "observing",
    };
    let fenced = if node.fenced { ", fenced" } else { "" };
    let conflict = if node.conflict.is_some() { ", in conflict" } else { "" };
    format!("{mode}{fenced}{conflict}")
}

fn bound(node: &NodeView) -> String {
    match (node.bound_ms, node.boot_id) {
        (Some(ms), _) => seconds(ms),
        (None, Some(_)) => "none: only receipts".to_owned(),
        (None, None) => "-".to_owned(),
    }
}
