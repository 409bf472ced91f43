//! What leaves, with a ledger that is written and one that cannot be.

use super::*;
use crate::guard::renew::Endpoint;
use crate::lease::event::Notice;
use crate::lease::id::{DomainId, Epoch, Incarnation, QuestionNumber};
use crate::lease::time::BootTime;
use crate::protocol::{Receipt, RenewAnswer};
use crate::sources::Source;
use std::sync::mpsc::sync_channel;
use std::time::Duration;

const PATIENCE: Duration = Duration::from_secs(10);

/// An endpoint that passes on what it is asked, and answers nothing.
struct Wire(Sender<Question>);

impl Source for Wire {
    fn name(&self) -> &str {
        "a test"
    }

    fn ask(&mut self, question: &Question) -> Result<RenewAnswer, String> {
        let _ = self.0.send(question.clone());
        Err("it is not answered".into())
    }

    fn watch(&mut self) -> Result<Option<Vec<DomainId>>, String> {
        Err("nothing to watch".into())
    }
}

struct Desk {
    outbox: Outbox,
    asked: Receiver<Question>,
    core: Receiver<Input>,
    waiting: Waiting,
    told: Receiver<Notice>,
    directory: tempfile::TempDir,
}

impl Desk {
    /// Its ledger's directory is not there yet.
    fn new() -> Desk {
        let (wire, asked) = channel();
        let (inputs, core) = channel();
        let (record, told) = Record::for_tests();
        let endpoint = || Box::new(Wire(wire.clone()));
        let endpoints = vec![Endpoint { asking: endpoint(), watching: endpoint() }];
        let renewer = Renewer::start(endpoints, &inputs, &record).unwrap();
        let (waiting, directory) = (Waiting::default(), tempfile::tempdir().unwrap());
        let ledger = directory.path().join("run/ledger.json");
        let outbox = Outbox::start(ledger, renewer, waiting.clone(), inputs, record).unwrap();
        Desk { outbox, asked, core, waiting, told, directory }
    }

    fn asks(&self, ledger: Option<&str>, number: u64) -> Question {
        self.outbox.send(ledger.map(|text| text.into()), vec![Outward::Ask(question(number))]);
        self.asked.recv_timeout(PATIENCE).unwrap()
    }

    /// Why the verdict on a hook may not be relied on.
    fn replies(&self, ledger: Option<&str>) -> Option<String> {
        let (to, verdict) = sync_channel(1);
        self.waiting.enter(HookId(1), to);
        self.outbox.send(ledger.map(|text| text.into()), vec![Outward::Reply(HookId(1), Verdict::Allow)]);
        verdict.recv_timeout(PATIENCE).unwrap().unwritten
    }
}

/// With a receipt.
fn question(number: u64) -> Question {
    let receipt = Receipt {
        domain: DomainId::from_bytes([1; 16]),
        epoch: Epoch(2),
        denied_incarnation: Incarnation::from_bytes([9; 16]),
        denied_question: QuestionNumber(1),
    };
    Question {
        number: QuestionNumber(number),
        sent: BootTime::ZERO,
        bound: None,
        timeout: Duration::from_secs(3),
        domains: vec![],
        receipts: vec![receipt],
    }
}

#[test]
fn a_receipt_whose_denial_cannot_be_written_is_withheld_and_the_core_hears_of_it_before_any_answer() {
    let desk = Desk::new();
    assert_eq!(desk.asks(Some("{}"), 2).receipts, [], "the question itself renews what runs");
    let first = desk.core.recv_timeout(PATIENCE).unwrap();
    assert!(matches!(first, Input::Event(Event::ReceiptsWithheld(QuestionNumber(2)))));
    let said = desk.told.recv_timeout(PATIENCE).unwrap().text;
    assert!(said.contains("No start is let through and no receipt is sent until it can be written"), "{said}");
}

#[test]
fn after_a_failed_write_nothing_that_relies_on_the_ledger_leaves_until_one_succeeds() {
    let desk = Desk::new();
    assert!(desk.replies(Some("{}")).unwrap().contains("run/ledger.json"), "an admission nobody would remember");
    assert!(desk.replies(None).is_some(), "what is not written yet may be what this relies on");
    assert_eq!(desk.asks(None, 2).receipts, []);
    std::fs::create_dir(desk.directory.path().join("run")).unwrap();
    assert_eq!(desk.asks(Some("{}"), 3).receipts, question(3).receipts);
    assert_eq!(desk.replies(None), None);
}

#[test]
fn turns_that_wait_go_together_and_with_the_newest_ledger_there_is() {
    let desk = Desk::new();
    let path = desk.directory.path().join("ledger.json");
    let (turns, waiting) = channel();
    for ledger in [Some("old"), Some("new"), None] {
        turns.send((ledger.map(|text| text.into()), vec![])).unwrap();
    }
    drop(turns);
    let (inputs, _core) = channel();
    let (record, _told) = Record::for_tests();
    let renewer = Renewer::start(vec![], &inputs, &record).unwrap();
    run(&waiting, &path, &renewer, &Waiting::default(), &inputs, &record);
    assert_eq!(std::fs::read_to_string(path).unwrap(), "new");
}
