//! The client against servers that behave badly, each a thread on loopback that says what it is told.

use super::*;
use std::io::Write;
use std::net::{TcpListener, TcpStream};
use std::thread;

/// A server for one connection; returns its URL.
fn server(serve: impl FnOnce(TcpStream) + Send + 'static) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    thread::spawn(move || serve(listener.accept().unwrap().0));
    url
}

/// Reads a request's head, then says `text` and hangs up.
fn says(text: &'static str) -> String {
    server(move |mut stream| {
        head(&mut stream);
        // The client may have hung up already: that is what some of these tests are about.
        let _ = stream.write_all(text.as_bytes());
    })
}

fn head(stream: &mut TcpStream) -> String {
    let mut seen = Vec::new();
    let mut byte = [0];
    while !seen.ends_with(b"\r\n\r\n") && stream.read(&mut byte).unwrap() == 1 {
        seen.push(byte[0]);
    }
    String::from_utf8(seen).unwrap()
}

fn client(url: &str) -> Client {
    Client::new(&Settings { url: url.to_owned(), token: Some("secret".to_owned()), ca_file: None }).unwrap()
}

fn get(url: &str) -> Result<serde_json::Value, String> {
    client(url).json("GET", "/x", None, Duration::from_secs(5)).map_err(|e| e.to_string())
}

fn small(url: &str, timeout: Duration) -> Result<Reply, String> {
    let ask = Ask { method: "GET", path: "/", headers: &[], body: None, timeout, max_body: 100 };
    client(url).send(&ask).map_err(|e| e.to_string())
}

#[test]
fn json_comes_back_and_the_token_goes_out() {
    let (heads, head_of) = std::sync::mpsc::channel();
    let url = server(move |mut stream| {
        heads.send(head(&mut stream)).unwrap();
        stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 8\r\n\r\n{\"a\": 1}").unwrap();
    });
    assert_eq!(get(&url).unwrap()["a"], 1);
    let head = head_of.recv().unwrap().to_lowercase();
    assert!(head.starts_with("get /x http/1.1\r\n") && head.contains("authorization: bearer secret\r\n"), "{head}");
}

#[test]
fn a_refusal_is_the_servers_own_sentence() {
    let url = says("HTTP/1.1 409 Conflict\r\nContent-Length: 29\r\n\r\n{\"error\": \"owned by node n2\"}");
    assert_eq!(get(&url).unwrap_err(), "owned by node n2 (status 409)");
}

#[test]
fn a_login_page_is_not_an_answer() {
    let url = says("HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nContent-Length: 19\r\n\r\n<html>\nLogin</html>");
    let error = get(&url).unwrap_err();
    assert!(error.contains("is not usable") && error.contains("text/html: '<html> Login</html>'"), "{error}");
}

#[test]
fn a_redirect_is_not_followed() {
    let url = says("HTTP/1.1 302 Found\r\nLocation: http://127.0.0.1:1/\r\nContent-Length: 0\r\n\r\n");
    assert!(get(&url).unwrap_err().ends_with("(status 302)"));
}

#[test]
fn a_body_cut_short_is_no_answer() {
    let url = says("HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\n{}");
    let error = get(&url).unwrap_err();
    assert!(error.starts_with("no answer from http://127.0.0.1:"), "{error}");
}

#[test]
fn a_body_larger_than_the_limit_is_no_answer_whether_it_says_so_or_not() {
    let long = "x".repeat(101);
    let announced = format!("HTTP/1.1 200 OK\r\nContent-Length: 101\r\n\r\n{long}");
    let chunked = format!("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n65\r\n{long}\r\n0\r\n\r\n");
    for text in [announced, chunked] {
        let error = small(&says(text.leak()), Duration::from_secs(5)).unwrap_err();
        assert!(error.ends_with("its body is larger than the 100 bytes taken"), "{error}");
    }
}

#[test]
fn a_slow_drip_ends_with_the_time_given() {
    let url = server(|mut stream| {
        head(&mut stream);
        let _ = stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 90\r\n\r\n");
        while stream.write_all(b"x").is_ok() {
            thread::sleep(Duration::from_millis(20));
        }
    });
    let start = std::time::Instant::now();
    let error = small(&url, Duration::from_millis(300)).unwrap_err();
    assert!(error.ends_with("not within 0.3 s"), "{error}");
    assert!(start.elapsed() < Duration::from_millis(1500), "{:?}", start.elapsed());
}

#[test]
fn silence_ends_with_the_time_given() {
    // Says nothing until the client has hung up.
    let url = server(|mut stream| while stream.read(&mut [0; 512]).is_ok_and(|read| read > 0) {});
    let error = small(&url, Duration::from_millis(200)).unwrap_err();
    assert!(error.ends_with("not within 0.2 s"), "{error}");
}

#[test]
fn what_is_not_http_is_said_to_be_so() {
    let error = get(&says("SSH-2.0-OpenSSH_9.2\r\n\r\n")).unwrap_err();
    assert!(error.contains("not HTTP"), "{error}");
}

#[test]
fn a_name_that_is_not_in_the_hosts_file_is_not_looked_up() {
    let error = get("http://no-such-host.example:1").unwrap_err();
    assert!(error.contains("nor a name in /etc/hosts"), "{error}");
    let hosts = Hosts::parse("10.0.0.5 ctl-1 Ctl-1.example # a comment\n::1 six\nnonsense\n10.1.0.5 ctl-1\n");
    let addresses = |name: &str| hosts.find(name).iter().map(IpAddr::to_string).collect::<Vec<_>>();
    assert_eq!(addresses("ctl-1.EXAMPLE"), ["10.0.0.5"]);
    assert_eq!(addresses("ctl-1"), ["10.0.0.5", "10.1.0.5"]);
    assert_eq!(addresses("[fe80::1]"), ["fe80::1"]);
    assert_eq!(addresses("localhost"), ["127.0.0.1", "::1"]);
}

#[test]
fn settings_that_make_no_client_are_refused_with_a_sentence() {
    let with = |url: &str, ca: Option<&str>| {
        let settings = Settings { url: url.to_owned(), token: None, ca_file: ca.map(PathBuf::from) };
        Client::new(&settings).map(|_| ()).unwrap_err().to_string()
    };
    assert!(with("10.0.0.5:7470", None).contains("http"));
    assert!(with("ftp://10.0.0.5", None).contains("does not begin with http:// or https://"));
    assert!(with("http://user@10.0.0.5", None).contains("nothing else"));
    assert!(with("https://10.0.0.5", Some("/nonexistent.pem")).contains("/nonexistent.pem: No such file"));
    assert!(with("https://10.0.0.5", Some("/etc/hosts")).contains("no certificate"));
}
