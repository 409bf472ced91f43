//! Where a controller listens.

use std::fmt;
use std::net::IpAddr;

/// One controller's address: `http://` or `https://`, a host, maybe a port and a path prefix.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Endpoint {
    /// True: TLS.
    pub tls: bool,
    /// The host as written, without the brackets of an IPv6 address.
    pub host: String,
    /// The port; 443 or 80 where none was written.
    pub port: u16,
    /// The path in front of `/v1`, empty or beginning with `/`, never ending with it.
    pub prefix: String,
}

impl Endpoint {
    /// Reads a URL. Credentials, a query and a fragment have no meaning here and are refused.
    ///
    /// # Errors
    /// A clause that says what is wrong with it.
    pub fn parse(text: &str) -> Result<Endpoint, String> {
        let wrong = |why: &str| format!("'{}' is no endpoint: {why}", text.escape_debug());
        if text.len() > 512 || text.chars().any(|c| c.is_control() || c.is_whitespace()) {
            return Err(wrong("it is longer than 512 bytes, or holds a space or a control character"));
        }
        let (tls, rest) = match (text.strip_prefix("https://"), text.strip_prefix("http://")) {
            (Some(rest), _) => (true, rest),
            (_, Some(rest)) => (false, rest),
            _ => return Err(wrong("it begins with neither https:// nor http://")),
        };
        if rest.contains(['?', '#', '@']) {
            return Err(wrong("a user, a query or a fragment has no meaning here; the token is named by token_file"));
        }
        let (authority, prefix) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
        let (host, port) = match authority.strip_prefix('[') {
            Some(v6) => {
                let (host, port) =
                    v6.split_once(']').ok_or_else(|| wrong("the '[' of its IPv6 address is never closed"))?;
                if host.parse::<std::net::Ipv6Addr>().is_err() {
                    return Err(wrong("what stands in brackets is no IPv6 address"));
                }
                (host, port)
            }
            None => authority.split_at(authority.find(':').unwrap_or(authority.len())),
        };
        let port = match port.strip_prefix(':') {
            None if port.is_empty() => {
                if tls {
                    443
                } else {
                    80
                }
            }
            Some(digits) if digits.parse::<u16>().is_ok_and(|port| port != 0) => digits.parse().unwrap_or(0),
            _ => return Err(wrong("its port is no number from 1 to 65535 (an IPv6 address goes in brackets)")),
        };
        let name = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | ':');
        if host.is_empty() || host.len() > 253 || !host.chars().all(name) {
            return Err(wrong("its host is neither an address nor a name of letters, digits, '.' and '-'"));
        }
        Ok(Endpoint { tls, host: host.to_owned(), port, prefix: prefix.trim_end_matches('/').to_owned() })
    }

    /// The host, if it is written as an address.
    pub fn address(&self) -> Option<IpAddr> {
        self.host.parse().ok()
    }

    /// Whether nothing sent to it leaves this machine.
    pub fn is_loopback(&self) -> bool {
        self.host == "localhost" || self.address().is_some_and(|address| address.is_loopback())
    }
}

/// The URL, without a trailing slash: `/v1/...` is appended to it.
impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let scheme = if self.tls { "https" } else { "http" };
        let (open, close) = if self.host.contains(':') { ("[", "]") } else { ("", "") };
        write!(f, "{scheme}://{open}{}{close}:{}{}", self.host, self.port, self.prefix)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_names_ports_and_prefixes_are_read() {
        for (text, shown) in [
            ("https://10.0.0.5:7470", "https://10.0.0.5:7470"),
            ("https://ctl.example.org", "https://ctl.example.org:443"),
            ("http://127.0.0.1:7470/", "http://127.0.0.1:7470"),
            ("https://[fd00::5]:7470/leases/", "https://[fd00::5]:7470/leases"),
        ] {
            assert_eq!(Endpoint::parse(text).unwrap().to_string(), shown);
        }
    }

    #[test]
    fn what_is_no_endpoint_says_why() {
        for (text, why) in [
            ("10.0.0.5:7470", "neither https:// nor http://"),
            ("https://", "neither an address nor a name"),
            ("https://a:0", "no number from 1 to 65535"),
            ("https://a:70000", "no number from 1 to 65535"),
            ("https://fd00::5:7470", "goes in brackets"),
            ("https://[fd00::5", "never closed"),
            ("https://[x]", "no IPv6 address"),
            ("https://u:p@a", "token_file"),
            ("https://a/?x", "a query"),
            ("https://a b", "a space"),
            ("https://a\u{e9}", "neither an address nor a name"),
        ] {
            let said = Endpoint::parse(text).unwrap_err();
            assert!(said.contains(why), "{text}: {said}");
        }
    }

    #[test]
    fn only_this_machine_is_loopback() {
        for (text, loopback) in [
            ("http://127.0.0.1:1", true),
            ("http://[::1]:1", true),
            ("http://localhost:1", true),
            ("http://localhost.example.org:1", false),
            ("http://10.0.0.1:1", false),
        ] {
            assert_eq!(Endpoint::parse(text).unwrap().is_loopback(), loopback, "{text}");
        }
    }
}
