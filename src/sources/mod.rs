//! Where contact and claims come from: one trait, so that the guard does not know what kind of controller answers.

pub mod http;
pub mod native;

use crate::lease::event::Question;
use crate::lease::id::DomainId;
use crate::protocol::RenewAnswer;

/// One way to the controller. The guard gives each its own thread.
pub trait Source: Send {
    /// How messages name it.
    fn name(&self) -> &str;

    /// Asks, and waits at most until the question's own timeout has passed since it was sent.
    ///
    /// `Err` is a clause for people that names the source; it changes nothing but the status (rule 3).
    fn ask(&mut self, question: &Question) -> Result<RenewAnswer, String>;

    /// Waits for a hint that something changed: the domains to name in a question now. It may return early without
    /// one; it waits a minute at most.
    fn watch(&mut self) -> Result<Option<Vec<DomainId>>, String>;
}
