//! A depth-first search of every state that a case can reach, without its own copy of any.
//!
//! Not an existing checker: a state here is the whole guard and the whole authority, some kilobytes, and what is wanted is
//! ten million of them in minutes. A depth-first search keeps only the states of its present path and 8 bytes of each
//! other (stateright's searches queue states); the cases are independent, so that each processor takes one at a time.

use std::collections::HashSet;
use std::hash::{BuildHasherDefault, DefaultHasher, Hash, Hasher};
use std::time::{Duration, Instant};

/// Something whose every next step can be listed.
pub trait Model: Clone + Hash {
    type Step: Copy;
    /// Everything that may happen next.
    fn steps(&self) -> Vec<Self::Step>;
    /// It happened. An error is a property that does not hold, as a sentence.
    fn take(&mut self, step: Self::Step) -> Result<(), String>;
    /// Called with one state in so many, for what costs more than a step.
    fn examine(&self) -> Result<(), String>;
}

/// What a search came to.
pub struct Found<S> {
    pub states: u64,
    pub deepest: usize,
    /// Nothing was left out.
    pub complete: bool,
    pub took: Duration,
    /// A property that does not hold, and the steps that led there.
    pub violation: Option<(String, Vec<S>)>,
}

/// One state in so many is examined.
const EXAMINED: u64 = 1024;

/// A fingerprint is a hash already. Two of ten million states have the same with a probability of 3·10⁻⁶.
#[derive(Default)]
struct Same(u64);

impl Hasher for Same {
    fn write(&mut self, _: &[u8]) {
        unreachable!("fingerprints are u64")
    }
    fn write_u64(&mut self, fingerprint: u64) {
        self.0 = fingerprint;
    }
    fn finish(&self) -> u64 {
        self.0
    }
}

fn fingerprint(model: &impl Hash) -> u64 {
    let mut hasher = DefaultHasher::new();
    model.hash(&mut hasher);
    hasher.finish()
}

/// Visits every state reachable from `initial`, or `most` of them.
pub fn search<M: Model>(initial: &M, most: u64) -> Found<M::Step> {
    let began = Instant::now();
    let mut seen: HashSet<u64, BuildHasherDefault<Same>> = HashSet::default();
    seen.insert(fingerprint(initial));
    let mut path: Vec<(M, Vec<M::Step>)> = vec![(initial.clone(), initial.steps())];
    let mut taken: Vec<M::Step> = Vec::new();
    let mut found = Found { states: 1, deepest: 0, complete: true, took: Duration::ZERO, violation: None };
    while let Some((state, left)) = path.last_mut() {
        let Some(step) = left.pop() else {
            path.pop();
            taken.pop();
            continue;
        };
        let mut next = state.clone();
        taken.push(step);
        let mut held = next.take(step);
        let print = fingerprint(&next);
        if held.is_ok() && !seen.insert(print) {
            taken.pop();
            continue;
        }
        found.states += 1;
        found.deepest = found.deepest.max(taken.len());
        if held.is_ok() && found.states.is_multiple_of(EXAMINED) {
            held = next.examine();
        }
        if let Err(broken) = held {
            found.violation = Some((broken, taken));
            break;
        }
        if found.states >= most {
            found.complete = false;
            break;
        }
        let mut steps = next.steps();
        // What is visited before the limit is no one kind of step: in each state another one comes first.
        let turn = print as usize % steps.len().max(1);
        steps.rotate_left(turn);
        path.push((next, steps));
    }
    found.took = began.elapsed();
    found
}

/// A shorter way to some violation, as far as `most` states of a breadth-first search show one.
pub fn shortest<M: Model>(initial: &M, most: usize) -> Option<(String, Vec<M::Step>)> {
    let mut seen: HashSet<u64, BuildHasherDefault<Same>> = HashSet::default();
    let mut level: Vec<(M, Vec<M::Step>)> = vec![(initial.clone(), vec![])];
    while !level.is_empty() && seen.len() < most {
        let mut next_level = Vec::new();
        for (state, taken) in level {
            for step in state.steps() {
                let mut next = state.clone();
                let mut steps = taken.clone();
                steps.push(step);
                if let Err(broken) = next.take(step) {
                    return Some((broken, steps));
                }
                if seen.insert(fingerprint(&next)) {
                    next_level.push((next, steps));
                }
            }
        }
        level = next_level;
    }
    None
}
