//! Networks between host and guest.

use crate::shell::{Output, must, run};
use crate::{Error, Result};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;
use uiw_interop::find;
use uiw_interop::stock::is_left_over;

const TIMEOUT: Duration = Duration::from_secs(20);
const HOST4: Ipv4Addr = Ipv4Addr::new(10, 66, 0, 1);
const GUEST4: Ipv4Addr = Ipv4Addr::new(10, 66, 0, 2);
const HOST6: Ipv6Addr = Ipv6Addr::new(0xfd66, 0, 0, 0, 0, 0, 0, 1);
const GUEST6: Ipv6Addr = Ipv6Addr::new(0xfd66, 0, 0, 0, 0, 0, 0, 2);
/// IPv4 address of uiw on the host if uiw uses its own TCP on the tap.
const OWN4: Ipv4Addr = Ipv4Addr::new(10, 66, 0, 11);
/// IPv6 address of uiw on the host in this case.
const OWN6: Ipv6Addr = Ipv6Addr::new(0xfd66, 0, 0, 0, 0, 0, 0, 11);
/// Shell command that brings the interface of the guest up and waits for its carrier.
const CARRIER: &str = "ip link set eth0 up; until [ \"$(cat /sys/class/net/eth0/carrier)\" = 1 ]; do usleep 20000; done";
/// Prefix of the names of our namespaces. The process id follows.
const PREFIX: &str = "uiw-siw-";

/// IPv4 or IPv6.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Family {
    /// IPv4.
    V4,
    /// IPv6.
    V6,
}

/// TCP implementation that uiw uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Tcp {
    /// The kernel's.
    Kernel,
    /// smoltcp over AF_PACKET on the tap.
    Packet,
    /// smoltcp over AF_XDP on the tap, before the kernel's stack (generic mode, in which frames are
    /// copied).
    Xdp,
}

/// Network between host and guest.
pub enum Net {
    /// Tap interface in a network namespace, with TCP from end to end.
    Tap(Namespace),
    /// QEMU's user-mode network. It needs no root, but QEMU terminates TCP in between, and there is
    /// neither IPv6 nor another MTU.
    User {
        /// Ports of the guest, and the loopback addresses on which this machine reaches them.
        forwards: Vec<(u16, u16)>,
    },
}

/// Network namespace, which is removed when dropped.
pub struct Namespace {
    name: String,
}

impl Net {
    /// Creates a tap if this process is root, and otherwise user-mode networking with `ports` of
    /// the guest forwarded.
    ///
    /// # Errors
    /// If the namespace cannot be made.
    pub fn open(ports: &[u16]) -> Result<Self> {
        let tap = rustix::process::geteuid().is_root()
            && find("ip").is_some()
            && std::path::Path::new("/dev/net/tun").exists();
        if tap {
            match Namespace::create() {
                Ok(namespace) => return Ok(Self::Tap(namespace)),
                // In many containers, namespaces cannot be created. User-mode networking is used
                // instead.
                Err(error) => {
                    eprintln!("siw: no network namespace, so user-mode networking: {error}");
                }
            }
        }
        let free = |port: &u16| {
            let socket =
                TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).map_err(Error::io("a free port"))?;
            Ok((*port, socket.local_addr().map_err(Error::io("a free port"))?.port()))
        };
        Ok(Self::User { forwards: ports.iter().map(free).collect::<Result<_>>()? })
    }

    /// Returns a command that runs a program in the network of the guest. The kernel kills the
    /// program when the thread that started it ends.
    pub fn command(&self, program: &str) -> Command {
        let mut command;
        let inner: &[&str] = &["setpriv", "--pdeathsig", "KILL", "--", program];
        match self {
            Self::Tap(namespace) => {
                command = Command::new("ip");
                command.args(["netns", "exec", &namespace.name]).args(inner);
            }
            Self::User { .. } => {
                command = Command::new(inner[0]);
                command.args(&inner[1..]);
            }
        }
        command
    }

    /// Returns the name of the device that C programs use to reach the guest.
    pub fn device(&self) -> &'static str {
        match self {
            Self::Tap(_) => "uiw_tap0",
            Self::User { .. } => "uiw_lo",
        }
    }

    /// Returns the arguments of QEMU.
    pub fn qemu(&self) -> Vec<String> {
        let device = "virtio-net-pci,netdev=n0,romfile=,mac=52:54:00:66:00:02";
        let netdev = match self {
            Self::Tap(_) => "tap,id=n0,ifname=tap0,script=no,downscript=no".to_owned(),
            Self::User { forwards } => {
                let forward =
                    |(guest, host): &(u16, u16)| format!(",hostfwd=tcp:127.0.0.1:{host}-:{guest}");
                format!("user,id=n0,ipv6=off{}", forwards.iter().map(forward).collect::<String>())
            }
        };
        ["-netdev", &netdev, "-device", device].map(str::to_owned).to_vec()
    }

    /// Returns the shell commands that configure the network in the guest.
    pub fn guest_setup(&self) -> String {
        match self {
            Self::Tap(_) => format!(
                "{CARRIER}; sysctl -qw net.ipv6.conf.eth0.accept_dad=0; ip link set eth0 up; \
                 ip addr add {GUEST4}/24 dev eth0; ip addr add {GUEST6}/64 dev eth0 nodad"
            ),
            Self::User { .. } => {
                format!(
                    "{CARRIER}; ip addr add 10.0.2.15/24 dev eth0; ip route add default via 10.0.2.2"
                )
            }
        }
    }

    /// Returns the address of the host for the guest.
    ///
    /// # Errors
    /// [`Error::Missing`] without IPv6.
    pub fn host(&self, family: Family) -> Result<IpAddr> {
        match (self, family) {
            (Self::Tap(_), Family::V4) => Ok(HOST4.into()),
            (Self::Tap(_), Family::V6) => Ok(HOST6.into()),
            (Self::User { .. }, Family::V4) => Ok(Ipv4Addr::new(10, 0, 2, 2).into()),
            (Self::User { .. }, Family::V6) => Err(no_ipv6()),
        }
    }

    /// Returns the value of `uiw --llp` for this TCP, and the address of uiw that the guest then
    /// uses instead of the host's. Returns `None` for the kernel's TCP and without a tap.
    pub fn own_tcp(&self, tcp: Tcp, family: Family) -> Option<(String, IpAddr)> {
        let options = match (self, tcp) {
            (Self::Tap(_), Tcp::Packet) => ("packet", ""),
            (Self::Tap(_), Tcp::Xdp) => ("xdp", ",mode=generic"),
            (Self::Tap(_), Tcp::Kernel) | (Self::User { .. }, _) => return None,
        };
        let (kind, mode) = options;
        let own = if family == Family::V4 { OWN4.into() } else { OWN6.into() };
        Some((format!("{kind}:tap0,ip={OWN4}/24,ip={OWN6}/64{mode}"), own))
    }

    /// Returns the address on which a program on the host listens for the guest.
    ///
    /// # Errors
    /// [`Error::Missing`] without IPv6.
    pub fn listen(&self, family: Family) -> Result<IpAddr> {
        match self {
            Self::User { .. } if family == Family::V4 => Ok(Ipv4Addr::LOCALHOST.into()),
            _ => self.host(family),
        }
    }

    /// Returns the address of the guest.
    ///
    /// # Errors
    /// [`Error::Missing`] without IPv6.
    pub fn guest_own(&self, family: Family) -> Result<IpAddr> {
        match (self, family) {
            (Self::Tap(_), Family::V4) => Ok(GUEST4.into()),
            (Self::Tap(_), Family::V6) => Ok(GUEST6.into()),
            (Self::User { .. }, Family::V4) => Ok(Ipv4Addr::new(10, 0, 2, 15).into()),
            (Self::User { .. }, Family::V6) => Err(no_ipv6()),
        }
    }

    /// Returns the address on which the host reaches a port of the guest.
    ///
    /// # Errors
    /// [`Error::Missing`] without IPv6, or if the port is not forwarded.
    pub fn guest(&self, family: Family, port: u16) -> Result<SocketAddr> {
        let own = self.guest_own(family)?;
        let Self::User { forwards } = self else { return Ok(SocketAddr::new(own, port)) };
        let forward = forwards.iter().find(|(guest, _)| *guest == port);
        let (_, host) = forward.ok_or_else(|| Error::Missing(format!("port {port}")))?;
        Ok(SocketAddr::new(Ipv4Addr::LOCALHOST.into(), *host))
    }

    /// Sets the MTU of the host's interface. Returns whether the host then has this MTU: with
    /// user-mode networking, it is always 1500.
    ///
    /// # Errors
    /// If the interface refuses it.
    pub fn set_mtu(&self, mtu: u32) -> Result<bool> {
        let Self::Tap(namespace) = self else { return Ok(mtu == 1500) };
        namespace.ip(&["link", "set", "tap0", "mtu", &mtu.to_string()])?;
        Ok(true)
    }

    /// Returns whether TCP connects host and guest without a proxy in between.
    pub fn is_whole(&self) -> bool {
        matches!(self, Self::Tap(_))
    }
}

fn no_ipv6() -> Error {
    Error::Missing("IPv6 (user-mode networking)".to_owned())
}

impl Namespace {
    fn create() -> Result<Self> {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let name = format!("{PREFIX}{}-{number}", std::process::id());
        ip(&["netns", "add", &name])?;
        let namespace = Self { name };
        let (v4, v6) = (format!("{HOST4}/24"), format!("{HOST6}/64"));
        namespace.ip(&["link", "set", "lo", "up"])?;
        namespace.ip(&["tuntap", "add", "dev", "tap0", "mode", "tap"])?;
        namespace.ip(&["addr", "add", &v4, "dev", "tap0"])?;
        // Without IPv6 on this machine, those rows report that it is missing.
        if let Err(error) = namespace.ip(&["addr", "add", &v6, "dev", "tap0", "nodad"]) {
            eprintln!("siw: no IPv6 in the namespace: {error}");
        }
        namespace.ip(&["link", "set", "tap0", "up"])?;
        Ok(namespace)
    }

    /// Returns the name.
    pub fn name(&self) -> &str {
        &self.name
    }

    fn ip(&self, args: &[&str]) -> Result<()> {
        ip(&[&["-n", &self.name], args].concat())
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        // The namespace may already have been removed by the handler of an interrupt.
        let _: Result<Output> = run(Command::new("ip").args(["netns", "del", &self.name]), TIMEOUT);
    }
}

fn ip(args: &[&str]) -> Result<()> {
    must(Command::new("ip").args(args), TIMEOUT).map(|_| ())
}

/// Removes the namespaces of this process and of processes that have ended.
pub fn sweep() {
    let Ok(list) = must(Command::new("ip").args(["netns", "list"]), TIMEOUT) else { return };
    for name in list.lines().filter_map(|line| line.split_whitespace().next()) {
        if name.strip_prefix(PREFIX).is_some_and(is_left_over) {
            let _ = ip(&["netns", "del", name]);
        }
    }
}
