//! Who may say what: bearer tokens, compared without telling by the time taken how far they agree.

use crate::lease::id::NodeId;
use ring::digest::{SHA256, digest};
use std::collections::HashMap;
use std::path::Path;

/// The shortest token taken. 16 random characters of 64 are 96 bits.
const SHORTEST: usize = 16;

/// The tokens in force. Kept as digests: of equal length, and no token is in this process's memory for long.
#[derive(Debug, Default)]
pub struct Tokens {
    nodes: Option<HashMap<NodeId, [u8; 32]>>,
    controller: Option<[u8; 32]>,
}

/// Why a request is not let in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Denied {
    /// No token, or one that nobody has.
    Unknown,
    /// A token, but not of the node it speaks for.
    NotThisNode,
}

impl Tokens {
    /// Reads the files that are given; without one, that side is open to all who can connect.
    pub fn read(nodes: Option<&Path>, controller: Option<&Path>) -> Result<Tokens, String> {
        let read = |path: &Path| {
            std::fs::read_to_string(path).map_err(|e| format!("cannot read the tokens in {}: {e}", path.display()))
        };
        let nodes = nodes.map(|path| parse(&path.display().to_string(), &read(path)?)).transpose()?;
        let controller = match controller {
            None => None,
            Some(path) => {
                let text = read(path)?;
                long_enough(text.trim(), &path.display().to_string())?;
                Some(hash(text.trim()))
            }
        };
        Ok(Tokens { nodes, controller })
    }

    /// Whether a token may speak for a node.
    pub fn node(&self, node: &NodeId, token: Option<&str>) -> Result<(), Denied> {
        let Some(nodes) = &self.nodes else { return Ok(()) };
        let given = hash(token.ok_or(Denied::Unknown)?);
        if nodes.get(node).is_some_and(|own| same(own, &given)) {
            Ok(())
        } else if nodes.values().any(|own| same(own, &given)) {
            Err(Denied::NotThisNode)
        } else {
            Err(Denied::Unknown)
        }
    }

    /// Whether a token is the controllers'.
    pub fn controller(&self, token: Option<&str>) -> Result<(), Denied> {
        let Some(own) = &self.controller else { return Ok(()) };
        let given = hash(token.ok_or(Denied::Unknown)?);
        if same(own, &given) { Ok(()) } else { Err(Denied::Unknown) }
    }
}

fn parse(path: &str, text: &str) -> Result<HashMap<NodeId, [u8; 32]>, String> {
    let mut nodes = HashMap::new();
    let mut owners: HashMap<[u8; 32], NodeId> = HashMap::new();
    for (number, line) in text.lines().enumerate() {
        let place = format!("{path}:{}", number + 1);
        let line = line.trim();
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        let mut words = line.split_whitespace();
        let (Some(node), Some(token), None) = (words.next(), words.next(), words.next()) else {
            return Err(format!("{place}: a line is a node id and its token, with a space between"));
        };
        let node: NodeId = node.parse().map_err(|e| format!("{place}: {e}"))?;
        long_enough(token, &place)?;
        if let Some(other) = owners.insert(hash(token), node.clone()) {
            return Err(format!("{place}: node {node} has the token of node {other}; each node has its own"));
        }
        if nodes.insert(node.clone(), hash(token)).is_some() {
            return Err(format!("{place}: node {node} has a token already in a line above"));
        }
    }
    Ok(nodes)
}

fn long_enough(token: &str, place: &str) -> Result<(), String> {
    if token.len() < SHORTEST || token.contains(char::is_whitespace) {
        return Err(format!(
            "{place}: a token is one word of at least {SHORTEST} characters; make one with 'openssl rand -hex 24'"
        ));
    }
    Ok(())
}

fn hash(token: &str) -> [u8; 32] {
    let mut out = [0; 32];
    out.copy_from_slice(digest(&SHA256, token.as_bytes()).as_ref());
    out
}

fn same(a: &[u8; 32], b: &[u8; 32]) -> bool {
    std::hint::black_box(a.iter().zip(b).fold(0, |differ, (a, b)| differ | (a ^ b))) == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tokens() -> Tokens {
        let nodes = parse("tokens", "# two\nn1 aaaaaaaaaaaaaaaa\n\nn2  bbbbbbbbbbbbbbbb\n").unwrap();
        Tokens { nodes: Some(nodes), controller: Some(hash("cccccccccccccccc")) }
    }

    #[test]
    fn a_nodes_token_speaks_for_that_node_only() {
        let n1 = "n1".parse().unwrap();
        assert_eq!(tokens().node(&n1, Some("aaaaaaaaaaaaaaaa")), Ok(()));
        assert_eq!(tokens().node(&n1, Some("bbbbbbbbbbbbbbbb")), Err(Denied::NotThisNode));
        assert_eq!(tokens().node(&n1, Some("cccccccccccccccc")), Err(Denied::Unknown));
        assert_eq!(tokens().node(&n1, None), Err(Denied::Unknown));
        assert_eq!(tokens().controller(Some("aaaaaaaaaaaaaaaa")), Err(Denied::Unknown));
        assert_eq!(tokens().controller(Some("cccccccccccccccc")), Ok(()));
    }

    #[test]
    fn a_bad_line_is_named_by_its_number() {
        for (text, wanted) in [
            ("n1 aaaaaaaaaaaaaaaa\nn2", "tokens:2: a line is"),
            ("n1 short", "tokens:1: a token is one word of at least 16"),
            ("n/1 aaaaaaaaaaaaaaaa", "tokens:1: 'n/1' is not a node id"),
            ("n1 aaaaaaaaaaaaaaaa\nn2 aaaaaaaaaaaaaaaa", "tokens:2: node n2 has the token of node n1"),
            ("n1 aaaaaaaaaaaaaaaa\nn1 bbbbbbbbbbbbbbbb", "tokens:2: node n1 has a token already"),
        ] {
            let error = parse("tokens", text).unwrap_err();
            assert!(error.starts_with(wanted), "{error}");
        }
    }
}
