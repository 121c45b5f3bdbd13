//! UDP sockets of a program that are datagram rsockets: those that `preload_config` names.

use crate::boundary::Result;
use crate::engine;
use crate::rsocket::at_exit;
use crate::rsocket::datagram::Datagram;
use crate::rsocket::preload::adopt;
use crate::rsocket::preload::config::{self, Kind};
use crate::rsocket::preload::{BITMAP, Behind};
use crate::rsocket::sys;
use crate::rsocket::table::{self, Entry};
use crate::settings::Settings;
use std::ffi::c_int;
use std::os::fd::RawFd;

/// The program has made a UDP socket. It is an rsocket from now on, with the same number, unless something says that it stays one of UDP.
///
/// # Errors
/// EINVAL where a variable has a bad value; EMFILE.
pub(super) fn made(fd: RawFd, domain: c_int, program: &str) -> Result<()> {
    if !config::includes(program, domain, Kind::Datagram) || Settings::get()?.stays_on_tcp(program) {
        return Ok(());
    }
    if let Some(reason) = Datagram::missing()? {
        tracing::warn!("a socket stays one of UDP: {reason}");
        return Ok(());
    }
    if !BITMAP.has_room(fd) {
        return Ok(());
    }
    engine::before_exit(at_exit);
    let (is_ipv6, flags) = (domain == libc::AF_INET6, sys::status_flags(fd)?);
    let socket = Datagram::new(fd, is_ipv6, adopt::sizes(), flags, Behind::of(fd))?;
    table::name(fd, Entry::Datagram(socket));
    Ok(())
}
