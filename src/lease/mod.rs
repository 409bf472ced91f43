//! The lease core: fully deterministic, with no clock, no input or output, no thread and no global. Time comes in as
//! a value. The guard, the model checker and the simulator run exactly this code.

pub mod admission;
mod alarm;
mod answer;
mod arrival;
pub mod event;
pub mod fence;
pub mod fence_story;
pub mod gone;
pub mod guard;
mod hooks;
pub mod id;
mod ladder;
pub mod late_write;
pub mod ledger;
pub mod policy;
pub mod promise;
mod questions;
pub mod time;
pub mod timing;
pub mod view;

#[cfg(test)]
mod tests;
