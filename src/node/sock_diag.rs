//! Ends one orphaned TCP connection and drops its queue, as `ss --kill` does (sock_diag(7), SOCK_DESTROY; net/ipv4/tcp.c,
//! `tcp_abort`). Needs CAP_NET_ADMIN and a kernel with CONFIG_INET_DIAG_DESTROY.

use super::tcp_table::Connection;
use nix::sys::socket::{
    AddressFamily, MsgFlags, NetlinkAddr, SockFlag, SockProtocol, SockType, bind, recv, send, setsockopt, socket,
    sockopt,
};
use nix::sys::time::{TimeVal, TimeValLike};
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::os::fd::{AsRawFd, OwnedFd};

// include/uapi/linux/sock_diag.h, netlink.h
const SOCK_DIAG_BY_FAMILY: u16 = 20;
const SOCK_DESTROY: u16 = 21;
const NLMSG_ERROR: u16 = 2;
const NLM_F_REQUEST: u16 = 1;
const NLM_F_ACK: u16 = 4;
const HEADER: usize = 16;
/// `struct inet_diag_msg`: family, state, timer, retransmits; the socket's id; expires, rqueue, wqueue, uid, inode.
const MESSAGE: usize = 4 + ID + 20;
/// `struct inet_diag_sockid`: ports, addresses, interface, cookie.
const ID: usize = 48;
const LISTEN: u8 = 10;

/// Ends the connection if no process owns it. What was already over is no error.
///
/// # Errors
/// The kernel cannot (`EOPNOTSUPP`) or this process may not (`EPERM`).
pub(super) fn end_orphan(connection: &Connection) -> io::Result<()> {
    let diag = open()?;
    // Asked for first: without its cookie the kernel would take a listening socket on the same port as well.
    let asked = exchange(&diag, SOCK_DIAG_BY_FAMILY, connection, &[0xff; 8]);
    let found = match asked {
        Err(error) if is_over(&error) => return Ok(()),
        found => found?,
    };
    let message = found.get(..MESSAGE).ok_or(io::ErrorKind::UnexpectedEof)?;
    let (state, inode) = (message[1], &message[MESSAGE - 4..]);
    if inode != [0; 4] || state == LISTEN {
        return Ok(());
    }
    match exchange(&diag, SOCK_DESTROY, connection, &message[4 + ID - 8..4 + ID]) {
        Err(error) if is_over(&error) => Ok(()),
        done => done.map(drop),
    }
}

/// Whether [`end_orphan`] would work, tried on a connection that cannot be.
///
/// # Errors
/// It would not: as there.
pub(super) fn can_end_orphans() -> io::Result<()> {
    // No socket has port 0.
    let nothing = SocketAddr::new(Ipv4Addr::LOCALHOST.into(), 0);
    match exchange(&open()?, SOCK_DESTROY, &Connection::new(nothing, nothing), &[0; 8]) {
        Err(error) if is_over(&error) => Ok(()),
        Ok(_) => Ok(()),
        Err(error) => Err(error),
    }
}

fn is_over(error: &io::Error) -> bool {
    // ESTALE: the cookie is another socket's by now.
    matches!(error.raw_os_error(), Some(libc::ENOENT | libc::ESTALE))
}

fn open() -> io::Result<OwnedFd> {
    let diag =
        socket(AddressFamily::Netlink, SockType::Datagram, SockFlag::SOCK_CLOEXEC, SockProtocol::NetlinkSockDiag)?;
    bind(diag.as_raw_fd(), &NetlinkAddr::new(0, 0))?;
    // The kernel answers within the send; this is for a kernel that does not.
    setsockopt(&diag, sockopt::ReceiveTimeout, &TimeVal::seconds(1))?;
    Ok(diag)
}

/// One request and its answer, without the header.
fn exchange(diag: &OwnedFd, kind: u16, connection: &Connection, cookie: &[u8]) -> io::Result<Vec<u8>> {
    let request = request(kind, connection, cookie);
    send(diag.as_raw_fd(), &request, MsgFlags::empty())?;
    let mut answer = vec![0; 8192];
    let length = recv(diag.as_raw_fd(), &mut answer, MsgFlags::empty())?;
    answer.truncate(length);
    let kind = answer.get(4..6).ok_or(io::ErrorKind::UnexpectedEof)?;
    let error = kind == NLMSG_ERROR.to_ne_bytes();
    let body = answer.split_off(HEADER.min(answer.len()));
    match (error, body.first_chunk()) {
        (true, Some(code)) if *code != [0; 4] => Err(io::Error::from_raw_os_error(-i32::from_ne_bytes(*code))),
        (true, None) => Err(io::ErrorKind::UnexpectedEof.into()),
        _ => Ok(body),
    }
}

/// `struct nlmsghdr` and `struct inet_diag_req_v2`.
fn request(kind: u16, connection: &Connection, cookie: &[u8]) -> Vec<u8> {
    let ((local, local_port), (remote, remote_port)) = connection.ends();
    let flags = NLM_F_REQUEST | if kind == SOCK_DESTROY { NLM_F_ACK } else { 0 };
    let family = if local.is_ipv4() { libc::AF_INET } else { libc::AF_INET6 };
    let length = (HEADER + 8 + ID) as u32;
    let mut bytes = Vec::with_capacity(length as usize);
    bytes.extend(length.to_ne_bytes());
    bytes.extend(kind.to_ne_bytes());
    bytes.extend(flags.to_ne_bytes());
    bytes.extend([0; 8]);
    bytes.extend([family as u8, libc::IPPROTO_TCP as u8, 0, 0]);
    bytes.extend(u32::MAX.to_ne_bytes());
    bytes.extend(local_port.to_be_bytes());
    bytes.extend(remote_port.to_be_bytes());
    for address in [local, remote] {
        match address {
            IpAddr::V4(address) => {
                bytes.extend(address.octets());
                bytes.extend([0; 12]);
            }
            IpAddr::V6(address) => bytes.extend(address.octets()),
        }
    }
    bytes.extend([0; 4]);
    bytes.extend(cookie);
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read;
    use std::net::{TcpListener, TcpStream};

    fn pair(listener: &TcpListener) -> (TcpStream, TcpStream, Connection) {
        let near = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (far, _) = listener.accept().unwrap();
        let connection = Connection::new(near.local_addr().unwrap(), near.peer_addr().unwrap());
        (near, far, connection)
    }

    #[test]
    fn a_connection_with_an_owner_is_left_alone() {
        for address in ["127.0.0.1:0", "[::1]:0"] {
            let Ok(listener) = TcpListener::bind(address) else { continue };
            let (mut near, far, connection) = pair(&listener);
            end_orphan(&connection).unwrap();
            drop(far);
            assert_eq!(near.read(&mut [0; 8]).unwrap(), 0, "it ended in order");
        }
    }

    #[test]
    fn a_listener_on_the_port_of_a_connection_that_is_over_is_left_alone() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let stranger = "127.0.0.1:9".parse().unwrap();
        end_orphan(&Connection::new(listener.local_addr().unwrap(), stranger)).unwrap();
        TcpStream::connect(listener.local_addr().unwrap()).expect("it listens still");
    }
}
