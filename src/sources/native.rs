//! The native protocol from the node's side. A list that an answered question carried in full goes as its digest
//! from then on, and claims that did not change come back as their tag, so that a quiet node costs the same for one
//! domain as for a thousand.

use super::Source;
use super::http::Client;
use crate::lease::event::Question;
use crate::lease::id::{BootId, DomainId, Incarnation, NodeId};
use crate::node::clock;
use crate::protocol::{
    Claims, Machine, Mode, NamedDomain, QuestionList, RenewAnswer, RenewRequest, VERSION, WatchAnswer,
};
use std::time::Duration;

/// The authority holds a watch for 30 s at most.
const WATCH_TIMEOUT: Duration = Duration::from_secs(40);

/// What every question of one guard process says alike.
#[derive(Debug, Clone)]
pub struct NodeFacts {
    /// This node.
    pub node: NodeId,
    /// This boot.
    pub boot: BootId,
    /// This machine.
    pub machine: Machine,
    /// This guard process.
    pub incarnation: Incarnation,
    /// Whether it acts.
    pub mode: Mode,
    /// The ttl it wants.
    pub ttl: Duration,
}

/// One endpoint's side of the exchange, without the network: what is sent for a question, and what an answer to it is
/// worth.
#[derive(Debug)]
pub struct Conversation {
    memory: Memory,
    facts: NodeFacts,
}

/// What an answer came to.
#[derive(Debug)]
pub enum Heard {
    /// The answer, complete.
    Answer(RenewAnswer),
    /// The same question is to be sent again, with its list in full.
    InFull(RenewRequest),
}

impl Conversation {
    /// Nothing was asked yet.
    pub fn new(facts: NodeFacts) -> Conversation {
        Conversation { memory: Memory::default(), facts }
    }

    /// What is sent first for a question.
    pub fn ask(&self, question: &Question) -> RenewRequest {
        self.request(question, self.memory.list(&question.domains, false))
    }

    /// Takes the answer to the request that was sent for a question.
    ///
    /// # Errors
    /// It is of no use; why, as a clause (rule 3).
    pub fn hear(&mut self, question: &Question, sent: &RenewRequest, mut answer: RenewAnswer) -> Result<Heard, String> {
        if answer.list_wanted && sent.list.domains.is_none() {
            self.memory = Memory::default();
            return Ok(Heard::InFull(self.request(question, self.memory.list(&question.domains, true))));
        }
        self.memory.learn(&question.domains, &mut answer)?;
        Ok(Heard::Answer(answer))
    }

    fn request(&self, question: &Question, list: QuestionList) -> RenewRequest {
        let millis = |span: Duration| u64::try_from(span.as_millis()).unwrap_or(u64::MAX);
        RenewRequest {
            protocol: VERSION,
            incarnation: self.facts.incarnation,
            question: question.number,
            boot_id: self.facts.boot,
            machine: self.facts.machine.clone(),
            uptime_ms: question.sent.as_nanos() / 1_000_000,
            ttl_ms: millis(self.facts.ttl),
            bound_ms: question.bound.map(millis),
            mode: self.facts.mode,
            list,
            receipts: question.receipts.clone(),
        }
    }
}

/// One endpoint of an authority.
pub struct Native {
    client: Client,
    conversation: Conversation,
    watched: u64,
}

impl Native {
    /// Speaks to the authority that the client reaches.
    pub fn new(client: Client, facts: NodeFacts) -> Native {
        Native { client, conversation: Conversation::new(facts), watched: 0 }
    }

    fn path(&self, what: &str) -> String {
        format!("/v1/nodes/{}/{what}", self.conversation.facts.node)
    }

    fn post(&self, question: &Question, request: &RenewRequest) -> Result<RenewAnswer, String> {
        let left = (question.sent + question.timeout).left(clock::now());
        if left.is_zero() {
            return Err("no time is left for it".into());
        }
        self.client.json("POST", &self.path("renew"), Some(request), left).map_err(|error| error.to_string())
    }
}

impl Source for Native {
    fn name(&self) -> &str {
        self.client.url()
    }

    fn ask(&mut self, question: &Question) -> Result<RenewAnswer, String> {
        let mut request = self.conversation.ask(question);
        loop {
            let answer = self.post(question, &request)?;
            // At most twice: a list in full is never asked for again.
            match self.conversation.hear(question, &request, answer)? {
                Heard::Answer(answer) => return Ok(answer),
                Heard::InFull(again) => request = again,
            }
        }
    }

    fn watch(&mut self) -> Result<Option<Vec<DomainId>>, String> {
        let path = self.path(&format!("watch?seen={}", self.watched));
        let answer: WatchAnswer =
            self.client.json("GET", &path, None, WATCH_TIMEOUT).map_err(|error| error.to_string())?;
        let changed = answer.version != self.watched;
        self.watched = answer.version;
        Ok(changed.then_some(answer.name_next))
    }
}

/// What the authority and this endpoint both know from an answered question.
#[derive(Debug, Default)]
struct Memory {
    /// The digest of the last list answered.
    digest: String,
    /// The claims for that list.
    claims: Claims,
}

impl Memory {
    fn list(&self, domains: &[NamedDomain], in_full: bool) -> QuestionList {
        let digest = digest(domains);
        let known = !in_full && digest == self.digest;
        QuestionList {
            digest,
            domains: (!known).then(|| domains.to_vec()),
            claims_tag: known.then(|| self.claims.tag.clone()),
        }
    }

    /// Completes an answer that said "unchanged", and remembers it.
    fn learn(&mut self, domains: &[NamedDomain], answer: &mut RenewAnswer) -> Result<(), String> {
        if answer.list_wanted {
            return Err("the authority does not take the list of domains".into());
        }
        if answer.claims.domains.is_none() {
            if answer.claims.tag != self.claims.tag || self.digest != digest(domains) {
                *self = Memory::default();
                return Err("the authority called claims unchanged that this node does not have".into());
            }
            answer.claims.domains.clone_from(&self.claims.domains);
        }
        // In conflict or fenced, nothing is to be remembered as agreed.
        self.digest = if answer.ttl_ms > 0 { digest(domains) } else { String::new() };
        self.claims = answer.claims.clone();
        Ok(())
    }
}

/// SHA-256 of the list as it would be sent.
fn digest(domains: &[NamedDomain]) -> String {
    let bytes = serde_json::to_vec(domains).expect("a list of domains is plain data");
    let hash = ring::digest::digest(&ring::digest::SHA256, &bytes);
    let digits = hash.as_ref().iter().flat_map(|byte| [byte >> 4, byte & 15]);
    digits.filter_map(|digit| char::from_digit(digit.into(), 16)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lease::id::{Epoch, QuestionNumber};
    use crate::protocol::{ClaimEntry, ClaimKind, NamedState};

    fn named(state: NamedState) -> Vec<NamedDomain> {
        let domain = DomainId::from_bytes([1; 16]);
        vec![NamedDomain { domain, name: "web".into(), epoch: Some(Epoch(1)), state, held_on_lapse: false }]
    }

    fn answer(tag: &str, domains: Option<Vec<ClaimEntry>>) -> RenewAnswer {
        RenewAnswer {
            protocol: VERSION,
            node: "n1".parse().unwrap(),
            incarnation: Incarnation::from_bytes([1; 16]),
            question: QuestionNumber(1),
            ttl_ms: 15_000,
            authority: Incarnation::from_bytes([2; 16]),
            clock_ms: 0,
            list_wanted: false,
            claims: Claims { tag: tag.into(), domains },
            name_next: vec![],
            bound_ms: None,
            conflict: None,
        }
    }

    fn allow() -> Vec<ClaimEntry> {
        let domain = DomainId::from_bytes([1; 16]);
        let (owner, since, reason) = (None, None, None);
        vec![ClaimEntry { domain, claim: ClaimKind::Allow, epoch: Epoch(1), owner, since, reason }]
    }

    #[test]
    fn an_answered_list_goes_as_its_digest_until_it_changes() {
        let mut memory = Memory::default();
        assert!(memory.list(&named(NamedState::Running), false).domains.is_some());
        memory.learn(&named(NamedState::Running), &mut answer("t1", Some(allow()))).unwrap();
        let quiet = memory.list(&named(NamedState::Running), false);
        assert_eq!((quiet.domains, quiet.claims_tag.as_deref()), (None, Some("t1")));
        assert!(memory.list(&named(NamedState::Dying), false).domains.is_some());
        assert!(memory.list(&named(NamedState::Running), true).domains.is_some());
    }

    #[test]
    fn unchanged_claims_are_those_of_the_same_list_and_tag_and_nothing_else() {
        let mut memory = Memory::default();
        memory.learn(&named(NamedState::Running), &mut answer("t1", Some(allow()))).unwrap();
        let mut quiet = answer("t1", None);
        memory.learn(&named(NamedState::Running), &mut quiet).unwrap();
        assert_eq!(quiet.claims.domains, Some(allow()));
        assert!(memory.learn(&named(NamedState::Running), &mut answer("t2", None)).is_err());
        assert!(
            memory.learn(&named(NamedState::Running), &mut answer("t1", None)).is_err(),
            "and then nothing is known"
        );
    }
}
