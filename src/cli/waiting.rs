//! Waiting for copies to be gone, and saying meanwhile what is waited for.

use super::Terminal;
use crate::lease::id::{DomainId, Epoch, NodeId};
use crate::note;
use crate::protocol::{Proof, ProofView, WaitAnswer, WaitedFor};
use crate::sources::http::HttpError;
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// A healthy node's receipt is here before anything is said.
const FIRST: Duration = Duration::from_millis(400);
/// Between lines about the same.
const SAY_AGAIN: Duration = Duration::from_secs(5);
/// Between questions while the authority does not answer.
const PAUSE: Duration = Duration::from_secs(1);

/// How a wait ended.
pub(super) enum Waited {
    /// Everything is proven gone.
    Safe,
    /// The time was over first; this is left.
    Over(Vec<WaitedFor>),
}

/// Asks until it is safe or the time is over. `before` is what was waited for at first, `proof` tells how a copy that is waited for no more was proven gone.
pub(super) fn wait(
    terminal: &mut Terminal<'_>,
    timeout: Duration,
    before: Vec<WaitedFor>,
    ask: impl Fn(Duration) -> Result<WaitAnswer, HttpError>,
    proof: impl Fn(DomainId) -> Option<ProofView>,
) -> Result<Waited, String> {
    let start = Instant::now();
    let by_share = |all: Vec<WaitedFor>| -> BTreeMap<(DomainId, Epoch), WaitedFor> {
        all.into_iter().map(|waited| ((waited.domain, waited.share.epoch), waited)).collect()
    };
    let mut known = by_share(before);
    let mut said = Said::default();
    let mut span = FIRST;
    loop {
        let left = timeout.saturating_sub(start.elapsed());
        let answer = match ask(span.min(left)) {
            Ok(answer) => answer,
            // It may be restarting, which loses nothing.
            Err(HttpError::NoAnswer { url, why }) if left > PAUSE => {
                said.line(terminal, &format!("no answer from {url} ({why}); asking again"));
                std::thread::sleep(PAUSE);
                continue;
            }
            Err(e) => return Err(e.to_string()),
        };
        span = PAUSE;
        let now = by_share(answer.leaving.clone());
        for ((domain, epoch), waited) in &known {
            if !now.contains_key(&(*domain, *epoch)) && known.len() <= 20 {
                let proof = proof(*domain).filter(|proof| proof.epoch == *epoch);
                note!(terminal, "{}", gone(waited, proof.as_ref(), start.elapsed()));
            }
        }
        if answer.safe {
            return Ok(Waited::Safe);
        }
        if start.elapsed() >= timeout {
            return Ok(Waited::Over(answer.leaving));
        }
        for line in lines(&answer.leaving) {
            said.line(terminal, &line);
        }
        known = now;
    }
}

/// What is left, for the end of a wait that was not long enough.
pub(super) fn left_over(leaving: &[WaitedFor]) -> String {
    format!("not proven gone in the time given: {}", lines(leaving).join("; "))
}

/// How a copy was proven gone: "receipt in 0.4 s".
pub(super) fn how(proof: &ProofView) -> String {
    let after = seconds(proof.after_ms);
    match proof.proof {
        Proof::Receipt => format!("receipt in {after}"),
        Proof::Bound => format!("its bound passed, {after} after the revocation"),
        Proof::Reboot => format!("it was booted again, {after} after the revocation"),
        Proof::NeverClaimed => "it never had the lease".to_owned(),
        Proof::Operator => format!("an operator said that it is off, {after} after the revocation"),
    }
}

fn gone(waited: &WaitedFor, proof: Option<&ProofView>, elapsed: Duration) -> String {
    let how = proof.map_or_else(|| format!("gone after {}", seconds(elapsed.as_millis() as u64)), how);
    format!("{}: {how} ({})", waited.share.node, title(waited.domain, &waited.name))
}

/// One line for each node that is waited for.
fn lines(leaving: &[WaitedFor]) -> Vec<String> {
    let mut nodes: BTreeMap<&NodeId, Vec<&WaitedFor>> = BTreeMap::new();
    for waited in leaving {
        nodes.entry(&waited.share.node).or_default().push(waited);
    }
    let line = |(node, all): (&NodeId, Vec<&WaitedFor>)| {
        let what = match all.as_slice() {
            [one] => title(one.domain, &one.name),
            many => format!("{} domains", many.len()),
        };
        let silent = all[0].share.node_silent_ms;
        let heard = match silent {
            Some(silent) if silent < 2000 => "answers".to_owned(),
            Some(silent) => format!("silent for {}", seconds(silent / 1000 * 1000)),
            None => "not heard since the authority started".to_owned(),
        };
        let bounds: Option<Vec<u64>> = all.iter().map(|waited| waited.share.safe_in_ms).collect();
        match bounds.and_then(|bounds| bounds.into_iter().max()) {
            Some(safe) => format!("{node} {heard}: {what} safe in {}", seconds(safe.div_ceil(1000) * 1000)),
            None => format!("{node} {heard} and promises no bound: waiting for its receipt of {what}"),
        }
    };
    nodes.into_iter().map(line).collect()
}

/// A domain as people know it: "web-1 (fc3be091-…)".
pub(super) fn title(domain: DomainId, name: &str) -> String {
    if name.is_empty() { domain.to_string() } else { format!("{} ({domain})", name.escape_debug()) }
}

/// "0.4 s", "17 s".
pub(super) fn seconds(ms: u64) -> String {
    if ms.is_multiple_of(1000) || ms >= 10_000 {
        format!("{} s", ms / 1000)
    } else {
        format!("{:.1} s", ms as f64 / 1e3)
    }
}

/// Says a line when its words change, and otherwise now and then.
#[derive(Default)]
struct Said {
    last: BTreeMap<String, Instant>,
}

impl Said {
    fn line(&mut self, terminal: &mut Terminal<'_>, line: &str) {
        let words: String = line.chars().filter(|c| !c.is_ascii_digit()).collect();
        let due = self.last.get(&words).is_none_or(|last| last.elapsed() >= SAY_AGAIN);
        if due {
            note!(terminal, "{line}");
            self.last.insert(words, Instant::now());
        }
    }
}
