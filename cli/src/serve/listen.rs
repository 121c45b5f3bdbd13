//! Listening on an address, and the errors of that.

use super::{BACKLOG, why};
use crate::shared::fail::{Exit, Failure, Result, option_fix};
use std::io::{self, ErrorKind};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use uiw::raw::cm::{CmChannel, Listener};
use uiw::raw::{ConnConfig, Device, Error};

/// `EAFNOSUPPORT`, the error if the system has no IPv6 or the service may not use it.
const NO_SUCH_FAMILY: i32 = 97;

/// Listens on an address. Without IPv6, "all addresses" means all IPv4 addresses.
pub(super) fn bind(
    device: &Device,
    address: SocketAddr,
    options: &Arc<ConnConfig>,
    channel: &Arc<CmChannel>,
) -> Result<Listener> {
    let bind = |address| Listener::bind(device, address, BACKLOG, options, channel);
    let bound = match bind(address) {
        Err(Error::Io { source, .. }) if is_without_ipv6(address, &source) => {
            tracing::info!("IPv6 is not available; listening on IPv4 only");
            bind(SocketAddr::new(Ipv4Addr::UNSPECIFIED.into(), address.port()))
        }
        bound => bound,
    };
    bound.map_err(|error| cannot_listen(address, error))
}

fn is_without_ipv6(address: SocketAddr, error: &io::Error) -> bool {
    address.ip() == IpAddr::V6(Ipv6Addr::UNSPECIFIED)
        && error.raw_os_error() == Some(NO_SUCH_FAMILY)
}

fn cannot_listen(address: SocketAddr, error: Error) -> Failure {
    let fix = match &error {
        Error::Io { source, .. } => fix(source),
        _ => OTHER,
    };
    Failure::new(Exit::Failed, format!("cannot listen on {address}"), why(error), fix)
}

const OTHER: &str = "choose another address with `--listen`, or port 0 for a free one";

fn fix(error: &io::Error) -> &'static str {
    match error.kind() {
        ErrorKind::AddrNotAvailable => {
            "choose an address of this machine with `--listen`: see `ip address`"
        }
        ErrorKind::PermissionDenied => "choose a port from 1024 on with `--listen`",
        _ => option_fix(error).unwrap_or(OTHER),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use uiw_llp::OptionError;

    #[test]
    fn hints_name_what_was_wrong() {
        let of = |error: io::Error| fix(&error);
        let congestion =
            OptionError::Congestion { name: "x".to_owned(), available: "reno".to_owned() };
        assert!(of(congestion.into()).contains("--congestion"));
        assert!(of(OptionError::Segment { bytes: 1 }.into()).contains("--mss"));
        assert_eq!(of(ErrorKind::AddrInUse.into()), OTHER);
        assert!(of(ErrorKind::AddrNotAvailable.into()).contains("ip address"));
        assert!(of(ErrorKind::PermissionDenied.into()).contains("1024"));
    }

    #[test]
    fn only_all_addresses_are_replaced() {
        let none = io::Error::from_raw_os_error(NO_SUCH_FAMILY);
        assert!(is_without_ipv6("[::]:7174".parse().unwrap(), &none));
        assert!(!is_without_ipv6("[::1]:7174".parse().unwrap(), &none));
        assert!(!is_without_ipv6("[::]:7174".parse().unwrap(), &ErrorKind::AddrInUse.into()));
    }
}
