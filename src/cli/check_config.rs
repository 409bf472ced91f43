//! `leasehold check-config`: whether a file would be accepted, what it means, and what is wise to know about it.

use crate::config::{self, Config, HostCachedDisks, span};
use crate::lease::policy::Lapse;
use crate::lease::timing::{Profile, Watchdog};
use crate::protocol::Mode;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// Check a configuration file and say what it means
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The file
    #[arg(value_name = "PATH", default_value = config::PATH)]
    path: PathBuf,
}

/// Writes the verdict to `out`, a diagnosis to `err`.
///
/// Exit status: 0 good (warnings or none), 1 not.
///
/// # Errors
/// Only what writing to `out` or `err` gives.
pub fn run(args: &Args, out: &mut dyn Write, err: &mut dyn Write) -> io::Result<ExitCode> {
    let config = match Config::load(&args.path) {
        Ok(config) => config,
        Err(diagnosis) => {
            writeln!(err, "{diagnosis}")?;
            return Ok(ExitCode::FAILURE);
        }
    };
    // A file that the guard would refuse to start with is not good, whatever its syntax.
    for file in [&config.contact.token_file, &config.contact.ca_file].into_iter().flatten() {
        if let Err(sentence) = readable(file, config.contact.token_file.as_ref() == Some(file)) {
            writeln!(err, "{}: {sentence}", args.path.display())?;
            return Ok(ExitCode::FAILURE);
        }
    }
    writeln!(out, "{}: good", args.path.display())?;
    for line in summary(&config) {
        writeln!(out, "  {line}")?;
    }
    for warning in warnings(&config) {
        writeln!(out, "warning: {warning}")?;
    }
    Ok(ExitCode::SUCCESS)
}

fn readable(file: &Path, token: bool) -> Result<(), String> {
    if token {
        return config::read_token(file).map(|_| ()).map_err(|error| error.to_string());
    }
    std::fs::File::open(file).map(|_| ()).map_err(|cause| format!("cannot read {}: {cause}", file.display()))
}

/// What the file says, defaults included, one line each.
fn summary(config: &Config) -> Vec<String> {
    let timing = &config.timing;
    let profile = match config.profile {
        Profile::Default => "default",
        Profile::Fast => "fast",
    };
    let endpoints: Vec<String> = config.contact.endpoints.iter().map(ToString::to_string).collect();
    let mode = match config.mode {
        Mode::Enforce => "enforce: refuses starts and kills",
        Mode::Observe => "observe: decides and reports, refuses and kills nothing",
    };
    let disks = match config.host_cached_disks {
        HostCachedDisks::Allow => "in the host's page cache are let through",
        HostCachedDisks::Warn => "in the host's page cache are let through and named",
        HostCachedDisks::Refuse => "in the host's page cache are refused",
    };
    let lapse = match config.lapse {
        Lapse::Kill => "a domain whose lease runs out is killed",
        Lapse::Hold => "a domain whose lease runs out is held",
    };
    vec![
        format!("node      {}", config.node),
        format!("mode      {mode}"),
        format!(
            "timeline  profile {profile}: ttl {}, renewed every {}, polite destroy {} before the end",
            span::show(timing.ttl),
            span::show(timing.renew),
            span::show(timing.polite)
        ),
        format!("contact   native, {}", endpoints.join(", ")),
        format!("lapse     {lapse}; {} rules", config.rules.len()),
        format!("disks     {disks}"),
        format!("hook      refuses after {}", span::show(config.hook_deadline)),
    ]
}

/// What the file allows and its writer may not have meant.
fn warnings(config: &Config) -> Vec<String> {
    let mut warnings = Vec::new();
    let mut warn = |text: &str| warnings.push(text.to_owned());
    match config.watchdog_wanted() {
        Watchdog::None => warn(
            "no watchdog, so there is no bound: a node that is silent is never known to be safe, and only its receipts \
             let a domain be started elsewhere",
        ),
        Watchdog::Armed | Watchdog::Needs(_) => {
            if config.watchdog.allow_softdog {
                warn(
                    "allow_softdog: softdog is a timer of this very kernel. Where the kernel hangs or panics with \
                     panic=0 it never fires, and the bound does not hold",
                );
            }
            if !config.watchdog.last_resort {
                warn("last_resort = false: a watchdog that does not fire leaves the host running past its bound");
            }
        }
    }
    if let [only] = &config.contact.endpoints[..] {
        warn(&format!(
            "{only} is the only endpoint: when it or the network to it fails for {}, every domain here is killed",
            span::show(config.timing.ttl)
        ));
    }
    if config.contact.token_file.is_none() {
        warn("no token_file in [contact]: the controller has to let this node in without a token");
    }
    for endpoint in &config.contact.endpoints {
        if !endpoint.tls && !endpoint.is_loopback() {
            warn(&format!("{endpoint} is plain http: whoever is on the way reads the token and can end every lease"));
        }
        if endpoint.address().is_none() && endpoint.host != "localhost" {
            warn(&format!(
                "{endpoint} is a name: it is looked up in /etc/hosts alone, since leases must not end with a DNS \
                 server; write its address there, or here"
            ));
        }
    }
    if config.mode == Mode::Observe {
        warn("mode is observe: nothing is refused and nothing is killed");
    }
    if config.host_cached_disks == HostCachedDisks::Allow {
        warn(
            "disks in the host's page cache are let through in silence: a domain that has one is gone only when its \
             storage has taken all that it wrote, and never as long as that is away",
        );
    }
    if config.lapse == Lapse::Hold || config.rules.iter().any(|rule| rule.lapse == Lapse::Hold) {
        warn("domains with lapse \"hold\" outlive their leases: only a receipt frees them, whatever time has passed");
    }
    warnings
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(text: &str) -> (ExitCode, String, String) {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("leasehold.toml");
        std::fs::write(&path, text).unwrap();
        let (mut out, mut err) = (Vec::new(), Vec::new());
        let code = run(&Args { path }, &mut out, &mut err).unwrap();
        let text = |bytes| String::from_utf8(bytes).unwrap();
        (code, text(out), text(err))
    }

    #[test]
    fn a_good_file_is_summed_up_and_its_doubtful_choices_named() {
        let (code, out, err) = check(
            "node = 'n1'\nmode = 'observe'\n[contact]\nendpoints = ['http://ctl:7470']\nallow_plain_http = true\n\
             [lapse]\naction = 'hold'\n[admission]\nhost_cached_disks = 'allow'\n",
        );
        assert_eq!((code, err.as_str()), (ExitCode::SUCCESS, ""));
        assert!(out.lines().next().unwrap().ends_with("leasehold.toml: good"), "{out}");
        for expected in [
            "node      n1",
            "disks     in the host's page cache are let through",
            "are let through in silence",
            "profile default: ttl 15s, renewed every 3s",
            "warning: no watchdog, so there is no bound",
            "is the only endpoint",
            "no token_file",
            "is plain http",
            "looked up in /etc/hosts alone",
            "mode is observe",
            "outlive their leases",
        ] {
            assert!(out.contains(expected), "{expected} is not in:\n{out}");
        }
    }

    #[test]
    fn a_watchdog_that_may_not_do_its_work_is_warned_of() {
        let watchdog = "[watchdog]\ndevice='auto'\nallow_softdog=true\nlast_resort=false";
        let (_, out, _) = check(&format!("node='n1'\n{watchdog}\n[contact]\nendpoints=['https://10.0.0.1']\n"));
        assert!(out.contains("softdog is a timer of this very kernel") && out.contains("last_resort = false"), "{out}");
    }

    #[test]
    fn a_bad_file_gets_its_diagnosis_and_status_1() {
        let (code, out, err) = check("[contact]\nendpoint = ['https://a']\n");
        assert_eq!((code, out.as_str()), (ExitCode::FAILURE, ""));
        assert!(err.contains("leasehold.toml:2:1: unknown key 'endpoint'") && err.contains("^^^^^^^^"), "{err}");
    }

    #[test]
    fn a_token_that_cannot_be_read_is_no_good_file() {
        let (code, _, err) =
            check("node='n1'\n[contact]\nendpoints=['https://10.0.0.1']\ntoken_file='/nonexistent/token'\n");
        assert_eq!(code, ExitCode::FAILURE);
        assert!(err.contains("cannot read the token in /nonexistent/token"), "{err}");
    }
}
