//! UDP sockets of a program that become datagram rsockets, if `preload_config` names them.

use crate::at_exit;
use crate::datagram::Datagram;
use crate::preload::adopt;
use crate::preload::config::{self, SocketKind};
use crate::preload::{BITMAP, DescriptorSockets};
use crate::sys;
use crate::table::{self, Entry};
use std::ffi::c_int;
use std::os::fd::RawFd;
use uiw_cabi_core::boundary::Result;
use uiw_cabi_core::engine;
use uiw_cabi_core::settings::Settings;

/// Converts a UDP socket that the program has just created to an rsocket with the same number,
/// unless it has to stay a UDP socket.
///
/// # Errors
/// EINVAL if an environment variable has an invalid value; EMFILE.
pub(super) fn adopt(fd: RawFd, domain: c_int, program: &str) -> Result<()> {
    if !config::includes(program, domain, SocketKind::Datagram)
        || Settings::get()?.stays_on_tcp(program)
    {
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
    let socket = Datagram::new(fd, is_ipv6, adopt::sizes(), flags, DescriptorSockets::of(fd))?;
    table::insert(fd, Entry::Datagram(socket));
    Ok(())
}
