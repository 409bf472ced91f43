//! The authority's process: one thread that owns the book and the store, and HTTP around it.

mod driver;
mod http;
mod net;
mod tokens;

use super::store::Store;
use crate::lease::time::BootTime;
use crate::node::{clock, host};
use std::net::SocketAddr;
use std::path::PathBuf;

pub use driver::log_last;

/// How a server is set up.
#[derive(Debug, Clone)]
pub struct Options {
    /// The addresses to listen on: one process, several networks.
    pub listen: Vec<SocketAddr>,
    /// The directory of the store.
    pub data: PathBuf,
    /// Lines `NODE TOKEN`.
    pub node_tokens: Option<PathBuf>,
    /// The one token of controllers.
    pub controller_token_file: Option<PathBuf>,
    /// PEM files of the certificate chain and its key.
    pub tls: Option<(PathBuf, PathBuf)>,
    /// The administrator's word that these networks may see tokens.
    pub insecure_plain_http: bool,
}

/// Runs until SIGTERM or SIGINT.
///
/// # Errors
/// A sentence: what is wrong with the options, the files they name, the store or the addresses.
pub fn run(options: &Options) -> Result<(), String> {
    check(options)?;
    let tokens = tokens::Tokens::read(options.node_tokens.as_deref(), options.controller_token_file.as_deref())?;
    let tls = options.tls.as_ref().map(|(cert, key)| net::tls(cert, key)).transpose()?;
    let boot = host::boot_id().ok();
    let (store, loaded) = Store::open(&options.data, boot).map_err(|e| e.to_string())?;
    let now = clock::now();
    // Another boot of this machine: whatever was heard before, it was heard before this boot began.
    let heard_before =
        if boot.is_some() && loaded.boot.is_some_and(|old| Some(old) != boot) { BootTime::ZERO } else { now };
    let authority = host::incarnation();
    let book = super::book::Book::open(loaded.durable, authority, now, heard_before);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|e| format!("cannot start the network: {e}"))?;
    let (handle, driver) = driver::start(book, store)?;
    let served = runtime.block_on(net::serve(options, tls, http::router(handle.clone(), tokens)));
    runtime.shutdown_timeout(std::time::Duration::from_millis(100));
    handle.stop();
    driver.join().map_err(|_| "the authority's thread panicked".to_owned())?;
    served
}

fn check(options: &Options) -> Result<(), String> {
    let far: Vec<_> = options.listen.iter().filter(|address| !address.ip().is_loopback()).collect();
    let Some(address) = far.first() else { return Ok(()) };
    if options.node_tokens.is_none() || options.controller_token_file.is_none() {
        return Err(format!(
            "cannot listen on {address} without tokens: anybody there could take every domain away; give --node-tokens \
             and --controller-token-file, or listen on 127.0.0.1 only"
        ));
    }
    if options.tls.is_none() && !options.insecure_plain_http {
        return Err(format!(
            "cannot listen on {address} without TLS: tokens would cross the network in the clear; give --tls-cert and \
             --tls-key, or --insecure-plain-http if that network is trusted"
        ));
    }
    Ok(())
}
