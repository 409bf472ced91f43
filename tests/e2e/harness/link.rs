//! A cable between two spaces that can be cut in either direction.

use super::Space;
use std::net::Ipv4Addr;
use std::process::Command;

/// Which packets a cut drops, seen from the end where it is made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Direction {
    Both,
    Outgoing,
    Incoming,
}

/// A veth pair. A cut is silent: packets vanish, as behind a switch port that went dark, and nothing is refused.
pub struct Link {
    /// The first end's address.
    pub near: Ipv4Addr,
    /// The second end's address.
    pub far: Ipv4Addr,
    device: String,
}

impl Link {
    /// Connects two spaces by the `number`th cable of a world, 10.77.NUMBER.1 (far) and .2 (near).
    pub fn between(near: &Space, far: &Space, number: u8) -> Link {
        let (near_address, far_address) = (Ipv4Addr::new(10, 77, number, 2), Ipv4Addr::new(10, 77, number, 1));
        let device = format!("c{number}");
        let (near_pid, far_pid) = (near.init().to_string(), far.init().to_string());
        // Both ends are made inside: nothing of the pair is ever visible in the machine's own network.
        let pair = ["link", "add", &device, "netns", &near_pid, "type", "veth", "peer", "name", &device];
        let made = Command::new("ip").args(pair).args(["netns", &far_pid]).output().expect("ip can be run");
        assert!(made.status.success(), "no veth pair: {}", String::from_utf8_lossy(&made.stderr));
        for (space, address) in [(near, near_address), (far, far_address)] {
            space.run("ip", &["addr", "add", &format!("{address}/24"), "dev", &device]).expect_ok();
            space.run("ip", &["link", "set", &device, "up"]).expect_ok();
        }
        Link { near: near_address, far: far_address, device }
    }

    /// Drops packets from now on, at either end: directions are seen from the space that is given.
    pub fn cut(&self, end: &Space, direction: Direction) {
        let mut rules = format!("table inet cut_{} {{\n", self.device);
        if direction != Direction::Incoming {
            rules += &format!("chain o {{ type filter hook output priority 0; oifname \"{}\" drop; }}\n", self.device);
        }
        if direction != Direction::Outgoing {
            rules += &format!("chain i {{ type filter hook input priority 0; iifname \"{}\" drop; }}\n", self.device);
        }
        end.run_with("nft", &["-f", "-"], &(rules + "}\n")).expect_ok();
    }

    /// Takes the cable's end down, or up again, as `ip link set` does.
    pub fn set(&self, end: &Space, state: &str) {
        end.run("ip", &["link", "set", &self.device, state]).expect_ok();
    }

    /// Undoes [`Link::cut`], at the end where it was cut.
    pub fn heal(&self, end: &Space) {
        end.run("nft", &["delete", "table", "inet", &format!("cut_{}", self.device)]).expect_ok();
    }
}
