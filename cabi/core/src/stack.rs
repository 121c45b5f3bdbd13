//! The TCP implementation that the engine uses: the kernel's, or with `UIW_LLP` one in this
//! process. The latter has its own addresses and ports, which the kernel does not know.

use crate::boundary::Result;
use crate::errno::Errno;
use crate::settings::Settings;
use std::io;
use std::net::{IpAddr, SocketAddr};
use uiw_llp::TransportStack;
use uiw_smol::SmolConfig;
use uiw_smol::capability::refusal;

/// Dynamic ports (RFC 6335 section 6).
const DYNAMIC: std::ops::RangeInclusive<u16> = 49152..=65535;

/// Opens the TCP implementation. The reason of a failure is written to standard error, because the
/// error number alone does not show it.
pub(crate) fn open(settings: &Settings) -> Result<Box<dyn TransportStack>> {
    settings.llp.open().map_err(|error| {
        if settings.llp.own().is_some() {
            let denied = error.kind() == io::ErrorKind::PermissionDenied;
            let fix =
                if denied { refusal(settings.llp.capabilities()).1 } else { "see `uiw doctor`" };
            crate::log::note!("uiw: UIW_LLP: {error}: {fix}");
        }
        Errno::from(error)
    })
}

/// Returns the interface and the configuration of the TCP in this process, if there is one.
fn in_process_config() -> Option<(&'static str, &'static SmolConfig)> {
    Settings::get().ok()?.llp.own()
}

/// Returns whether the TCP runs in this process, so that its addresses and ports are not the
/// kernel's.
pub fn is_in_process() -> bool {
    in_process_config().is_some()
}

/// Returns the source address for `peer` on a TCP in this process: an address of the same network,
/// or otherwise the first of its family.
pub(crate) fn source_for(peer: SocketAddr) -> Option<Result<SocketAddr>> {
    let (_, config) = in_process_config()?;
    let family =
        || config.addresses.iter().filter(|(address, _)| address.is_ipv4() == peer.is_ipv4());
    let near = family().find(|(address, prefix)| same_network(*address, peer.ip(), *prefix));
    let found = near.or_else(|| family().next()).map(|(address, _)| SocketAddr::new(*address, 0));
    Some(found.ok_or_else(|| {
        Errno(libc::ENETUNREACH).because("the interface has no address of the peer's family")
    }))
}

fn same_network(a: IpAddr, b: IpAddr, prefix: u8) -> bool {
    match (a, b) {
        (IpAddr::V4(a), IpAddr::V4(b)) => {
            let mask = u32::MAX.checked_shl(32 - u32::from(prefix.min(32))).unwrap_or(0);
            a.to_bits() & mask == b.to_bits() & mask
        }
        (IpAddr::V6(a), IpAddr::V6(b)) => {
            let mask = u128::MAX.checked_shl(128 - u32::from(prefix.min(128))).unwrap_or(0);
            a.to_bits() & mask == b.to_bits() & mask
        }
        _ => false,
    }
}

/// Returns a random dynamic port, for port 0 on a TCP in this process.
pub fn random_port() -> u16 {
    let count = u32::from(DYNAMIC.end() - DYNAMIC.start()) + 1;
    let random = getrandom::u32().unwrap_or_else(|_| std::process::id());
    DYNAMIC.start() + (random % count) as u16
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn networks_of_both_families() {
        let same =
            |a: &str, b: &str, prefix| same_network(a.parse().unwrap(), b.parse().unwrap(), prefix);
        assert!(same("10.1.2.3", "10.1.2.200", 24) && !same("10.1.2.3", "10.1.3.3", 24));
        assert!(same("10.1.2.3", "192.0.2.1", 0) && !same("10.1.2.3", "10.1.2.4", 32));
        assert!(same("fd00::1", "fd00::ffff", 64) && !same("fd00::1", "fd01::1", 64));
        assert!(!same("fd00::1", "10.0.0.1", 0));
        assert!(DYNAMIC.contains(&random_port()));
    }
}
