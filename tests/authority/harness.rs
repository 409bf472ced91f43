//! An authority process, and a node that says what it is told.

use leasehold::cli::controller::{Controller, Reach};
use leasehold::lease::id::{BootId, DomainId, Epoch, Incarnation, NodeId, QuestionNumber};
use leasehold::protocol::*;
use leasehold::sources::http::{Client, Settings};
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// For what must happen and may take a while on a loaded machine.
pub const PATIENCE: Duration = Duration::from_secs(20);

pub struct Authority {
    child: Child,
    pub address: String,
}

impl Authority {
    /// Starts one on a free port of loopback.
    pub fn start(data: &Path) -> Authority {
        Authority::start_at(data, "127.0.0.1:0", &[])
    }

    pub fn start_at(data: &Path, listen: &str, args: &[&str]) -> Authority {
        let mut child = command(data, listen, args).spawn().unwrap();
        let mut lines = BufReader::new(child.stderr.take().unwrap()).lines();
        let address = loop {
            let line = lines.next().expect("it says that it is ready").unwrap();
            if let Some((_, rest)) = line.split_once("ready, ") {
                break rest.split(' ').nth(2).unwrap().to_owned();
            }
        };
        std::thread::spawn(move || lines.for_each(drop));
        Authority { child, address }
    }

    /// As after a power cut of the process: no handler runs.
    pub fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    pub fn pid(&self) -> i32 {
        self.child.id() as i32
    }

    pub fn exit(&mut self) -> std::process::ExitStatus {
        self.child.wait().unwrap()
    }

    /// Kills it and starts it again where it was.
    pub fn restart(&mut self, data: &Path) {
        self.kill();
        *self = Authority::start_at(data, &self.address.clone(), &[]);
    }

    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    pub fn controller(&self) -> Controller {
        Reach { endpoint: Some(self.url()), ..Reach::default() }.controller().unwrap()
    }

    pub fn client(&self) -> Client {
        Client::new(&Settings { url: self.url(), ..Settings::default() }).unwrap()
    }

    pub fn node(&self, id: &str) -> Node {
        Node::new(id, self.client())
    }
}

impl Drop for Authority {
    fn drop(&mut self) {
        // Dead already in the tests that kill it.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

pub fn command(data: &Path, listen: &str, args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_leasehold-authority"));
    command.args(["--listen", listen]).arg("--data").arg(data).args(args).stderr(Stdio::piped());
    command
}

pub fn domain(n: u8) -> DomainId {
    DomainId::from_bytes([n; 16])
}

pub fn id(node: &str) -> NodeId {
    node.parse().unwrap()
}

pub fn grant(to: &str) -> GrantRequest {
    GrantRequest { node: id(to), incoming: None, name: None }
}

/// A guard that does no more than ask.
pub struct Node {
    pub id: NodeId,
    pub client: Client,
    pub bound_ms: Option<u64>,
    pub boot: u8,
    pub machine: String,
    pub started: Instant,
    pub names: Vec<NamedDomain>,
    pub receipts: Vec<Receipt>,
    asked: u64,
}

impl Node {
    pub fn new(node: &str, client: Client) -> Node {
        let started = Instant::now();
        let machine = format!("hardware of {node}");
        let (names, receipts) = (Vec::new(), Vec::new());
        Node { id: id(node), client, bound_ms: Some(1500), boot: 1, machine, started, names, receipts, asked: 0 }
    }

    /// Names a domain from now on.
    pub fn name(&mut self, domain: DomainId, name: &str, state: NamedState) {
        self.names.retain(|named| named.domain != domain);
        let name = name.to_owned();
        self.names.push(NamedDomain { domain, name, epoch: None, state, held_on_lapse: false });
    }

    pub fn question(&mut self) -> RenewRequest {
        self.asked += 1;
        let digest = format!("{}-{}-{}", self.boot, self.asked, self.names.len());
        RenewRequest {
            protocol: VERSION,
            incarnation: Incarnation::from_bytes([self.boot; 16]),
            question: QuestionNumber(self.asked),
            boot_id: BootId::from_bytes([self.boot; 16]),
            machine: Machine { hardware: self.machine.clone(), key: self.machine.clone() },
            uptime_ms: self.started.elapsed().as_millis() as u64,
            ttl_ms: 1000,
            bound_ms: self.bound_ms,
            mode: Mode::Enforce,
            list: QuestionList { digest, domains: Some(self.names.clone()), claims_tag: None },
            receipts: self.receipts.clone(),
        }
    }

    pub fn try_ask(&mut self) -> Result<RenewAnswer, String> {
        let question = self.question();
        let path = format!("/v1/nodes/{}/renew", self.id);
        self.client.json("POST", &path, Some(&question), PATIENCE).map_err(|e| e.to_string())
    }

    pub fn ask(&mut self) -> RenewAnswer {
        self.try_ask().unwrap()
    }

    pub fn claim(&mut self, domain: DomainId) -> ClaimEntry {
        let claims = self.ask().claims.domains.unwrap();
        claims.into_iter().find(|claim| claim.domain == domain).unwrap()
    }

    /// Says with the next questions that a denial was obeyed.
    pub fn receipt(&mut self, denial: &ClaimEntry) {
        let denied_incarnation = Incarnation::from_bytes([self.boot; 16]);
        let denied_question = QuestionNumber(self.asked);
        let Epoch(epoch) = denial.epoch;
        self.receipts.push(Receipt { domain: denial.domain, epoch: Epoch(epoch), denied_incarnation, denied_question });
    }
}
