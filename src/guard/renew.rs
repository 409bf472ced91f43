//! The only threads that touch the network: one for each endpoint, asked side by side, and one for each one's watch.

use super::core::Input;
use super::record::Record;
use crate::lease::event::{Event, Question, Severity};
use crate::lease::id::QuestionNumber;
use crate::sources::Source;
use std::collections::BTreeMap;
use std::sync::mpsc::Sender;
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

/// After a failed watch, the next one waits this long; a watch is a hint, so nothing depends on it.
const WATCH_PAUSE: Duration = Duration::from_secs(1);

/// Questions that some endpoints failed to answer and others may yet.
const MOST_OPEN: usize = 16;

/// Sends questions to every endpoint.
pub struct Renewer {
    endpoints: Vec<Arc<Mailbox>>,
    failures: Arc<Failures>,
}

/// One endpoint: a held watch must not keep a question waiting, so each has a connection of its own.
pub struct Endpoint {
    /// Is asked.
    pub asking: Box<dyn Source>,
    /// Is watched.
    pub watching: Box<dyn Source>,
}

/// The next question of one endpoint. A newer one replaces one that waits: only the newest answer counts.
#[derive(Default)]
struct Mailbox {
    question: Mutex<Option<Question>>,
    arrived: Condvar,
}

/// Which endpoints failed to answer which question, until all have.
struct Failures {
    endpoints: usize,
    by_question: Mutex<BTreeMap<QuestionNumber, Vec<String>>>,
    core: Sender<Input>,
}

impl Renewer {
    /// Starts two threads for each endpoint.
    pub fn start(endpoints: Vec<Endpoint>, core: &Sender<Input>, record: &Record) -> std::io::Result<Renewer> {
        let failures =
            Arc::new(Failures { endpoints: endpoints.len(), by_question: Mutex::default(), core: core.clone() });
        let mut mailboxes = Vec::new();
        for Endpoint { asking, watching } in endpoints {
            let mailbox = Arc::new(Mailbox::default());
            mailboxes.push(mailbox.clone());
            let (answers, failures, record) = (core.clone(), failures.clone(), record.clone());
            spawn("renew", move || ask_for_ever(asking, &mailbox, &answers, &failures, &record))?;
            let hints = core.clone();
            spawn("watch", move || watch_for_ever(watching, &hints))?;
        }
        Ok(Renewer { endpoints: mailboxes, failures })
    }

    /// Never blocks.
    pub fn ask(&self, question: Question) {
        for mailbox in &self.endpoints {
            let mut slot = mailbox.question.lock().expect("no holder panics");
            let replaced = slot.replace(question.clone());
            drop(slot);
            mailbox.arrived.notify_one();
            if let Some(replaced) = replaced {
                self.failures.add(replaced.number, "an endpoint is still busy with an earlier question".into());
            }
        }
    }
}

impl Mailbox {
    fn wait(&self) -> Question {
        let mut slot = self.question.lock().expect("no holder panics");
        loop {
            match slot.take() {
                Some(question) => return question,
                None => slot = self.arrived.wait(slot).expect("no holder panics"),
            }
        }
    }
}

impl Failures {
    fn add(&self, question: QuestionNumber, why: String) {
        let mut by_question = self.by_question.lock().expect("no holder panics");
        let whys = by_question.entry(question).or_default();
        whys.push(why);
        if whys.len() < self.endpoints {
            // Another endpoint may have answered this one, and then it is never complete.
            while by_question.len() > MOST_OPEN {
                by_question.pop_first();
            }
        } else {
            let why = whys.join("; ");
            by_question.retain(|&number, _| number > question);
            tell(&self.core, Event::Unanswered { question, why });
        }
    }
}

fn ask_for_ever(
    mut source: Box<dyn Source>,
    mailbox: &Mailbox,
    core: &Sender<Input>,
    failures: &Failures,
    record: &Record,
) {
    // Told once when it changes, not at every interval of an outage.
    let mut last_failure: Option<String> = None;
    loop {
        let question = mailbox.wait();
        match source.ask(&question) {
            Ok(answer) => {
                tell(core, Event::Answered(Box::new(answer)));
                if last_failure.take().is_some() {
                    record.say(Severity::Info, format!("{} answers again", source.name()));
                }
            }
            Err(why) => {
                if last_failure.as_ref() != Some(&why) {
                    record.say(Severity::Warning, format!("no answer from the authority: {why}"));
                    last_failure = Some(why.clone());
                }
                failures.add(question.number, why);
            }
        }
    }
}

fn watch_for_ever(mut source: Box<dyn Source>, core: &Sender<Input>) {
    loop {
        match source.watch() {
            Ok(Some(domains)) => tell(core, Event::Hinted(domains)),
            Ok(None) => {}
            Err(_) => std::thread::sleep(WATCH_PAUSE),
        }
    }
}

fn tell(core: &Sender<Input>, event: Event) {
    core.send(Input::Event(event)).expect("the core lives as long as the process");
}

fn spawn(name: &str, run: impl FnOnce() + Send + 'static) -> std::io::Result<()> {
    std::thread::Builder::new().name(name.into()).stack_size(256 << 10).spawn(run).map(drop)
}
