//! The one HTTP client of everything here that speaks HTTP: blocking, and bounded in every direction.
//!
//! No proxy, no redirect, no DNS: a lease must not depend on what an environment variable, another server or a name
//! server says. Hosts are IP addresses or names in /etc/hosts, which is read once. Certificates are read once too.

use crate::protocol::ErrorAnswer;
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::collections::HashMap;
use std::fmt;
use std::io::Read;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use ureq::config::Config;
use ureq::http::header::{ACCEPT, AUTHORIZATION, CONTENT_TYPE};
use ureq::http::{HeaderMap, HeaderName, HeaderValue, Method, Request, Uri};
use ureq::tls::{Certificate, PemItem, RootCerts, TlsConfig, parse_pem};
use ureq::unversioned::resolver::{ResolvedSocketAddrs, Resolver};
use ureq::unversioned::transport::{Connector, NextTimeout, RustlsConnector, TcpConnector};
use ureq::{Agent, Error, Timeout};

/// Where the system's own certificates lie, by distribution.
const SYSTEM_ROOTS: [&str; 2] = ["/etc/ssl/certs/ca-certificates.crt", "/etc/pki/tls/certs/ca-bundle.crt"];
/// The largest file of certificates read, in bytes; the whole web's is 220 KB.
const MAX_ROOTS: u64 = 4 << 20;

/// How to reach one server.
#[derive(Debug, Clone, Default)]
pub struct Settings {
    /// `http://HOST[:PORT]` or `https://HOST[:PORT]`, with a path before those asked for if there is one.
    pub url: String,
    /// Sent as `Authorization: Bearer`.
    pub token: Option<String>,
    /// The certificates trusted, in PEM; none: the system's.
    pub ca_file: Option<PathBuf>,
}

/// A connection pool to one server. Clones share it.
#[derive(Debug, Clone)]
pub struct Client {
    agent: Agent,
    url: Arc<str>,
    token: Option<HeaderValue>,
}

/// One request.
#[derive(Debug, Clone, Copy)]
pub struct Ask<'a> {
    /// GET, POST, DELETE.
    pub method: &'a str,
    /// From the first slash, with the query.
    pub path: &'a str,
    /// Beside those the client sends itself.
    pub headers: &'a [(&'a str, &'a str)],
    /// JSON.
    pub body: Option<&'a [u8]>,
    /// For the whole request, from the name to the last byte of the answer.
    pub timeout: Duration,
    /// The largest answer taken, in bytes; a larger one is an error.
    pub max_body: usize,
}

/// What came back, whatever the status.
#[derive(Debug)]
pub struct Reply {
    /// The status.
    pub status: u16,
    /// The headers.
    pub headers: HeaderMap,
    /// The whole body.
    pub body: Vec<u8>,
}

/// Why there is no usable answer. Displays as a sentence that names the server.
#[derive(Debug)]
pub enum HttpError {
    /// The settings make no client.
    Setup(String),
    /// Nothing usable came: refused, cut off, not trusted, too late, too large, not HTTP.
    NoAnswer {
        /// The server.
        url: String,
        /// Why.
        why: String,
    },
    /// The server says no.
    Refused {
        /// The status, 300 to 599.
        status: u16,
        /// Its sentence, or what of its body can be shown.
        text: String,
    },
    /// An answer that is not the JSON asked for.
    NotJson {
        /// The server.
        url: String,
        /// What it is instead.
        why: String,
    },
}

impl fmt::Display for HttpError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            HttpError::Setup(why) => f.write_str(why),
            HttpError::NoAnswer { url, why } => write!(f, "no answer from {url}: {why}"),
            HttpError::Refused { status, text } => write!(f, "{text} (status {status})"),
            HttpError::NotJson { url, why } => write!(f, "the answer of {url} is not usable: {why}"),
        }
    }
}

impl std::error::Error for HttpError {}

impl Client {
    /// A client for one server. Reads the certificates and /etc/hosts now, and never again.
    ///
    /// # Errors
    /// [`HttpError::Setup`]: the URL, the token or the certificates cannot be used.
    pub fn new(settings: &Settings) -> Result<Client, HttpError> {
        let url = settings.url.trim_end_matches('/').to_owned();
        let uri: Uri = url.parse().map_err(|e| HttpError::Setup(format!("'{url}' is not a URL: {e}")))?;
        let secure = match uri.scheme_str() {
            Some("https") => true,
            Some("http") => false,
            _ => return Err(HttpError::Setup(format!("'{url}' does not begin with http:// or https://"))),
        };
        if uri.query().is_some() || uri.authority().is_some_and(|authority| authority.as_str().contains('@')) {
            return Err(HttpError::Setup(format!("'{url}' may have a host, a port and a path, and nothing else")));
        }
        let token = settings.token.as_deref().map(bearer).transpose()?;
        let roots = if secure { roots(settings.ca_file.as_deref())? } else { Vec::new() };
        let tls = TlsConfig::builder()
            .unversioned_rustls_crypto_provider(Arc::new(rustls::crypto::ring::default_provider()))
            .root_certs(RootCerts::Specific(Arc::new(roots)))
            .build();
        let config = Config::builder()
            .proxy(None)
            .max_redirects(0)
            .http_status_as_error(false)
            .https_only(secure)
            .user_agent(concat!("leasehold/", env!("CARGO_PKG_VERSION")))
            .tls_config(tls)
            .max_response_header_size(32 << 10)
            .max_idle_age(Duration::from_secs(60))
            .build();
        let connector = ().chain(TcpConnector::default()).chain(RustlsConnector::default());
        let resolver = Hosts::parse(&std::fs::read_to_string("/etc/hosts").unwrap_or_default());
        Ok(Client { agent: Agent::with_parts(config, connector, resolver), url: url.into(), token })
    }

    /// The server, as given.
    pub fn url(&self) -> &str {
        &self.url
    }

    /// Sends one request and takes in the whole answer, whatever its status.
    ///
    /// # Errors
    /// [`HttpError::NoAnswer`], or [`HttpError::Setup`] for a header or method that HTTP does not know.
    pub fn send(&self, ask: &Ask<'_>) -> Result<Reply, HttpError> {
        let bad = |e: &dyn fmt::Display| HttpError::Setup(format!("cannot ask {}{}: {e}", self.url, ask.path));
        let method = Method::from_bytes(ask.method.as_bytes()).map_err(|e| bad(&e))?;
        let mut head = Request::builder().method(method).uri(format!("{}{}", self.url, ask.path));
        if let Some(headers) = head.headers_mut() {
            headers.insert(ACCEPT, HeaderValue::from_static("application/json"));
            headers.extend(self.token.clone().map(|token| (AUTHORIZATION, token)));
            for (name, value) in ask.headers {
                let name = HeaderName::from_bytes(name.as_bytes()).map_err(|e| bad(&e))?;
                headers.insert(name, HeaderValue::from_str(value).map_err(|e| bad(&e))?);
            }
            if ask.body.is_some() && !headers.contains_key(CONTENT_TYPE) {
                headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
            }
        }
        let timeout = Some(ask.timeout);
        let answered = match ask.body {
            Some(body) => {
                let request = head.body(body).map_err(|e| bad(&e))?;
                self.agent.run(self.agent.configure_request(request).timeout_global(timeout).build())
            }
            None if matches!(ask.method, "POST" | "PUT" | "PATCH") => {
                let request = head.body(&[][..]).map_err(|e| bad(&e))?;
                self.agent.run(self.agent.configure_request(request).timeout_global(timeout).build())
            }
            None => {
                let request = head.body(()).map_err(|e| bad(&e))?;
                self.agent.run(self.agent.configure_request(request).timeout_global(timeout).build())
            }
        };
        let none = |why: String| HttpError::NoAnswer { url: self.url.to_string(), why };
        let (head, body) = answered.map_err(|e| none(why(&e, ask.timeout)))?.into_parts();
        let too_large = || none(format!("its body is larger than the {} bytes taken", ask.max_body));
        if body.content_length().is_some_and(|length| length > ask.max_body as u64) {
            return Err(too_large());
        }
        let mut bytes = Vec::new();
        let mut reader = body.into_reader().take(ask.max_body as u64 + 1);
        reader.read_to_end(&mut bytes).map_err(|e| none(why(&Error::from(e), ask.timeout)))?;
        if bytes.len() > ask.max_body {
            return Err(too_large());
        }
        Ok(Reply { status: head.status.as_u16(), headers: head.headers, body: bytes })
    }

    /// Sends one request with a JSON body, if any, and reads the JSON of a 2xx answer.
    ///
    /// # Errors
    /// As [`Client::send`]; [`HttpError::Refused`] with the server's own sentence; [`HttpError::NotJson`].
    pub fn json<T: DeserializeOwned>(
        &self,
        method: &str,
        path: &str,
        body: Option<&dyn ErasedJson>,
        timeout: Duration,
    ) -> Result<T, HttpError> {
        let body = body.map(ErasedJson::bytes).transpose().map_err(HttpError::Setup)?;
        let body = body.as_deref();
        let reply =
            self.send(&Ask { method, path, headers: &[], body, timeout, max_body: crate::protocol::MAX_BODY })?;
        reply.json(&self.url)
    }

    /// Ends every request under way, from another thread, and all later ones.
    pub fn shutdown(self) {
        self.agent.shutdown();
    }
}

/// Anything that goes out as JSON.
pub trait ErasedJson {
    /// As bytes, or why not.
    #[expect(clippy::missing_errors_doc, reason = "said in the line above")]
    fn bytes(&self) -> Result<Vec<u8>, String>;
}

impl<T: Serialize> ErasedJson for T {
    fn bytes(&self) -> Result<Vec<u8>, String> {
        serde_json::to_vec(self).map_err(|e| format!("cannot write the request's JSON: {e}"))
    }
}

impl Reply {
    /// The JSON of a 2xx answer from `url`, which errors name.
    ///
    /// # Errors
    /// [`HttpError::Refused`], [`HttpError::NotJson`].
    pub fn json<T: DeserializeOwned>(&self, url: &str) -> Result<T, HttpError> {
        if !(200..300).contains(&self.status) {
            let text = match serde_json::from_slice::<ErrorAnswer>(&self.body) {
                Ok(ErrorAnswer { error }) => clean(error.as_bytes(), 1000),
                Err(_) => format!("{url} says '{}'", clean(&self.body, 120)),
            };
            return Err(HttpError::Refused { status: self.status, text });
        }
        serde_json::from_slice(&self.body).map_err(|e| {
            let kind = self.headers.get(CONTENT_TYPE).and_then(|kind| kind.to_str().ok()).unwrap_or("no content type");
            let why = format!("{e}, in {} bytes of {kind}: '{}'", self.body.len(), clean(&self.body, 80));
            HttpError::NotJson { url: url.to_owned(), why }
        })
    }
}

/// What can be shown of bytes that somebody else chose.
fn clean(bytes: &[u8], most: usize) -> String {
    let text = String::from_utf8_lossy(&bytes[..bytes.len().min(4 * most)]);
    let printable = text.chars().map(|c| if c.is_control() { ' ' } else { c });
    let mut shown: String = printable.take(most).collect();
    if text.chars().count() > most {
        shown.push('…');
    }
    shown.trim().to_owned()
}

fn bearer(token: &str) -> Result<HeaderValue, HttpError> {
    let mut value = HeaderValue::from_str(&format!("Bearer {token}"))
        .map_err(|_| HttpError::Setup("the token has characters that no HTTP header can carry".to_owned()))?;
    value.set_sensitive(true);
    Ok(value)
}

fn why(error: &Error, timeout: Duration) -> String {
    let late = || format!("not within {:.1} s", timeout.as_secs_f64());
    match error {
        Error::Timeout(Timeout::Connect | Timeout::Resolve) => format!("no connection, {}", late()),
        Error::Timeout(_) => late(),
        Error::HostNotFound => {
            "the host is neither an IP address nor a name in /etc/hosts (DNS is not asked: losing it must fence nobody)"
                .to_owned()
        }
        Error::Io(e) => {
            let tls = e.get_ref().and_then(|inner| inner.downcast_ref::<rustls::Error>());
            match tls {
                Some(rustls::Error::InvalidCertificate(cause)) => {
                    format!("its certificate is not trusted: {cause}; check ca_file and the name or address in the URL")
                }
                Some(cause) => format!("TLS failed: {cause}"),
                None if e.kind() == std::io::ErrorKind::UnexpectedEof => {
                    "the connection ended in the middle".to_owned()
                }
                None if e.kind() == std::io::ErrorKind::TimedOut => late(),
                None => e.to_string(),
            }
        }
        Error::Protocol(e) => format!("what it says is not HTTP: {e}"),
        other => other.to_string(),
    }
}

fn roots(file: Option<&Path>) -> Result<Vec<Certificate<'static>>, HttpError> {
    let path = match file {
        Some(path) => path,
        None => SYSTEM_ROOTS.iter().map(Path::new).find(|path| path.exists()).ok_or_else(|| {
            HttpError::Setup(
                "no certificates are trusted on this system (no ca-certificates); name a ca_file".to_owned(),
            )
        })?,
    };
    let wrong = |e: &dyn fmt::Display| {
        HttpError::Setup(format!("cannot read the trusted certificates in {}: {e}", path.display()))
    };
    let mut pem = Vec::new();
    let file = std::fs::File::open(path).map_err(|e| wrong(&e))?;
    file.take(MAX_ROOTS).read_to_end(&mut pem).map_err(|e| wrong(&e))?;
    let mut roots = Vec::new();
    for item in parse_pem(&pem) {
        if let PemItem::Certificate(certificate) = item.map_err(|e| wrong(&e))? {
            roots.push(certificate);
        }
    }
    if roots.is_empty() { Err(wrong(&"there is no certificate in it")) } else { Ok(roots) }
}

/// Literal addresses, and the names of /etc/hosts. getaddrinfo would bring DNS, NSS modules and threads that outlive
/// every timeout.
#[derive(Debug)]
struct Hosts(HashMap<String, Vec<IpAddr>>);

impl Hosts {
    fn parse(text: &str) -> Hosts {
        let mut names: HashMap<String, Vec<IpAddr>> = HashMap::new();
        for line in text.lines() {
            let mut words = line.split('#').next().unwrap_or_default().split_whitespace();
            let Some(address) = words.next().and_then(|word| word.parse::<IpAddr>().ok()) else { continue };
            words.for_each(|name| names.entry(name.to_ascii_lowercase()).or_default().push(address));
        }
        let local = || vec![IpAddr::V4(Ipv4Addr::LOCALHOST), IpAddr::V6(Ipv6Addr::LOCALHOST)];
        names.entry("localhost".to_owned()).or_insert_with(local);
        Hosts(names)
    }

    fn find(&self, host: &str) -> Vec<IpAddr> {
        match host.trim_start_matches('[').trim_end_matches(']').parse() {
            Ok(address) => vec![address],
            Err(_) => self.0.get(&host.to_ascii_lowercase()).cloned().unwrap_or_default(),
        }
    }
}

impl Resolver for Hosts {
    fn resolve(&self, uri: &Uri, _: &Config, _: NextTimeout) -> Result<ResolvedSocketAddrs, Error> {
        let port = uri.port_u16().unwrap_or(if uri.scheme_str() == Some("https") { 443 } else { 80 });
        let mut found = self.empty();
        // As many as an ArrayVec of ureq holds.
        for address in self.find(uri.host().unwrap_or_default()).into_iter().take(16) {
            found.push(SocketAddr::new(address, port));
        }
        if found.is_empty() { Err(Error::HostNotFound) } else { Ok(found) }
    }
}

#[cfg(test)]
#[path = "http_tests.rs"]
mod tests;
