//! Congestion control for long paths.

use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with, sockopt};
use std::time::Duration;

/// What fills a long path on which packets are lost.
pub(crate) const LONG_PATHS: &str = "bbr";
/// Above this round trip time a path is long.
pub(crate) const LONG: Duration = Duration::from_millis(5);

/// Whether the kernel's TCP has it, and this user may choose it.
pub(crate) fn is_offered(name: &str) -> bool {
    let socket = socket_with(AddressFamily::INET, SocketType::STREAM, SocketFlags::CLOEXEC, None);
    socket.is_ok_and(|socket| sockopt::set_tcp_congestion(&socket, name).is_ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_system_uses_is_offered_and_nonsense_is_not() {
        let used = std::fs::read_to_string("/proc/sys/net/ipv4/tcp_congestion_control").unwrap();
        assert!(is_offered(used.trim()));
        assert!(!is_offered("nonsense"));
    }
}
