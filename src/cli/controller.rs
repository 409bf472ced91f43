//! The controller's side of the native protocol, as the commands use it.

use crate::lease::id::{DomainId, NodeId};
use crate::protocol::{GrantRequest, LeaseList, LeaseView, MoveRequest, NodeList, NodeView, WaitAnswer};
use crate::sources::http::{Ask, Client, ErasedJson, HttpError, Settings};
use clap::Args;
use serde::de::DeserializeOwned;
use std::fmt::Write;
use std::path::PathBuf;
use std::time::Duration;

/// Where an authority listens if nothing else is said.
pub const DEFAULT_ENDPOINT: &str = "http://127.0.0.1:7470";
/// The variable that names another one.
pub const ENDPOINT_VARIABLE: &str = "LEASEHOLD_ENDPOINT";
/// For an answer that is not held back.
const PATIENCE: Duration = Duration::from_secs(10);
/// The largest token file read, in bytes.
const MAX_TOKEN: usize = 4096;

/// How to reach the authority.
#[derive(Debug, Clone, Default, Args)]
pub struct Reach {
    /// The authority's URL [default: $LEASEHOLD_ENDPOINT, else http://127.0.0.1:7470]
    #[arg(long, value_name = "URL", global = true)]
    pub endpoint: Option<String>,
    /// File with the controllers' token
    #[arg(long, value_name = "FILE", global = true)]
    pub token_file: Option<PathBuf>,
    /// File with the certificates to trust, in PEM [default: the system's]
    #[arg(long, value_name = "FILE", global = true)]
    pub ca_file: Option<PathBuf>,
    /// Print JSON
    #[arg(long, global = true)]
    pub json: bool,
}

impl Reach {
    /// A controller that speaks to it.
    ///
    /// # Errors
    /// A sentence: a file cannot be read, or the URL is none.
    pub fn controller(&self) -> Result<Controller, String> {
        let token = match &self.token_file {
            None => None,
            Some(path) => {
                let text = std::fs::read_to_string(path);
                let text = text.map_err(|e| format!("cannot read the token in {}: {e}", path.display()))?;
                if text.len() > MAX_TOKEN || text.trim().is_empty() {
                    return Err(format!("{} does not hold one token", path.display()));
                }
                Some(text.trim().to_owned())
            }
        };
        let url = self.endpoint.clone().or_else(|| std::env::var(ENDPOINT_VARIABLE).ok());
        let url = url.unwrap_or_else(|| DEFAULT_ENDPOINT.to_owned());
        let client = Client::new(&Settings { url, token, ca_file: self.ca_file.clone() }).map_err(|e| e.to_string())?;
        Ok(Controller { client })
    }
}

/// Speaks for a controller. Every error is a sentence for a person.
#[derive(Debug, Clone)]
pub struct Controller {
    client: Client,
}

/// What may be done with a lease and needs no words.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LeaseAction {
    /// Revoke it everywhere.
    Revoke,
    /// The migration finished.
    Moved,
    /// The migration failed.
    Abort,
}

/// What may be done with a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NodeAction {
    /// Revoke everything on it and grant it nothing.
    Fence,
    /// End that.
    Unfence,
    /// Believe the machine that asks under its id now.
    Accept,
}

#[expect(clippy::missing_errors_doc, reason = "all alike: no answer, or the authority's refusal, see HttpError")]
impl Controller {
    /// The domain a person means: its uuid, or a name that exactly one has.
    pub fn domain(&self, text: &str) -> Result<DomainId, String> {
        if let Ok(domain) = text.parse() {
            return Ok(domain);
        }
        let found =
            self.call::<LeaseList>("GET", &format!("/v1/leases?limit=10&name={}", escaped(text)), None, PATIENCE);
        let found = found.map_err(|e| e.to_string())?.leases;
        match found.as_slice() {
            [one] => Ok(one.domain),
            [] => Err(format!("no lease is of a domain named '{}'; name its uuid", text.escape_debug())),
            many => {
                let all = many.iter().map(|lease| lease.domain.to_string()).collect::<Vec<_>>().join(", ");
                Err(format!("{} domains are named '{}': {all}; name a uuid", many.len(), text.escape_debug()))
            }
        }
    }

    /// One lease.
    pub fn lease(&self, domain: DomainId) -> Result<LeaseView, HttpError> {
        self.call("GET", &format!("/v1/leases/{domain}"), None, PATIENCE)
    }

    /// All leases.
    pub fn leases(&self) -> Result<Vec<LeaseView>, HttpError> {
        let mut all = Vec::new();
        let mut path = "/v1/leases".to_owned();
        loop {
            let list: LeaseList = self.call("GET", &path, None, PATIENCE)?;
            all.extend(list.leases);
            let Some(next) = list.next else { return Ok(all) };
            path = format!("/v1/leases?after={next}");
        }
    }

    /// Grants a domain, or opens its migration.
    pub fn grant(&self, domain: DomainId, request: &GrantRequest) -> Result<LeaseView, HttpError> {
        self.call("POST", &format!("/v1/leases/{domain}/grant"), Some(request), PATIENCE)
    }

    /// Moves a domain: it is granted to `to` when every copy is gone.
    pub fn move_to(&self, domain: DomainId, to: NodeId) -> Result<LeaseView, HttpError> {
        self.call("POST", &format!("/v1/leases/{domain}/move"), Some(&MoveRequest { to }), PATIENCE)
    }

    /// Revoke, moved, abort.
    pub fn act(&self, domain: DomainId, action: LeaseAction) -> Result<LeaseView, HttpError> {
        let verb = match action {
            LeaseAction::Revoke => "revoke",
            LeaseAction::Moved => "moved",
            LeaseAction::Abort => "abort",
        };
        self.call("POST", &format!("/v1/leases/{domain}/{verb}"), None, PATIENCE)
    }

    /// Forgets a domain; `None`: its record is gone, else it goes when every copy is.
    pub fn forget(&self, domain: DomainId) -> Result<Option<LeaseView>, HttpError> {
        let path = format!("/v1/leases/{domain}");
        let max_body = crate::protocol::MAX_BODY;
        let ask = Ask { method: "DELETE", path: &path, headers: &[], body: None, timeout: PATIENCE, max_body };
        let reply = self.client.send(&ask)?;
        if reply.status == 204 { Ok(None) } else { reply.json(self.client.url()).map(Some) }
    }

    /// Waits until no revoked copy of a domain is left, at most `span` (60 s).
    pub fn wait_lease(&self, domain: DomainId, span: Duration) -> Result<WaitAnswer, HttpError> {
        self.call("GET", &format!("/v1/leases/{domain}/wait?timeout_ms={}", span.as_millis()), None, span + PATIENCE)
    }

    /// Waits until no revoked copy on a node is left, at most `span` (60 s).
    pub fn wait_node(&self, node: &NodeId, span: Duration) -> Result<WaitAnswer, HttpError> {
        self.call("GET", &format!("/v1/nodes/{node}/wait?timeout_ms={}", span.as_millis()), None, span + PATIENCE)
    }

    /// One node.
    pub fn node(&self, node: &NodeId) -> Result<NodeView, HttpError> {
        self.call("GET", &format!("/v1/nodes/{node}"), None, PATIENCE)
    }

    /// All nodes.
    pub fn nodes(&self) -> Result<Vec<NodeView>, HttpError> {
        let mut all = Vec::new();
        let mut path = "/v1/nodes".to_owned();
        loop {
            let list: NodeList = self.call("GET", &path, None, PATIENCE)?;
            all.extend(list.nodes);
            let Some(next) = list.next else { return Ok(all) };
            path = format!("/v1/nodes?after={next}");
        }
    }

    /// Fence, unfence, accept.
    pub fn act_on_node(&self, node: &NodeId, action: NodeAction) -> Result<NodeView, HttpError> {
        let verb = match action {
            NodeAction::Fence => "fence",
            NodeAction::Unfence => "unfence",
            NodeAction::Accept => "accept",
        };
        // A whole node's revocation is one commit of up to ten thousand records.
        self.call("POST", &format!("/v1/nodes/{node}/{verb}"), None, 3 * PATIENCE)
    }

    fn call<T: DeserializeOwned>(
        &self,
        method: &str,
        path: &str,
        body: Option<&dyn ErasedJson>,
        timeout: Duration,
    ) -> Result<T, HttpError> {
        self.client.json(method, path, body, timeout)
    }
}

/// A text in a query (RFC 3986, section 2.1).
fn escaped(text: &str) -> String {
    text.bytes().fold(String::new(), |mut out, byte| {
        if byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) {
            out.push(byte.into());
        } else {
            let _ = write!(out, "%{byte:02X}");
        }
        out
    })
}

#[cfg(test)]
mod tests {
    #[test]
    fn a_name_with_anything_in_it_fits_a_query() {
        assert_eq!(super::escaped("web-1 &ü\n"), "web-1%20%26%C3%BC%0A");
    }
}
