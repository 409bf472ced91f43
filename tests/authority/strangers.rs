//! What somebody without a token, with too much to say, or too slow to say it comes to.

use super::harness::*;
use leasehold::protocol::*;
use leasehold::sources::http::{Client, Settings};
use std::fs::write;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::time::{Duration, Instant};

fn with_token(url: &str, token: Option<&str>) -> Client {
    Client::new(&Settings { url: url.to_owned(), token: token.map(str::to_owned), ca_file: None }).unwrap()
}

fn tokens(dir: &Path) -> [String; 4] {
    write(dir.join("nodes"), "n1 token-of-node-n1-\nn2 token-of-node-n2-\n").unwrap();
    write(dir.join("controller"), "token-of-controllers\n").unwrap();
    let path = |name: &str| dir.join(name).display().to_string();
    ["--node-tokens".to_owned(), path("nodes"), "--controller-token-file".to_owned(), path("controller")]
}

#[test]
fn a_token_opens_its_own_door_only() {
    let dir = tempfile::tempdir().unwrap();
    let tokens = tokens(dir.path());
    let args = tokens.each_ref().map(String::as_str);
    let authority = Authority::start_at(&dir.path().join("data"), "127.0.0.1:0", &args);
    let status = |token: Option<&str>, path: &str| {
        let client = with_token(&authority.url(), token);
        client
            .json::<serde_json::Value>("GET", path, None, PATIENCE)
            .map_or_else(|e| e.to_string(), |_| "ok".to_owned())
    };
    assert_eq!(status(None, "/v1/health"), "ok");
    assert_eq!(status(Some("token-of-node-n1-"), "/v1/nodes/n1/watch"), "ok");
    assert!(status(Some("token-of-node-n2-"), "/v1/nodes/n1/watch").ends_with("(status 403)"));
    assert!(status(Some("token-of-controllers"), "/v1/nodes/n1/watch").ends_with("(status 401)"));
    assert!(status(None, "/v1/nodes/n1/watch").ends_with("(status 401)"));
    assert_eq!(status(Some("token-of-controllers"), "/v1/leases"), "ok");
    for token in [None, Some("token-of-node-n1-"), Some("token-of-controllers-")] {
        for path in ["/v1/leases", "/v1/nodes", "/v1/nodes/n1", "/v1/nodes/n1/wait?timeout_ms=0"] {
            assert!(status(token, path).ends_with("(status 401)"), "{token:?} {path}");
        }
    }
}

#[test]
fn beyond_loopback_it_listens_with_tokens_and_tls_only() {
    let dir = tempfile::tempdir().unwrap();
    let tokens = tokens(dir.path());
    let tokens = tokens.each_ref().map(String::as_str);
    let refused = |args: &[&str]| {
        let ended = command(&dir.path().join("data"), "0.0.0.0:0", args).output().unwrap();
        assert!(!ended.status.success());
        String::from_utf8(ended.stderr).unwrap()
    };
    assert!(refused(&[]).contains("without tokens"));
    assert!(refused(&["--insecure-plain-http"]).contains("without tokens"));
    assert!(refused(&tokens).contains("without TLS"));
    let args = [&tokens[..], &["--insecure-plain-http"]].concat();
    drop(Authority::start_at(&dir.path().join("data"), "0.0.0.0:0", &args));
}

#[test]
fn tls_is_spoken_to_those_who_trust_its_certificate() {
    let dir = tempfile::tempdir().unwrap();
    let rcgen::CertifiedKey { cert, signing_key } =
        rcgen::generate_simple_self_signed(vec!["localhost".to_owned(), "127.0.0.1".to_owned()]).unwrap();
    let path = |name: &str| dir.path().join(name);
    write(path("cert.pem"), cert.pem()).unwrap();
    write(path("key.pem"), signing_key.serialize_pem()).unwrap();
    let other = rcgen::generate_simple_self_signed(vec!["127.0.0.1".to_owned()]).unwrap();
    write(path("other.pem"), other.cert.pem()).unwrap();
    let (cert, key) = (path("cert.pem").display().to_string(), path("key.pem").display().to_string());
    let authority = Authority::start_at(&path("data"), "127.0.0.1:0", &["--tls-cert", &cert, "--tls-key", &key]);
    let ask = |url: String, ca: &str| {
        let client = Client::new(&Settings { url, token: None, ca_file: Some(path(ca)) }).unwrap();
        client.json::<LeaseList>("GET", "/v1/leases", None, PATIENCE).map_err(|e| e.to_string())
    };
    let (_, port) = authority.address.split_once(':').unwrap();
    assert!(ask(format!("https://127.0.0.1:{port}"), "cert.pem").is_ok());
    assert!(ask(format!("https://localhost:{port}"), "cert.pem").is_ok());
    let error = ask(format!("https://127.0.0.1:{port}"), "other.pem").unwrap_err();
    assert!(error.contains("its certificate is not trusted"), "{error}");
    // Plain HTTP to a TLS port ends, and hangs nobody.
    assert!(ask(format!("http://127.0.0.1:{port}"), "cert.pem").is_err());
}

fn connect(authority: &Authority) -> TcpStream {
    let stream = TcpStream::connect(&authority.address).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream
}

/// Everything until the peer hangs up.
fn rest(stream: &mut TcpStream) -> String {
    let mut bytes = Vec::new();
    // A reset is a way to hang up too.
    let _ = stream.read_to_end(&mut bytes);
    String::from_utf8_lossy(&bytes).into_owned()
}

#[test]
fn a_body_larger_than_allowed_is_refused_with_a_sentence() {
    let dir = tempfile::tempdir().unwrap();
    let authority = Authority::start(dir.path());
    let mut stream = connect(&authority);
    let head = format!("POST /v1/leases/{}/grant HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n", domain(1));
    stream.write_all(head.as_bytes()).unwrap();
    let chunk = [format!("{:x}\r\n", 1 << 20).as_bytes(), &vec![b' '; 1 << 20], b"\r\n"].concat();
    for _ in 0..9 {
        if stream.write_all(&chunk).is_err() {
            break;
        }
    }
    let said = rest(&mut stream);
    assert!(said.starts_with("HTTP/1.1 413") && said.contains("at most 8388608 bytes"), "{said}");
}

#[test]
fn nonsense_is_refused_with_a_sentence() {
    let dir = tempfile::tempdir().unwrap();
    let authority = Authority::start(dir.path());
    let client = authority.client();
    let say = |path: &str, body: &serde_json::Value| {
        client.json::<serde_json::Value>("POST", path, Some(body), PATIENCE).unwrap_err().to_string()
    };
    let mut question = serde_json::to_value(authority.node("n1").question()).unwrap();
    let renew = "/v1/nodes/n1/renew";
    assert!(say(renew, &serde_json::json!({})).contains("missing field `protocol`"));
    question["protocol"] = 2.into();
    assert!(say(renew, &question).contains("protocol version 2 is not spoken here"));
    question["protocol"] = 1.into();
    question["bound_ms"] = 10.into();
    assert!(say(renew, &question).contains("bound_ms is less than ttl_ms"));
    question["bound_ms"] = 2000.into();
    question["list"]["domains"] =
        (0..10_001_u32).map(|n| serde_json::json!({"domain": format!("{n:032x}"), "state": "wanted"})).collect();
    assert!(say(renew, &question).contains("at most 10000 domains"));
    question["list"]["domains"] = serde_json::json!([{"domain": domain(1), "state": "wanted", "epoch": u64::MAX}]);
    assert!(say(renew, &question).contains("is not one this authority can have issued"));
    assert!(say("/v1/nodes/n%201/renew", &question).contains("'n 1' is not a node id"));
    assert!(say("/v1/leases/web-1/grant", &question).contains("'web-1' is not a domain's uuid"));
    assert!(say("/v1/leases", &question).ends_with("(status 405)"));
}

#[test]
fn a_request_that_drips_ends_after_ten_seconds_and_holds_up_nobody() {
    let dir = tempfile::tempdir().unwrap();
    let authority = Authority::start(dir.path());
    let drip = |head: String| {
        let mut stream = connect(&authority);
        stream.write_all(head.as_bytes()).unwrap();
        let mut reader = stream.try_clone().unwrap();
        std::thread::spawn(move || {
            while stream.write_all(b"x").is_ok() {
                std::thread::sleep(Duration::from_millis(200));
            }
        });
        std::thread::spawn(move || {
            let start = Instant::now();
            (rest(&mut reader), start.elapsed())
        })
    };
    let head = drip("GET /v1/health HTTP/1.1\r\nx: ".to_owned());
    let body = drip("POST /v1/nodes/n1/renew HTTP/1.1\r\nHost: a\r\nContent-Length: 100000\r\n\r\n".to_owned());
    let silent = drip(String::new());
    assert!(authority.node("n1").ask().ttl_ms > 0);
    let (said, took) = body.join().unwrap();
    assert!(said.starts_with("HTTP/1.1 408") && said.contains("more than 10 s to arrive"), "{said}");
    assert!(took < Duration::from_secs(13), "{took:?}");
    for (said, took) in [head.join().unwrap(), silent.join().unwrap()] {
        assert!(took < Duration::from_secs(13), "{took:?} {said}");
    }
}

#[test]
fn one_address_cannot_take_every_connection() {
    let dir = tempfile::tempdir().unwrap();
    let authority = Authority::start(dir.path());
    let all: Vec<TcpStream> = (0..256).map(|_| connect(&authority)).collect();
    let mut one_more = connect(&authority);
    assert_eq!(rest(&mut one_more), "");
    // Another address is served all the same.
    let peer = "127.0.0.2:0".parse().unwrap();
    let mut other = connect_from(peer, authority.address.parse().unwrap());
    other.write_all(b"GET /v1/health HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n").unwrap();
    assert!(rest(&mut other).starts_with("HTTP/1.1 200"));
    drop(all);
}

/// Connects from an address of this machine; std cannot bind before it connects.
fn connect_from(from: SocketAddr, to: SocketAddr) -> TcpStream {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build().unwrap();
    let stream = runtime.block_on(async {
        let socket = tokio::net::TcpSocket::new_v4().unwrap();
        socket.bind(from).unwrap();
        socket.connect(to).await.unwrap().into_std().unwrap()
    });
    stream.set_nonblocking(false).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream
}

#[test]
fn a_peer_that_takes_no_answer_is_hung_up_on() {
    let dir = tempfile::tempdir().unwrap();
    let authority = Authority::start(dir.path());
    let controller = authority.controller();
    for n in 0..200 {
        controller.grant(domain(n), &grant("n1")).unwrap();
    }
    // Hundreds of lists asked for at once and none read: far more than the sockets hold.
    let mut stream = connect(&authority);
    stream.set_write_timeout(Some(Duration::from_secs(30))).unwrap();
    let start = Instant::now();
    let ask = "GET /v1/leases HTTP/1.1\r\nHost: a\r\n\r\n".repeat(100);
    while stream.write_all(ask.as_bytes()).is_ok() {
        assert!(start.elapsed() < Duration::from_secs(30), "still listening");
    }
    assert!(start.elapsed() < Duration::from_secs(20), "{:?}", start.elapsed());
    assert_eq!(controller.leases().unwrap().len(), 200);
}
