//! Claims of IP and MAC addresses. A TCP in this process needs addresses that neither the kernel
//! nor another process on this host uses.
//!
//! Two processes with the same address would answer each other's segments with a RST. Processes of
//! one network namespace detect each other by the names of Unix sockets, which belong to the
//! namespace and disappear with the process. Other hosts on the wire are not queried.

use super::config::{SmolConfig, colons};
use crate::netdev::{ethernet_address, kernel_addresses};
use rustix::io::Errno;
use rustix::net::sockopt::socket_peercred;
use rustix::net::{
    AddressFamily, Shutdown, SocketAddrUnix, SocketFlags, SocketType, bind, connect, listen,
    shutdown, socket_with,
};
use std::io::{self, ErrorKind};
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};
use uiw_llp::interface::index_of;

/// Time for which a name may outlive its claim, because a child between fork and exec has a copy of
/// the descriptor.
const RELEASE: Duration = Duration::from_millis(500);
/// Pause between two attempts to take a released name.
const PAUSE: Duration = Duration::from_millis(5);

/// Claim of the MAC address and the IP addresses of one stack on one interface. It ends when the
/// value is dropped.
pub(super) struct Claim {
    names: Vec<OwnedFd>,
}

impl Drop for Claim {
    /// Marks the names as released. [`take_name`] waits for names that are still bound by a copy of
    /// the descriptor.
    fn drop(&mut self) {
        for name in &self.names {
            let _ = shutdown(name, Shutdown::Both);
        }
    }
}

impl Claim {
    /// Claims the addresses in `config`.
    ///
    /// # Errors
    /// `AddrInUse` if the kernel or another process has one of the addresses, and the errors of
    /// [`ethernet_address`].
    pub(super) fn new(interface: &str, config: &SmolConfig) -> io::Result<Self> {
        let taken = |what: String, owner: &str| {
            Err(io::Error::new(
                ErrorKind::AddrInUse,
                format!("{what} is {owner}: a TCP of its own needs its own"),
            ))
        };
        let mac = format!("mac={}", colons(&config.mac));
        // With the same MAC address, all frames for the kernel would be received here.
        if ethernet_address(interface)? == config.mac {
            return taken(mac, "the interface's");
        }
        let kernels = kernel_addresses()?;
        if let Some((address, _)) =
            config.addresses.iter().find(|(address, _)| kernels.contains(address))
        {
            return taken(format!("ip={address}"), "the kernel's");
        }
        let index = index_of(interface)?;
        let ips = config.addresses.iter().map(|(address, _)| format!("ip={address}"));
        let mut names = Vec::new();
        for what in ips.chain([mac]) {
            match take_name(&format!("uiw/{index}/{what}"))? {
                ClaimName::Ours(fd) => names.push(fd),
                ClaimName::Taken(Some(process)) => {
                    return taken(what, &format!("that of process {process}"));
                }
                ClaimName::Taken(None) => return taken(what, "used by another process"),
                // The name belongs to an engine from before a fork. Its process has ended, and the
                // child does not use it.
                ClaimName::Left => {}
            }
        }
        Ok(Self { names })
    }
}

enum ClaimName {
    Ours(OwnedFd),
    Taken(Option<i32>),
    Left,
}

/// Takes a name among the Unix sockets of this network namespace. If the name was released, waits
/// for a limited time.
fn take_name(text: &str) -> io::Result<ClaimName> {
    let end = Instant::now() + RELEASE;
    loop {
        match try_take_name(text)? {
            Some(name) => return Ok(name),
            None if Instant::now() < end => std::thread::sleep(PAUSE),
            None => return Ok(ClaimName::Taken(None)),
        }
    }
}

/// Like [`take_name`], but returns `None` if no process listens: the name is being taken, or was
/// released while a copy of the descriptor is still open.
fn try_take_name(text: &str) -> io::Result<Option<ClaimName>> {
    let socket = || {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)
    };
    let address = SocketAddrUnix::new_abstract_name(text.as_bytes())?;
    let ours = socket()?;
    match bind(&ours, &address) {
        Ok(()) => {
            listen(&ours, 8)?;
            return Ok(Some(ClaimName::Ours(ours)));
        }
        Err(Errno::ADDRINUSE) => {}
        Err(error) => return Err(error.into()),
    }
    let asking = socket()?;
    match connect(&asking, &address) {
        Ok(()) => {
            let process = socket_peercred(&asking)?.pid;
            let alive = rustix::process::test_kill_process(process) != Err(Errno::SRCH);
            Ok(Some(if alive {
                ClaimName::Taken(Some(process.as_raw_nonzero().get()))
            } else {
                ClaimName::Left
            }))
        }
        Err(Errno::CONNREFUSED) => Ok(None),
        // Too many processes are asking for the owner.
        Err(Errno::AGAIN) => Ok(Some(ClaimName::Taken(None))),
        Err(error) => Err(error.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use uiw_interop::stock::Network;

    fn says(config: &SmolConfig) -> String {
        let error = Claim::new("veth0", config).map(drop).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::AddrInUse, "{error}");
        error.to_string()
    }

    #[test]
    fn one_process_has_an_address() {
        let Some(network) = Network::veth() else { return };
        network.inside_server(|| {
            let of = |address: &str| SmolConfig::new(address.parse().unwrap(), 24);
            let first = Claim::new("veth0", &of("10.77.0.11")).expect("it is free");
            let _other = Claim::new("veth0", &of("10.77.0.12")).expect("it is free");
            let ours = format!("ip=10.77.0.11 is that of process {}", std::process::id());
            for _ in 0..20 {
                // From the ninth query on, the queue of queries is full.
                let said = says(&of("10.77.0.11"));
                assert!(said.contains(&ours) || said.contains("used by another process"), "{said}");
            }
            let same_mac = SmolConfig { mac: of("10.77.0.11").mac, ..of("10.77.0.13") };
            assert!(says(&same_mac).contains("mac=02:75:0a:4d:00:0b is that of"));
            drop(first);
            Claim::new("veth0", &of("10.77.0.11")).expect("it is free again");
            assert!(says(&of("10.77.0.1")).contains("ip=10.77.0.1 is the kernel's"));
            let mac = ethernet_address("veth0").unwrap();
            assert!(says(&SmolConfig { mac, ..of("10.77.0.13") }).contains("is the interface's"));
        });
    }
    #[test]
    fn released_address_awaited_despite_copies() {
        let Some(network) = Network::veth() else { return };
        network.inside_server(|| {
            let config = SmolConfig::new("10.77.0.11".parse().unwrap(), 24);
            let first = Claim::new("veth0", &config).expect("it is free");
            // A child between fork and exec has such copies.
            let copies: Vec<_> = first.names.iter().map(|name| name.try_clone().unwrap()).collect();
            drop(first);
            let child = std::thread::spawn(|| {
                std::thread::sleep(Duration::from_millis(50));
                drop(copies);
            });
            Claim::new("veth0", &config).expect("it is free again");
            child.join().unwrap();
        });
    }
}
