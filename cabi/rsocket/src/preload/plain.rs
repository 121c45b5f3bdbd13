//! TCP sockets of a program that may become rsockets.

use crate::preload::config::SocketKind;
use crate::preload::{BITMAP, DescriptorSockets, adopt, config, descriptor_sockets, process};
use crate::sys;
use crate::table::{self, Entry};
use std::ffi::c_int;
use std::net::SocketAddr;
use std::os::fd::RawFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicI32, AtomicU8, Ordering};
use std::thread;
use uiw_cabi_core::address;
use uiw_cabi_core::boundary::Result;
use uiw_cabi_core::errno::Errno;
use uiw_cabi_core::ports;
use uiw_cabi_core::settings::Settings;
use uiw_cabi_core::stack;

/// States of a [`PlainSocket`]. In this first one, it is neither listening nor connected.
const NEW: u8 = 0;
const LISTENING: u8 = 1;
/// The connection was accepted, but not used yet.
const ACCEPTED: u8 = 2;
/// A thread is converting the socket to an rsocket.
const BECOMING: u8 = 3;

/// Socket of the kernel that may become an rsocket. It has no locks, because a fork copies it.
pub(crate) struct PlainSocket {
    state: AtomicU8,
    ipv6: bool,
    descriptor_sockets: Option<DescriptorSockets>,
    /// TCP_SYNCNT of the program, if it was changed for the attempt to connect with rsockets;
    /// otherwise 0.
    syn_retries: AtomicI32,
    /// Value of [`process::forks`] when the socket was registered.
    forks: u32,
}

impl PlainSocket {
    fn new(fd: RawFd, state: u8, ipv6: bool) -> Arc<Self> {
        Arc::new(Self {
            state: AtomicU8::new(state),
            ipv6,
            descriptor_sockets: DescriptorSockets::of(fd),
            syn_retries: AtomicI32::new(0),
            forks: process::forks(),
        })
    }

    pub(crate) fn ipv6(&self) -> bool {
        self.ipv6
    }

    /// Returns the sockets of the system to which the descriptor may refer.
    pub(crate) fn descriptor_sockets(&self) -> Option<DescriptorSockets> {
        self.descriptor_sockets
    }

    /// Returns the program's TCP_SYNCNT before [`limit_attempt`], or 0 if it is unchanged.
    pub(crate) fn take_syn_retries(&self) -> c_int {
        self.syn_retries.swap(0, Ordering::Relaxed)
    }

    /// Returns whether a thread is converting the socket to an rsocket.
    pub(crate) fn is_becoming(&self) -> bool {
        self.state.load(Ordering::Acquire) == BECOMING
    }

    /// Returns whether the socket is, or may become, connected.
    pub(crate) fn may_become(&self) -> bool {
        self.state.load(Ordering::Acquire) != LISTENING
    }
}

/// Registers a socket that the program has created. It may become an rsocket, unless it has to stay
/// on TCP.
///
/// # Errors
/// EINVAL if an environment variable has an invalid value, because it is not known whether
/// connections may be unencrypted; EMFILE if the placeholder cannot be created. With TLS, also
/// EMFILE or EOPNOTSUPP for a socket that cannot become an rsocket.
pub(crate) fn register(fd: RawFd, domain: c_int, program: &str) -> Result<()> {
    if !config::includes(program, domain, SocketKind::Stream)
        || Settings::get()?.stays_on_tcp(program)
    {
        return Ok(());
    }
    let cannot = match () {
        () if stack::is_in_process() => Some(Errno::UNSUPPORTED),
        () if !BITMAP.has_room(fd) => Some(Errno(libc::EMFILE)),
        () => None,
    };
    match cannot {
        Some(errno) if must_encrypt() => {
            Err(errno.because("a socket cannot become an rsocket, and TCP would not be encrypted"))
        }
        Some(_) => Ok(()),
        None => {
            // The placeholder is created early, because later no descriptor may be left for it.
            descriptor_sockets::placeholder()?;
            table::insert(fd, Entry::Plain(PlainSocket::new(fd, NEW, domain == libc::AF_INET6)));
            Ok(())
        }
    }
}

/// Returns whether a connection must not fall back to TCP, because with TLS it would not be
/// encrypted. Also returns true if it is not known whether TLS is configured.
pub(crate) fn must_encrypt() -> bool {
    Settings::get().map_or(true, |settings| settings.tls.is_some())
}

/// Returns the address with the port of rsockets for an address of the program. Returns `None` if
/// the connection stays on TCP because the port is listed, or because the offset leads to an
/// invalid port.
///
/// # Errors
/// EADDRNOTAVAIL with TLS, if the offset leads to an invalid port.
pub(crate) fn on_rsockets(addr: SocketAddr) -> Result<Option<SocketAddr>> {
    if Settings::get()?.stays_on_tcp(&addr.port().to_string()) {
        return Ok(None);
    }
    match address::to_real_same_family(addr) {
        None if must_encrypt() => Err(address::unmapped_port(addr.port())),
        None => {
            tracing::info!(%addr, "with UIW_PORT_OFFSET the port is not from 1 to 65535: TCP");
            Ok(None)
        }
        real => Ok(real),
    }
}

/// Binds the socket to an address with the program's port number. Returns false if the caller has
/// to bind it, because it stays on TCP.
///
/// # Errors
/// OS errors and of [`on_rsockets`].
pub(crate) fn bind(fd: RawFd, addr: SocketAddr) -> Result<bool> {
    let Some(mut real) = on_rsockets(addr)? else {
        table::release(fd);
        return Ok(false);
    };
    if addr.port() == 0 {
        real.set_port(ports::free_named(real.ip())?);
    }
    sys::bind(fd, address::significant_bytes(&address::to_sockaddr(real)))?;
    Ok(true)
}

/// Limits the number of SYNs. Called before the system connects the socket to the port of rsockets.
/// If nothing answers, for example behind a firewall that drops packets, the attempt then fails
/// soon enough for TCP to be tried. With TLS there is no fallback to TCP, so there is no limit.
pub(crate) fn limit_attempt(fd: RawFd, plain: &PlainSocket) {
    let asked =
        Settings::get().ok().and_then(Settings::sockets_syn_retries).filter(|_| !must_encrypt());
    let own = sys::int_option(fd, libc::IPPROTO_TCP, libc::TCP_SYNCNT);
    if let (Some(asked), Some(own)) = (asked, own)
        && own > asked
        && sys::set_option(fd, libc::IPPROTO_TCP, libc::TCP_SYNCNT, asked).is_ok()
    {
        plain.syn_retries.store(own, Ordering::Relaxed);
    }
}

/// Restores the program's number of SYNs. Called before the system connects the socket to the
/// program's port.
pub(crate) fn unlimit_attempt(fd: RawFd, syn_retries: c_int) {
    if syn_retries > 0
        && let Err(error) = sys::set_option(fd, libc::IPPROTO_TCP, libc::TCP_SYNCNT, syn_retries)
    {
        tracing::warn!(%error, "TCP_SYNCNT of the program's socket could not be restored");
    }
}

/// Records that listen(2) has succeeded on the socket.
pub(crate) fn mark_listening(plain: &PlainSocket) {
    let _ = plain.state.compare_exchange(NEW, LISTENING, Ordering::AcqRel, Ordering::Acquire);
}

/// Registers a connection that the system has accepted.
///
/// # Errors
/// EMFILE if the descriptor is too large for an rsocket.
pub(crate) fn register_accepted(listening: &PlainSocket, fd: RawFd) -> Result<()> {
    if !BITMAP.has_room(fd) {
        return Err(Errno(libc::EMFILE)
            .because("the descriptor of an accepted connection is too large for an rsocket"));
    }
    table::insert(fd, Entry::Plain(PlainSocket::new(fd, ACCEPTED, listening.ipv6)));
    Ok(())
}

/// Prepares closing the socket: converts an accepted but unused connection to an rsocket, so that
/// the peer sees an orderly end. The system would reset the connection, because the peer's Request
/// was not read. A socket that was registered before a fork is not converted: another process may
/// have it too, so that the system's close does not end the connection for the peer.
pub(super) fn enter_to_close(fd: RawFd, plain: &Arc<PlainSocket>) {
    if plain.forks == process::forks() {
        enter(fd, plain);
    }
}

/// Handles the first use: converts an accepted connection to an rsocket. If that fails, the
/// descriptor gets an rsocket whose connection has failed. Returns false if the socket is not a
/// connection yet.
pub(crate) fn enter(fd: RawFd, plain: &Arc<PlainSocket>) -> bool {
    let begun =
        plain.state.compare_exchange(ACCEPTED, BECOMING, Ordering::AcqRel, Ordering::Acquire);
    match begun {
        Ok(_) => {
            if let Err(error) = adopt::convert_accepted(fd, plain) {
                tracing::warn!(%error, "an accepted connection does not become an rsocket, and is ended");
                adopt::replace_by_failed(fd, plain, error);
            }
            true
        }
        Err(BECOMING) => {
            // Another thread is converting the socket, and replaces the entry when it has finished.
            while matches!(table::get(fd), Some(Entry::Plain(other)) if Arc::ptr_eq(&other, plain))
            {
                thread::yield_now();
            }
            matches!(table::get(fd), Some(Entry::Socket(_)))
        }
        Err(_) => false,
    }
}

/// Converts a socket after the system has connected it, or has started to connect it, to the
/// rsockets' port of `to`.
///
/// # Errors
/// The errors of creating an rsocket.
pub(crate) fn convert_connected(
    fd: RawFd,
    plain: &Arc<PlainSocket>,
    to: SocketAddr,
    pending: bool,
) -> Result<()> {
    let begun = plain.state.compare_exchange(NEW, BECOMING, Ordering::AcqRel, Ordering::Acquire);
    if begun.is_err() {
        return Ok(());
    }
    adopt::convert_connecting(fd, plain, to, pending).inspect_err(|error| {
        tracing::warn!(%error, "a connection does not become an rsocket, and is ended");
        adopt::replace_by_failed(fd, plain, *error);
    })
}

#[cfg(test)]
impl PlainSocket {
    /// Creates an accepted connection, which a thread may be converting to an rsocket.
    pub(crate) fn of_test(is_becoming: bool) -> Arc<Self> {
        Self::new(-1, if is_becoming { BECOMING } else { ACCEPTED }, false)
    }
}
