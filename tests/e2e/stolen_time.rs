//! A host that did not run while time passed: its whole process tree stopped, or its clock stopped with it.

use crate::harness::{Domain, Site, World, wait_until};
use leasehold::node::clock;
use std::time::Duration;

const SOON: Duration = Duration::from_secs(15);

/// Everything of the host stops for longer than its leases, and CLOCK_BOOTTIME goes on, as in suspend.
#[test]
fn a_host_that_was_stopped_longer_than_its_leases_kills_before_anything_can_renew_them() {
    let Some(world) = World::new() else { return };
    let site = Site::new(&world);
    let node = site.node("n1", "");
    let (kept, moved) = (Domain::new("kept"), Domain::new("moved"));
    for domain in [&kept, &moved] {
        node.run_leased(&site, "n1", domain);
    }
    let frozen = node.host.freeze();
    site.lease(&["revoke", &moved.uuid]).expect_ok();
    let ends = [&kept, &moved].map(|domain| node.expires(domain));
    wait_until("both leases had ended", SOON, || ends.iter().all(|end| clock::now() > *end));
    assert!(!site.gone_within(&moved, 1), "nobody can have said so");
    drop(frozen);
    for domain in [&kept, &moved] {
        node.host.wait_until_gone(domain, SOON);
    }
    assert!(site.gone_within(&moved, 15));
    let log = node.guard.as_ref().expect("it runs").log();
    assert!(log.contains(&format!("domain kept ({}), process", kept.uuid)), "{log}");
    assert!(log.contains("was not renewed in time"), "{log}");
    // The lease is this node's still, so it may start again.
    wait_until("libvirt had cleaned up", SOON, || node.host.state(&kept).starts_with("shut off"));
    node.start(&kept).expect_ok();
}

/// The host's own hypervisor paused it, or restored it from a snapshot: its clock stood still, the authority's did not.
#[test]
fn leases_held_across_time_that_this_host_never_saw_end_at_the_first_answer_after_it() {
    let Some(world) = World::new() else { return };
    let site = Site::new(&world);
    let mut node = site.node_without_guard("n1", "");
    let stolen = world.dir().join("stolen");
    std::fs::write(&stolen, "0").expect("the world's directory");
    let program = world.dir().join("forward.py");
    std::fs::write(&program, THIEF).expect("the world's directory");
    let arguments = ["-u", &program.display().to_string(), &node.link.far.to_string(), &stolen.display().to_string()];
    let mut thief = node.host.start("thief", "python3", &arguments);
    thief.wait_for_log("ready", SOON);
    node.configure("n1", "127.0.0.1", 7471, "");
    node.start_guard();
    let domain = Domain::new("web-1");
    node.run_leased(&site, "n1", &domain);
    let pid = node.host.qemu(&domain).expect("it runs");
    wait_until("it was renewed", SOON, || node.status(&domain).is_some_and(|known| known["state"] == "running"));

    // Less than the clocks' allowed difference is no theft.
    std::fs::write(&stolen, "100").expect("the world's directory");
    let asked = thief.log().lines().count();
    wait_until("more was answered", SOON, || thief.log().lines().count() >= asked + 3);
    assert_eq!(node.host.qemu(&domain), Some(pid));

    std::fs::write(&stolen, "7100").expect("the world's directory");
    node.host.wait_until_gone(&domain, SOON);
    let log = node.guard.as_ref().expect("it runs").log();
    // What the questions and answers take on their way is in it, to the core's own slack.
    let lost =
        log.split("this host lost ").nth(1).and_then(|rest| rest.split(" s against the authority's clock").next());
    let lost: f64 = lost.and_then(|lost| lost.parse().ok()).unwrap_or_else(|| panic!("{log}"));
    assert!((lost - 7.0).abs() <= 0.25, "{log}");
    wait_until("libvirt had cleaned up", SOON, || node.host.state(&domain).starts_with("shut off"));
    // A start after it has a lease of its own, and time that was stolen once is not stolen again.
    node.start(&domain).expect_ok();
    let pid = node.host.qemu(&domain).expect("it runs");
    let asked = thief.log().lines().count();
    wait_until("more was answered", SOON, || thief.log().lines().count() >= asked + 6);
    assert_eq!(node.host.qemu(&domain), Some(pid));
}

/// Forwards to the authority, and adds the milliseconds in a file to the clock in every answer.
const THIEF: &str = "import http.client, http.server, json, sys
authority, stolen = sys.argv[1:3]
class Thief(http.server.BaseHTTPRequestHandler):
    protocol_version = 'HTTP/1.1'
    def log_message(self, *_):
        pass
    def forward(self):
        body = self.rfile.read(int(self.headers.get('Content-Length', 0)))
        far = http.client.HTTPConnection(authority, 7470, timeout=120)
        far.request(self.command, self.path, body, dict(self.headers))
        answer = far.getresponse()
        body = answer.read()
        if b'clock_ms' in body:
            fields = json.loads(body)
            fields['clock_ms'] += int(open(stolen).read() or 0)
            body = json.dumps(fields).encode()
        self.send_response(answer.status)
        self.send_header('Content-Type', answer.getheader('Content-Type', 'text/plain'))
        self.send_header('Content-Length', str(len(body)))
        self.end_headers()
        self.wfile.write(body)
        if b'clock_ms' in body:
            print('answered')
    do_GET = do_POST = do_PUT = forward
server = http.server.ThreadingHTTPServer(('127.0.0.1', 7471), Thief)
print('ready')
server.serve_forever()
";
