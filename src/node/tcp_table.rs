//! The kernel's table of TCP sockets, /proc/PID/net/tcp and tcp6 (proc_pid_net(5)).

use serde::{Deserialize, Serialize};
use std::fmt;
use std::fs::File;
use std::io::{self, BufRead, BufReader};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::Path;

/// The most rows read of one table. A host has at most some 10 000; the kernel's own limit of orphans is 262 144.
const MAX_ROWS: usize = 1 << 20;

/// A TCP connection by its two ends. IPv4 in IPv6 (::ffff:a.b.c.d) is IPv4.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Connection {
    local: (IpAddr, u16),
    remote: (IpAddr, u16),
}

impl Connection {
    /// From its two ends.
    pub fn new(local: SocketAddr, remote: SocketAddr) -> Connection {
        let end = |address: SocketAddr| (address.ip().to_canonical(), address.port());
        Connection { local: end(local), remote: end(remote) }
    }

    /// Whether it stays on this host.
    pub fn is_local(&self) -> bool {
        self.remote.0.is_loopback() || self.remote.0 == self.local.0
    }

    /// Its two ends, ours first.
    pub(super) fn ends(&self) -> ((IpAddr, u16), (IpAddr, u16)) {
        (self.local, self.remote)
    }
}

impl fmt::Display for Connection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let end = |(ip, port)| SocketAddr::new(ip, port);
        write!(f, "{} to {}", end(self.local), end(self.remote))
    }
}

/// One socket of the table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Row {
    pub connection: Connection,
    state: u8,
    /// Sequence numbers not acknowledged yet.
    queued: u32,
    /// Zero: no process owns it.
    pub inode: u64,
}

// include/net/tcp_states.h
const FIN_WAIT1: u8 = 4;
const TIME_WAIT: u8 = 6;
const LAST_ACK: u8 = 9;
const LISTEN: u8 = 10;
const CLOSING: u8 = 11;

impl Row {
    /// Whether this is what a dead process left behind with something still to deliver. A closed socket's FIN counts as one
    /// sequence number and carries no data.
    pub(super) fn is_orphan_with_data(&self) -> bool {
        let fin = u32::from(matches!(self.state, FIN_WAIT1 | LAST_ACK | CLOSING));
        self.inode == 0 && !matches!(self.state, TIME_WAIT | LISTEN) && self.queued > fin
    }
}

/// Both tables below `net`. A kernel without IPv6 has no tcp6.
pub(super) fn read(net: &Path) -> io::Result<Vec<Row>> {
    let mut rows = Vec::new();
    for name in ["tcp", "tcp6"] {
        let file = match File::open(net.join(name)) {
            Err(error) if name == "tcp6" && error.kind() == io::ErrorKind::NotFound => continue,
            file => file?,
        };
        // The kernel fills one read's buffer at a time; a larger one is fewer walks of its table.
        for line in BufReader::with_capacity(64 << 10, file).lines().skip(1).take(MAX_ROWS) {
            let line = line?;
            let unreadable = || {
                io::Error::new(
                    io::ErrorKind::InvalidData,
                    format!("{}: not understood: {line}", net.join(name).display()),
                )
            };
            rows.push(parse(&line).ok_or_else(unreadable)?);
        }
    }
    Ok(rows)
}

/// `sl local remote st tx:rx tr:when retrnsmt uid timeout inode ...`, numbers in hexadecimal but for the last.
fn parse(line: &str) -> Option<Row> {
    let mut fields = line.split_ascii_whitespace().skip(1);
    let (local, remote) = (address(fields.next()?)?, address(fields.next()?)?);
    let state = u8::from_str_radix(fields.next()?, 16).ok()?;
    let queued = u32::from_str_radix(fields.next()?.split(':').next()?, 16).ok()?;
    let inode = fields.nth(4)?.parse().ok()?;
    Some(Row { connection: Connection::new(local, remote), state, queued, inode })
}

/// Each 32-bit word of an address as the machine holds it in memory, in hexadecimal; the port in plain hexadecimal.
fn address(text: &str) -> Option<SocketAddr> {
    let (ip, port) = text.split_once(':')?;
    let word = |at: usize| Some(u32::from_str_radix(ip.get(at..at + 8)?, 16).ok()?.to_ne_bytes());
    let ip = match ip.len() {
        8 => IpAddr::V4(Ipv4Addr::from(word(0)?)),
        32 => {
            let mut bytes = [0; 16];
            for (index, chunk) in bytes.chunks_exact_mut(4).enumerate() {
                chunk.copy_from_slice(&word(index * 8)?);
            }
            IpAddr::V6(Ipv6Addr::from(bytes))
        }
        _ => return None,
    };
    Some(SocketAddr::new(ip, u16::from_str_radix(port, 16).ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::{TcpListener, TcpStream};

    #[test]
    fn a_connection_is_found_in_the_kernels_own_table() {
        for listen in ["127.0.0.1:0", "[::1]:0", "[::ffff:127.0.0.1]:0"] {
            let Ok(listener) = TcpListener::bind(listen) else { continue };
            let stream = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
            let wanted = Connection::new(stream.local_addr().unwrap(), stream.peer_addr().unwrap());
            let row = read(Path::new("/proc/self/net")).unwrap().into_iter().find(|row| row.connection == wanted);
            let row = row.unwrap_or_else(|| panic!("{wanted} is in the table"));
            assert!(row.inode != 0 && !row.is_orphan_with_data());
        }
    }

    #[test]
    fn only_a_socket_without_owner_and_with_data_is_an_orphan_to_wait_for() {
        let row = |state, queued, inode| {
            let line =
                format!("0: 0100007F:1F90 0200007F:0050 {state:02X} {queued:08X}:00000000 01:00000014 0 0 0 {inode} 2");
            parse(&line).unwrap()
        };
        for (state, queued, inode, waits) in [
            (FIN_WAIT1, 65537, 0, true),
            (FIN_WAIT1, 1, 0, false),
            (FIN_WAIT1, 65537, 77, false),
            (LAST_ACK, 2, 0, true),
            (5, 0, 0, false),
            (TIME_WAIT, 0, 0, false),
            (1, 1, 0, true),
        ] {
            assert_eq!(row(state, queued, inode).is_orphan_with_data(), waits, "{state} {queued} {inode}");
        }
        if cfg!(target_endian = "little") {
            assert_eq!(row(1, 0, 0).connection.to_string(), "127.0.0.1:8080 to 127.0.0.2:80");
        }
    }

    #[test]
    fn a_line_that_is_not_one_is_no_row() {
        for line in
            ["", "0:", "0: zz:1 0:0 01 0:0 0 0 0 0 1", "0: 0100007F:1F90 0200007F:0050 01 00000000:00000000 0 0"]
        {
            assert_eq!(parse(line), None, "{line}");
        }
    }
}
