#![allow(missing_docs)]
pub struct OnlyOne(nix::fcntl::Flock<std::fs::File>);
impl OnlyOne { pub fn take(path: &std::path::Path) -> std::io::Result<OnlyOne> { let f = std::fs::OpenOptions::new().create(true).truncate(false).write(true).open(path)?; nix::fcntl::Flock::lock(f, nix::fcntl::FlockArg::LockExclusiveNonblock).map(OnlyOne).map_err(|_| std::io::Error::other(format!("{}: held by pid ?", path.display()))) } }
