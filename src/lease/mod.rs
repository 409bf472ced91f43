//! The lease core: fully deterministic, with no clock, no input or output, no thread and no global. Time comes in as
//! a value. The guard, the model checker and the simulator run exactly this code.

pub mod id;
pub mod time;
pub mod timing;
