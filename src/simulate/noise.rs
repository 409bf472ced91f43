//! Every small delay, drawn from the scenario's seed by its place and its count alone, so that leaving out one fault
//! does not move all the others. Without a seed each is as usual.

use super::phrase::HostIx;
use std::time::Duration;

/// SplitMix64 (Steele, Lea, Flood 2014): small, seedable, good enough to draw schedules from.
#[derive(Debug, Clone)]
pub struct Random(pub u64);

impl Random {
    /// The next number.
    pub fn draw(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// One of 0 to `n`, `n` excluded.
    pub fn below(&mut self, n: u64) -> u64 {
        self.draw() % n
    }

    /// True once in `n` on average.
    pub fn one_in(&mut self, n: u64) -> bool {
        self.below(n) == 0
    }
}

/// What takes a little while.
#[derive(Debug, Clone, Copy)]
pub(super) enum Delay {
    /// A message's way.
    Message,
    /// A whole scan.
    Scan,
    /// From SIGKILL to the end.
    Death,
    /// From the end to its proof.
    Proof,
    /// libvirt's next step of a start.
    Step,
    /// libvirt's destroy.
    Destroy,
    /// libvirt's resume.
    Resume,
    /// The memory of a migration.
    Copying,
    /// An operator's next try.
    Retry,
    /// The feed thread's waking.
    Beat,
    /// A yes or no of the world.
    Luck,
}

const KINDS: usize = 11;

pub(super) struct Noise {
    seed: Option<u64>,
    counts: Vec<[u32; KINDS]>,
}

impl Noise {
    pub fn new(seed: Option<u64>, hosts: usize) -> Noise {
        Noise { seed, counts: vec![[0; KINDS]; hosts] }
    }

    fn draw(&mut self, host: HostIx, kind: Delay) -> Option<Random> {
        let seed = self.seed?;
        let count = &mut self.counts[host.0][kind as usize];
        *count += 1;
        let place = (host.0 as u64) << 48 | (kind as u64) << 40 | u64::from(*count);
        let mut random = Random(seed.rotate_left(17) ^ place.wrapping_mul(0xd6e8_feb8_6659_fd93));
        random.draw();
        Some(random)
    }

    /// How long it takes this time.
    pub fn span(&mut self, host: HostIx, kind: Delay) -> Duration {
        let us = |random: &mut Random, most_ms: u64| Duration::from_micros(random.below(most_ms * 1000 + 1));
        match self.draw(host, kind) {
            None => match kind {
                Delay::Message => Duration::from_micros(500),
                Delay::Scan | Delay::Proof | Delay::Step => Duration::from_millis(5),
                Delay::Death | Delay::Resume => Duration::from_millis(50),
                Delay::Destroy => Duration::from_millis(200),
                Delay::Copying | Delay::Retry => Duration::from_secs(1),
                Delay::Beat | Delay::Luck => Duration::ZERO,
            },
            Some(mut random) => match kind {
                Delay::Message => us(&mut random, 30),
                Delay::Scan | Delay::Proof => us(&mut random, 30),
                Delay::Death => us(&mut random, 400),
                // libvirtd may stall, and then act when the guard has long thought better of it.
                Delay::Step | Delay::Resume if random.one_in(4) => us(&mut random, 9000),
                Delay::Step | Delay::Resume => us(&mut random, 500),
                Delay::Destroy => us(&mut random, 2000),
                Delay::Copying => us(&mut random, 3000),
                Delay::Retry => Duration::from_millis(300) + us(&mut random, 2000),
                Delay::Beat if random.one_in(4) => us(&mut random, 200),
                Delay::Beat | Delay::Luck => Duration::ZERO,
            },
        }
    }

    /// True once in `n` on average; without a seed never.
    pub fn one_in(&mut self, host: HostIx, n: u64) -> bool {
        self.draw(host, Delay::Luck).is_some_and(|mut random| random.one_in(n))
    }

    /// True once in `n`: by the seed, or exactly every `n`th where there is none.
    pub fn every(&mut self, host: HostIx, n: u64) -> bool {
        match self.draw(host, Delay::Luck) {
            Some(mut random) => random.one_in(n.max(1)),
            None => {
                let count = &mut self.counts[host.0][Delay::Luck as usize];
                *count += 1;
                u64::from(*count).is_multiple_of(n.max(1))
            }
        }
    }
}
