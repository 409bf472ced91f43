//! The reference authority: who owns which domain, and from which instant nobody does.
//!
//! [`book`] decides and is pure: no clock, no input or output, no thread. Time comes in as a value, what must be
//! durable goes out as a value, and a driver commits the second before it lets the answer go. `store` keeps it on
//! disk, `server` is that driver and the HTTP around it.
//!
//! The book is in every build, since `leasehold simulate` runs it. What keeps and serves it is behind the feature.

pub mod book;
mod boots;
mod leases;
mod leaving;
pub mod records;
mod renew;
#[cfg(feature = "leasehold-authority")]
pub mod server;
mod state;
#[cfg(feature = "leasehold-authority")]
pub mod store;
mod view;

#[cfg(test)]
mod oracle;
#[cfg(test)]
mod tests;
