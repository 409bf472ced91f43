//! A guard's questions to its endpoints, as its renew threads ask them.

use super::phrase::HostIx;
use super::world::{Happening, World};
use crate::lease::event::{Event, Question};
use crate::lease::id::QuestionNumber;
use crate::protocol::{RenewAnswer, RenewRequest};
use crate::sources::native::{Conversation, Heard};

/// One request to one endpoint and what comes back for it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Exchange {
    pub endpoint: usize,
    pub number: u32,
}

/// One endpoint's thread: one question at a time, and the newest waits.
pub(super) struct Client {
    pub conversation: Conversation,
    pub busy: Option<(Question, RenewRequest, u32)>,
    pub waiting: Option<Question>,
}

impl World<'_> {
    pub fn ask(&mut self, host: HostIx, endpoint: usize, question: Question) {
        let Some(process) = &mut self.hosts[host.0].guard else { return };
        let client = &mut process.clients[endpoint];
        if client.busy.is_none() {
            let request = client.conversation.ask(&question);
            return self.send(host, endpoint, question, request);
        }
        if let Some(replaced) = client.waiting.replace(question) {
            self.unanswered(host, replaced.number, "an endpoint is still busy with an earlier question");
        }
    }

    fn send(&mut self, host: HostIx, endpoint: usize, question: Question, request: RenewRequest) {
        let clock = self.hosts[host.0].clock(self.now);
        let until = question.sent + question.timeout;
        if until <= clock {
            return self.unanswered(host, question.number, "no time is left for it");
        }
        let deadline = self.hosts[host.0].real(until);
        let Some(process) = &mut self.hosts[host.0].guard else { return };
        process.exchanges += 1;
        let exchange = Exchange { endpoint, number: process.exchanges };
        let number = process.number;
        process.clients[endpoint].busy = Some((question, request.clone(), exchange.number));
        self.send_question(host, number, exchange, &request);
        self.at(deadline, Happening::Overdue(host, number, exchange));
    }

    pub fn answer(&mut self, host: HostIx, number: u32, exchange: Exchange, answer: Result<Box<RenewAnswer>, String>) {
        if self.hosts[host.0].guard.as_ref().is_some_and(|process| process.number == number && process.stopped) {
            let cuts = self.hosts[host.0].links[exchange.endpoint].cuts[super::network::Direction::Answers as usize];
            self.process(host, number, || Happening::Answer(host, number, exchange, cuts, answer));
            return;
        }
        let Some(process) = self.hosts[host.0].guard.as_mut().filter(|process| process.number == number) else {
            return;
        };
        let client = &mut process.clients[exchange.endpoint];
        let Some((question, request, _)) = client.busy.take_if(|(.., busy)| *busy == exchange.number) else { return };
        match answer.and_then(|answer| client.conversation.hear(&question, &request, *answer)) {
            Ok(Heard::Answer(answer)) => self.event(host, Event::Answered(Box::new(answer))),
            Ok(Heard::InFull(again)) => return self.send(host, exchange.endpoint, question, again),
            Err(why) => self.unanswered(host, question.number, &why),
        }
        self.next_question(host, exchange.endpoint);
    }

    pub fn overdue(&mut self, host: HostIx, number: u32, exchange: Exchange) {
        let Some(process) = self.process(host, number, || Happening::Overdue(host, number, exchange)) else { return };
        let client = &mut process.clients[exchange.endpoint];
        let Some((question, ..)) = client.busy.take_if(|(.., busy)| *busy == exchange.number) else { return };
        self.unanswered(host, question.number, "no answer in time");
        self.next_question(host, exchange.endpoint);
    }

    fn next_question(&mut self, host: HostIx, endpoint: usize) {
        let Some(process) = &mut self.hosts[host.0].guard else { return };
        let client = &mut process.clients[endpoint];
        if client.busy.is_none()
            && let Some(question) = client.waiting.take()
        {
            let request = client.conversation.ask(&question);
            self.send(host, endpoint, question, request);
        }
    }

    /// The core hears of it when every endpoint has failed.
    fn unanswered(&mut self, host: HostIx, question: QuestionNumber, why: &str) {
        let endpoints = self.setup.endpoints;
        let Some(process) = &mut self.hosts[host.0].guard else { return };
        let failed = process.failures.entry(question).or_default();
        *failed += 1;
        if *failed >= endpoints {
            process.failures.retain(|&number, _| number > question);
            self.event(host, Event::Unanswered { question, why: why.to_owned() });
        }
    }
}
