//! The reference authority. Everything is in the library; this parses the command line.

use clap::Parser;
use leasehold::authority::server::{Options, log_last, run};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;

/// Decides which node owns which domain, and from when a revoked copy counts as gone.
///
/// Every grant and revocation is on disk before it is answered. One process answers at a time: a second one on the
/// same data is refused. Stop it with SIGTERM; a restart is safe at any instant and lets every bound begin anew.
#[derive(Parser)]
#[command(name = "leasehold-authority", version)]
struct Args {
    /// Address and port to listen on; repeat it to serve several networks.
    #[arg(long, value_name = "ADDR:PORT", default_value = "127.0.0.1:7470")]
    listen: Vec<SocketAddr>,
    /// Directory of the store; made if it is not there.
    #[arg(long, value_name = "DIR")]
    data: PathBuf,
    /// File with a line "NODE TOKEN" for every node. A token speaks for its node only.
    #[arg(long, value_name = "FILE")]
    node_tokens: Option<PathBuf>,
    /// File with the token of the controllers.
    #[arg(long, value_name = "FILE")]
    controller_token_file: Option<PathBuf>,
    /// Certificate chain in PEM.
    #[arg(long, value_name = "FILE", requires = "tls_key")]
    tls_cert: Option<PathBuf>,
    /// Private key of the certificate in PEM.
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    tls_key: Option<PathBuf>,
    /// Listen without TLS beyond this host: whoever sees that network sees the tokens.
    #[arg(long)]
    insecure_plain_http: bool,
}

fn main() -> ExitCode {
    let args = Args::parse();
    let options = Options {
        listen: args.listen,
        data: args.data,
        node_tokens: args.node_tokens,
        controller_token_file: args.controller_token_file,
        tls: args.tls_cert.zip(args.tls_key),
        insecure_plain_http: args.insecure_plain_http,
    };
    match run(&options) {
        Ok(()) => ExitCode::SUCCESS,
        Err(sentence) => {
            log_last(sentence);
            ExitCode::FAILURE
        }
    }
}
