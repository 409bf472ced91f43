//! The native protocol, version 1: what travels between a guard, the authority and a controller's program.
//! docs/protocol.md is the specification, docs/openapi.yaml the same for machines.
//!
//! Unknown fields are ignored, missing optional ones have the defaults below, and every size is bounded.

use crate::lease::id::{BootId, DomainId, Epoch, Incarnation, NodeId, QuestionNumber};
use serde::{Deserialize, Serialize};

/// The version this crate speaks. A peer of another version is refused with status 400.
pub const VERSION: u32 = 1;
/// The largest body either side reads, in bytes. 10 000 domains with 256-character names take about 4 MiB.
pub const MAX_BODY: usize = 8 << 20;
/// The most domains one question may name.
pub const MAX_DOMAINS: usize = 10_000;
/// The most entries one list of leases or nodes has.
pub const MAX_LIST: usize = 5_000;
/// The longest domain name carried, in characters; longer ones are cut (a name is for people, the uuid decides).
pub const MAX_NAME: usize = 256;

// --- node side: POST /v1/nodes/{node}/renew -------------------------------------------------------------------

/// A guard's question. One renews everything.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct RenewRequest {
    /// [`VERSION`].
    pub protocol: u32,
    /// Which guard process asks; answers to another one's questions are refused (rule 3).
    pub incarnation: Incarnation,
    /// Grows with every question of one incarnation.
    pub question: QuestionNumber,
    /// The boot this node runs in. A new one proves the old boot's domains gone, if the machine is the same.
    pub boot_id: BootId,
    /// Which machine this is, so that two hosts claiming one node id are noticed.
    pub machine: Machine,
    /// BOOTTIME since boot in milliseconds. Older than this node's last question under another boot id: two machines.
    pub uptime_ms: u64,
    /// The ttl the node wants, in milliseconds. The answer may grant less, never more.
    pub ttl_ms: u64,
    /// The bound the node promises, in milliseconds after the last answer that could have renewed; absent or null:
    /// there is none, only receipts prove anything.
    #[serde(default)]
    pub bound_ms: Option<u64>,
    /// `enforce` or `observe`. An observing node kills nothing and so promises no bound.
    pub mode: Mode,
    /// The domains this question names.
    pub list: QuestionList,
    /// What is proven gone since the last answered question. Repeated until a question that carried it is answered.
    #[serde(default)]
    pub receipts: Vec<Receipt>,
}

/// Which machine asks. Both values are opaque to the authority and compared for equality.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Machine {
    /// The hardware's uuid (SMBIOS, /sys/class/dmi/id/product_uuid), empty where there is none.
    pub hardware: String,
    /// The public name of a random key made at installation and bound to that hardware.
    pub key: String,
}

/// Whether a node acts on what it decides.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Mode {
    /// Refuses starts and kills.
    Enforce,
    /// Decides and reports, and neither refuses nor kills.
    Observe,
}

/// The domains a question names: in full, or by the digest of a list that an answered question of the same
/// incarnation carried in full.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct QuestionList {
    /// Any text that differs whenever the list differs (the guard sends SHA-256). At most 128 characters.
    pub digest: String,
    /// The list; absent when the digest stands for it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub domains: Option<Vec<NamedDomain>>,
    /// The tag of the claims the guard holds for this very list, if any: the answer may then say "unchanged".
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub claims_tag: Option<String>,
}

/// One domain named in a question. It was seen running, or wanted, before the question was sent (rule 2).
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct NamedDomain {
    /// The domain.
    pub domain: DomainId,
    /// Its libvirt name, for people. At most [`MAX_NAME`] characters.
    #[serde(default)]
    pub name: String,
    /// The newest epoch under which the node knows a lease, an admission or a process of it.
    #[serde(default)]
    pub epoch: Option<Epoch>,
    /// What of it is on the node.
    pub state: NamedState,
    /// True: on lapse this domain is held, not killed, so no bound covers it and only a receipt frees it.
    #[serde(default)]
    pub held_on_lapse: bool,
}

/// What of a domain is on the node that names it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum NamedState {
    /// Nothing: a lease is held or asked for.
    Wanted,
    /// A start was admitted and no process is seen yet.
    Starting,
    /// A process whose virtual CPUs do not run (an incoming migration, a suspended guest).
    Paused,
    /// A process.
    Running,
    /// A process that was told to die and is not proven gone.
    Dying,
}

/// The guard's word that every process of a domain, of `epoch` or older, is proven gone and silent on this node in
/// the boot that the question names, and that no start is admitted under such an epoch any more.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Receipt {
    /// The domain.
    pub domain: DomainId,
    /// The sealed epoch: this one and every older one are over here.
    pub epoch: Epoch,
    /// The incarnation whose question was answered with the denial that this receipt answers.
    pub denied_incarnation: Incarnation,
    /// The number of that question.
    pub denied_question: QuestionNumber,
}

/// The authority's answer.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct RenewAnswer {
    /// [`VERSION`].
    pub protocol: u32,
    /// The node asked about; another node's answer is refused.
    pub node: NodeId,
    /// Echo of the question's incarnation.
    pub incarnation: Incarnation,
    /// Echo of the question's number.
    pub question: QuestionNumber,
    /// How long the renewed leases live, in milliseconds counted from before the question was sent. Zero: nothing is
    /// renewed by this answer.
    pub ttl_ms: u64,
    /// Which authority process answered; its clock compares only with the same one's.
    pub authority: Incarnation,
    /// The authority's BOOTTIME in milliseconds when it answered, so that a node notices time stolen from it.
    pub clock_ms: u64,
    /// True: the digest is not known here. Nothing was renewed and no claim is given; ask again with the full list.
    #[serde(default)]
    pub list_wanted: bool,
    /// What the authority says of the domains named.
    pub claims: Claims,
    /// Domains to name in the next question, at most [`MAX_DOMAINS`]. A hint: it proves and renews nothing.
    #[serde(default)]
    pub name_next: Vec<DomainId>,
    /// The bound the authority counts with for this node, in milliseconds. A larger one than before counts for the
    /// node only once it is echoed here.
    #[serde(default)]
    pub bound_ms: Option<u64>,
    /// Why this node is not believed to be the one machine of its id, if so; then nothing is renewed for new starts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub conflict: Option<String>,
}

/// The claims of an answer.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Claims {
    /// Names this state of the claims; the guard sends it back as `claims_tag`. At most 128 characters.
    pub tag: String,
    /// In full; absent means: as in the answer that carried this tag.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub domains: Option<Vec<ClaimEntry>>,
}

/// What the authority says of one domain on this node. A named domain without an entry: nothing is said (rule 2).
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct ClaimEntry {
    /// The domain.
    pub domain: DomainId,
    /// The claim.
    pub claim: ClaimKind,
    /// `allow`, `incoming`, `hold`: the epoch the node owns it under. `deny`: this epoch and every older one are over
    /// on this node for ever.
    pub epoch: Epoch,
    /// `deny`: who owns it, if anybody.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub owner: Option<NodeId>,
    /// Since when, by the authority's wall clock (RFC 3339), for people.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub since: Option<String>,
    /// Why, in a clause for people; at most 256 characters.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

/// The kinds of claim.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ClaimKind {
    /// Starts and runs.
    Allow,
    /// May be started as the destination of a live migration.
    Incoming,
    /// Runs on, does not start.
    Hold,
    /// Does not start and is killed.
    Deny,
}

// --- node side: GET /v1/nodes/{node}/watch?seen=N -------------------------------------------------------------

/// The held hint: answered when something about the node changed, or after at most 30 s. It proves nothing.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct WatchAnswer {
    /// Pass it as `seen` in the next watch.
    pub version: u64,
    /// Domains to name in the question to ask now.
    #[serde(default)]
    pub name_next: Vec<DomainId>,
}

// --- controller side ------------------------------------------------------------------------------------------

/// `POST /v1/leases/{domain}/grant`.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct GrantRequest {
    /// The owner. Granting to the present owner again changes nothing and succeeds.
    pub node: NodeId,
    /// The destination of a live migration, which may start a paused copy until `moved` or `abort`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub incoming: Option<NodeId>,
    /// The domain's name, for people.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
}

/// `POST /v1/leases/{domain}/move`.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct MoveRequest {
    /// The new owner, granted as soon as the old copy is gone.
    pub to: NodeId,
}

/// `GET /v1/leases?after=&limit=&name=`: the leases in the order of their ids.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct LeaseList {
    /// At most `limit` (1000 unless asked for, at most [`MAX_LIST`]).
    pub leases: Vec<LeaseView>,
    /// There are more: pass this as `after`.
    #[serde(default)]
    pub next: Option<DomainId>,
}

/// `GET /v1/nodes?after=&limit=`: the nodes in the order of their ids.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct NodeList {
    /// At most `limit` (1000 unless asked for, at most [`MAX_LIST`]).
    pub nodes: Vec<NodeView>,
    /// There are more: pass this as `after`.
    #[serde(default)]
    pub next: Option<NodeId>,
}

/// Where a domain's lease stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LeaseState {
    /// Owned.
    Held,
    /// Revoked, and a copy may still run somewhere.
    Revoking,
    /// Owned by nobody and proven to run nowhere.
    Free,
}

/// A domain's lease as the authority sees it.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct LeaseView {
    /// The domain.
    pub domain: DomainId,
    /// Its name, as granted or as a node last reported it.
    #[serde(default)]
    pub name: String,
    /// Where it stands.
    pub state: LeaseState,
    /// The owner.
    #[serde(default)]
    pub owner: Option<ShareView>,
    /// The destination of an open migration.
    #[serde(default)]
    pub incoming: Option<ShareView>,
    /// Revoked shares not proven gone.
    #[serde(default)]
    pub leaving: Vec<LeavingView>,
    /// Who is granted it when nothing is leaving any more (`move`).
    #[serde(default)]
    pub then: Option<NodeId>,
    /// How the last revoked copy was proven gone.
    #[serde(default)]
    pub last_proof: Option<ProofView>,
}

/// One node's right to a domain.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct ShareView {
    /// The node.
    pub node: NodeId,
    /// Its epoch.
    pub epoch: Epoch,
    /// Since when, by the authority's wall clock (RFC 3339), for people.
    pub since: String,
    /// What the node last said runs there.
    #[serde(default)]
    pub reported: Option<NamedState>,
}

/// A revoked share not proven gone.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct LeavingView {
    /// The node.
    pub node: NodeId,
    /// The revoked epoch.
    pub epoch: Epoch,
    /// Revoked when, by the authority's wall clock (RFC 3339), for people.
    pub since: String,
    /// In how many milliseconds the bound will have passed; null: no bound covers it, only a receipt frees it.
    #[serde(default)]
    pub safe_in_ms: Option<u64>,
    /// Milliseconds since the node was last heard; null: never by this authority process.
    #[serde(default)]
    pub node_silent_ms: Option<u64>,
}

/// Why a revoked copy counts as gone.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Proof {
    /// The node's receipt.
    Receipt,
    /// The bound since the last answer that could have renewed it has passed.
    Bound,
    /// The same machine runs under a new boot id.
    Reboot,
    /// No answer ever carried the claim to the node.
    NeverClaimed,
    /// An operator's word (`accept`) that the machine or boot it ran on is off.
    Operator,
}

/// The last proof of a domain.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct ProofView {
    /// The node whose copy is gone.
    pub node: NodeId,
    /// The epoch that is over.
    pub epoch: Epoch,
    /// Why it counts as gone.
    pub proof: Proof,
    /// Milliseconds from the revocation to the proof.
    pub after_ms: u64,
}

/// A node as the authority sees it.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct NodeView {
    /// The node.
    pub node: NodeId,
    /// Milliseconds since its last question; null: none since this authority process started.
    #[serde(default)]
    pub silent_ms: Option<u64>,
    /// The bound counted with, in milliseconds; null: there is none.
    #[serde(default)]
    pub bound_ms: Option<u64>,
    /// `enforce` or `observe`, as last stated.
    #[serde(default)]
    pub mode: Option<Mode>,
    /// The boot id last accepted.
    #[serde(default)]
    pub boot_id: Option<BootId>,
    /// True: fenced. It is renewed nothing and granted nothing until `unfence`.
    pub fenced: bool,
    /// Domains it owns.
    pub owns: usize,
    /// Revoked shares on it not proven gone.
    pub leaving: usize,
    /// Why its questions are not believed, if so.
    #[serde(default)]
    pub conflict: Option<String>,
}

/// `GET /v1/leases/{domain}/wait` and `GET /v1/nodes/{node}/wait`, with `timeout_ms` (at most 60 000).
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct WaitAnswer {
    /// True: no revoked copy is left; it is safe to start elsewhere.
    pub safe: bool,
    /// In how many milliseconds the latest bound will have passed; null while `safe` is false: only receipts free it.
    #[serde(default)]
    pub safe_in_ms: Option<u64>,
    /// What is still to be proven gone.
    #[serde(default)]
    pub leaving: Vec<WaitedFor>,
}

/// One copy that `wait` waits for.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct WaitedFor {
    /// The domain.
    pub domain: DomainId,
    /// Its name.
    #[serde(default)]
    pub name: String,
    /// Where it may still run.
    #[serde(flatten)]
    pub share: LeavingView,
}

/// A refusal's body, with a 4xx or 5xx status.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct ErrorAnswer {
    /// A sentence for a person: what was refused, why, what to do.
    pub error: String,
}
