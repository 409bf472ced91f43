#![allow(missing_docs)]
pub fn audit(_: &std::path::Path) -> Result<(), String> { Ok(()) }
