//! Where contact and claims come from.

pub mod http;
