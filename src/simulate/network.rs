//! The way between a node and the authority: for each endpoint and direction it delays, loses, duplicates, or is cut.

use super::client::Exchange;
use super::noise::Delay;
use super::phrase::HostIx;
use super::world::{Happening, World};
use crate::protocol::{RenewAnswer, RenewRequest};
use std::time::Duration;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Direction {
    Questions = 0,
    Answers = 1,
}

/// One endpoint's way, both directions.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Link {
    pub cut: [bool; 2],
    /// How often it was cut: what was under way then is lost.
    pub cuts: [u32; 2],
    pub delay: [Duration; 2],
    /// One in so many is lost, or comes twice; zero: none.
    pub lose: u64,
    pub duplicate: u64,
}

impl Link {
    pub fn cut(&mut self, way: Direction) {
        self.cut[way as usize] = true;
        self.cuts[way as usize] += 1;
    }

    /// As good as new; what was lost stays lost.
    pub fn heal(&mut self) {
        *self = Link { cuts: self.cuts, ..Link::default() };
    }
}

impl World<'_> {
    /// The delays of the copies of one message that get through.
    fn ways(&mut self, host: HostIx, endpoint: usize, way: Direction) -> Vec<Duration> {
        let link = self.hosts[host.0].links[endpoint];
        if link.cut[way as usize] || (link.lose > 0 && self.noise.every(host, link.lose)) {
            return Vec::new();
        }
        let copies = 1 + usize::from(link.duplicate > 0 && self.noise.every(host, link.duplicate));
        (0..copies).map(|_| self.noise.span(host, Delay::Message) + link.delay[way as usize]).collect()
    }

    pub fn send_question(&mut self, host: HostIx, process: u32, exchange: Exchange, request: &RenewRequest) {
        let cuts = self.hosts[host.0].links[exchange.endpoint].cuts[Direction::Questions as usize];
        for delay in self.ways(host, exchange.endpoint, Direction::Questions) {
            self.after(delay, Happening::Question(host, process, exchange, cuts, Box::new(request.clone())));
        }
    }

    pub fn send_answer(&mut self, host: HostIx, process: u32, exchange: Exchange, answer: Result<RenewAnswer, String>) {
        let cuts = self.hosts[host.0].links[exchange.endpoint].cuts[Direction::Answers as usize];
        for delay in self.ways(host, exchange.endpoint, Direction::Answers) {
            let answer = answer.clone().map(Box::new);
            self.after(delay, Happening::Answer(host, process, exchange, cuts, answer));
        }
    }

    /// Whether what was sent after so many cuts still arrives.
    pub fn passes(&self, host: HostIx, endpoint: usize, way: Direction, cuts: u32) -> bool {
        self.hosts[host.0].links[endpoint].cuts[way as usize] == cuts
    }
}
