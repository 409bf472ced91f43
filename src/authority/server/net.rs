//! Connections: how many, how long, and in TLS.

use super::Options;
use super::driver::{log_last, log_line};
use axum::Router;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use std::collections::HashMap;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::path::Path;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, ready};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::{Semaphore, watch};
use tokio::task::JoinSet;
use tokio::time::{Instant, Sleep, sleep, timeout};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};

/// The most connections at a time, and the most of them from one address.
const CONNECTIONS: usize = 1024;
const PER_ADDRESS: usize = CONNECTIONS / 4;
/// For a TLS handshake, for a request's head, and for a peer to take in an answer.
const PATIENCE: Duration = Duration::from_secs(10);
/// A connection on which nothing comes in this long is closed; longer than any answer is held.
const IDLE: Duration = Duration::from_secs(120);
/// For answers on their way when the process is told to end.
const GRACE: Duration = Duration::from_secs(1);

/// Reads the server's certificate and key.
pub fn tls(cert: &Path, key: &Path) -> Result<TlsAcceptor, String> {
    let wrong = |path: &Path, e: &dyn std::fmt::Display| format!("cannot use {} for TLS: {e}", path.display());
    let chain = CertificateDer::pem_file_iter(cert).and_then(Iterator::collect::<Result<Vec<_>, _>>);
    let chain = chain.map_err(|e| wrong(cert, &e))?;
    let secret = PrivateKeyDer::from_pem_file(key).map_err(|e| wrong(key, &e))?;
    let provider = Arc::new(tokio_rustls::rustls::crypto::ring::default_provider());
    let config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .and_then(|config| config.with_no_client_auth().with_single_cert(chain, secret));
    Ok(TlsAcceptor::from(Arc::new(config.map_err(|e| wrong(cert, &e))?)))
}

/// Serves on every address until SIGTERM or SIGINT.
pub async fn serve(options: &Options, tls: Option<TlsAcceptor>, router: Router) -> Result<(), String> {
    let mut listeners = Vec::new();
    for address in &options.listen {
        let listener = TcpListener::bind(address).await.map_err(|e| format!("cannot listen on {address}: {e}"))?;
        listeners.push(listener);
    }
    let signals = |kind| signal(kind).map_err(|e| format!("cannot catch signals: {e}"));
    let (mut term, mut int) = (signals(SignalKind::terminate())?, signals(SignalKind::interrupt())?);
    let (stop, stopped) = watch::channel(());
    let door = Arc::new(Door { tls, router, slots: Semaphore::new(CONNECTIONS), peers: Mutex::default() });
    let mut tasks = JoinSet::new();
    let mut bound = Vec::new();
    for listener in listeners {
        bound.push(listener.local_addr().map_err(|e| format!("cannot tell the address listened on: {e}"))?.to_string());
        tasks.spawn(accept(listener, Arc::clone(&door), stopped.clone()));
    }
    let scheme = if door.tls.is_some() { "https" } else { "http" };
    log_line(format!("ready, {scheme} on {}", bound.join(" ")));
    tokio::select! {
        _ = term.recv() => {}
        _ = int.recv() => {}
    }
    log_last("stopping".to_owned());
    drop(stop);
    // What is not answered by then is asked again by whoever waits for it.
    let _ = timeout(GRACE, async { while tasks.join_next().await.is_some() {} }).await;
    Ok(())
}

struct Door {
    tls: Option<TlsAcceptor>,
    router: Router,
    slots: Semaphore,
    peers: Mutex<HashMap<IpAddr, usize>>,
}

async fn accept(listener: TcpListener, door: Arc<Door>, mut stopped: watch::Receiver<()>) {
    let mut connections = JoinSet::new();
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            Some(_) = connections.join_next() => continue,
            _ = stopped.changed() => break,
        };
        match accepted {
            Ok((stream, peer)) => drop(connections.spawn(connection(stream, peer, Arc::clone(&door), stopped.clone()))),
            Err(e) => {
                // Out of descriptors, most likely: those in use come back.
                log_line(format!("cannot accept a connection: {e}"));
                sleep(Duration::from_millis(100)).await;
            }
        }
    }
    drop(listener);
    while connections.join_next().await.is_some() {}
}

async fn connection(stream: TcpStream, peer: SocketAddr, door: Arc<Door>, stopped: watch::Receiver<()>) {
    let Ok(_slot) = door.slots.try_acquire() else {
        log_line(format!("{peer} is turned away: {CONNECTIONS} connections are open"));
        return;
    };
    let Some(_seat) = Seat::take(&door, peer.ip()) else {
        log_line(format!("{peer} is turned away: {PER_ADDRESS} connections of that address are open"));
        return;
    };
    // An answer is one small write, and its latency is a killed domain's.
    let _ = stream.set_nodelay(true);
    match &door.tls {
        None => converse(stream, &door, stopped).await,
        Some(tls) => {
            // A handshake that fails is a stranger's, or a peer that does not trust us and says so itself.
            if let Ok(Ok(stream)) = timeout(PATIENCE, tls.accept(stream)).await {
                converse(stream, &door, stopped).await;
            }
        }
    }
}

async fn converse(
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    door: &Door,
    mut stopped: watch::Receiver<()>,
) {
    let service = TowerToHyperService::new(door.router.clone());
    let served = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(PATIENCE)
        .max_buf_size(64 << 10)
        .serve_connection(TokioIo::new(Patient::new(stream)), service);
    let mut served = std::pin::pin!(served);
    // How a connection ended is its peer's business; what it asked for is logged where it was decided.
    tokio::select! {
        _ = &mut served => {}
        _ = stopped.changed() => {
            served.as_mut().graceful_shutdown();
            let _ = served.await;
        }
    }
}

/// A place among the connections of one address.
struct Seat<'a> {
    door: &'a Door,
    peer: IpAddr,
}

impl<'a> Seat<'a> {
    fn take(door: &'a Door, peer: IpAddr) -> Option<Self> {
        let mut peers = door.peers.lock().ok()?;
        let taken = peers.entry(peer).or_default();
        if *taken >= PER_ADDRESS {
            return None;
        }
        *taken += 1;
        Some(Seat { door, peer })
    }
}

impl Drop for Seat<'_> {
    fn drop(&mut self) {
        if let Ok(mut peers) = self.door.peers.lock()
            && let Some(taken) = peers.get_mut(&self.peer)
        {
            *taken -= 1;
            if *taken == 0 {
                peers.remove(&self.peer);
            }
        }
    }
}

/// A stream whose peer must say something within [`IDLE`] and take what it is sent within [`PATIENCE`].
struct Patient<S> {
    stream: S,
    read: Pin<Box<Sleep>>,
    write: Pin<Box<Sleep>>,
    writing: bool,
}

impl<S> Patient<S> {
    fn new(stream: S) -> Self {
        Patient { stream, read: Box::pin(sleep(IDLE)), write: Box::pin(sleep(PATIENCE)), writing: false }
    }

    /// Passes a write's outcome on; from the first one that has to wait until everything is out, the clock runs.
    fn pressed<T>(&mut self, cx: &mut Context<'_>, outcome: Poll<io::Result<T>>) -> Poll<io::Result<T>> {
        if outcome.is_pending() {
            if !self.writing {
                self.writing = true;
                self.write.as_mut().reset(Instant::now() + PATIENCE);
            }
            ready!(self.write.as_mut().poll(cx));
            return Poll::Ready(Err(io::ErrorKind::TimedOut.into()));
        }
        outcome
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Patient<S> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let outcome = Pin::new(&mut self.stream).poll_read(cx, buf);
        if outcome.is_pending() {
            ready!(self.read.as_mut().poll(cx));
            return Poll::Ready(Err(io::ErrorKind::TimedOut.into()));
        }
        self.read.as_mut().reset(Instant::now() + IDLE);
        outcome
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Patient<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        let outcome = Pin::new(&mut self.stream).poll_write(cx, buf);
        self.pressed(cx, outcome)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let outcome = Pin::new(&mut self.stream).poll_flush(cx);
        if outcome.is_ready() {
            self.writing = false;
        }
        self.pressed(cx, outcome)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let outcome = Pin::new(&mut self.stream).poll_shutdown(cx);
        self.pressed(cx, outcome)
    }
}
