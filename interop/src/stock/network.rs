//! Networks for programs: loopback, or two network namespaces connected by a cable.

use super::programs::run_by;
use super::wait_limit::WaitLimit;
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use std::fs;
use std::net::{Ipv4Addr, TcpListener};
use std::os::fd::AsFd as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::Duration;

/// Network for a server and a client.
pub enum Network {
    /// Loopback of this machine, with the address 127.0.0.1.
    Loopback,
    /// Two namespaces connected by a veth pair. Removed when dropped.
    Veth(Namespaces),
}

/// Two network namespaces, and perhaps one between them.
pub struct Namespaces {
    ip: PathBuf,
    /// Names of the namespaces: the server's, the client's and, if there is one, the one between
    /// them.
    names: Vec<String>,
    /// Number of queues of an interface in each direction.
    queues: u32,
}

/// Returns a TCP port that is currently unused and outside of the range from which the system
/// chooses ports for connections. The ports in that range are unsuitable, because thousands of
/// connections of other tests use them, keep them for a minute after their end, and use different
/// ones in each namespace.
///
/// # Panics
/// If the system has no free port.
pub fn free_port() -> u16 {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let chosen = fs::read_to_string("/proc/sys/net/ipv4/ip_local_port_range").unwrap_or_default();
    let end =
        chosen.split_whitespace().next().and_then(|first| first.parse().ok()).unwrap_or(32768);
    let count = u32::max(end, FIRST_PORT + 1) - FIRST_PORT;
    // Processes that run tests concurrently begin far from each other.
    let begin = std::process::id().wrapping_mul(0x9E37_79B9);
    for _ in 0..count {
        let number = begin.wrapping_add(NEXT.fetch_add(1, Ordering::Relaxed)) % count;
        let port = (FIRST_PORT + number) as u16;
        if TcpListener::bind((Ipv4Addr::UNSPECIFIED, port)).is_ok() {
            return port;
        }
    }
    panic!("no free port from {FIRST_PORT} to {end}");
}

/// First candidate port, well above the ports of services.
const FIRST_PORT: u32 = 10_240;

impl Network {
    /// Creates two namespaces. Returns `None` if that is not possible; the test is then counted as
    /// skipped.
    #[track_caller]
    pub fn veth() -> Option<Self> {
        Self::spaces(&["s", "c"], 1)
    }

    /// Like [`Network::veth`], but the interfaces of both ends have `queues` queues in each
    /// direction.
    #[track_caller]
    pub fn veth_of(queues: u32) -> Option<Self> {
        Self::spaces(&["s", "c"], queues)
    }

    /// Like [`Network::veth`], but with a third namespace between the two. Its interfaces `server`
    /// and `client` have no addresses, and nothing passes unless a process there forwards frames.
    #[track_caller]
    pub fn path() -> Option<Self> {
        Self::spaces(&["s", "c", "m"], 1)
    }

    #[track_caller]
    fn spaces(kinds: &[&str], queues: u32) -> Option<Self> {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let ip = crate::require("ip")?;
        let unique = format!("{}-{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
        let names = kinds.iter().map(|kind| format!("uiw-{kind}-{unique}")).collect();
        let space = Namespaces { ip, names, queues };
        if let Err(reason) = space.set_up() {
            // If there was an error, dropping `space` removes everything created so far.
            crate::skip(&format!("network namespaces: {reason}"));
            return None;
        }
        Some(Self::Veth(space))
    }

    /// Returns the address of the server.
    pub fn server_address(&self) -> Ipv4Addr {
        match self {
            Self::Loopback => Ipv4Addr::LOCALHOST,
            Self::Veth(_) => SERVER,
        }
    }

    /// Returns the address of the client.
    pub fn client_address(&self) -> Ipv4Addr {
        match self {
            Self::Loopback => Ipv4Addr::LOCALHOST,
            Self::Veth(_) => CLIENT,
        }
    }

    /// Returns the addresses of server and client with the names of their network namespaces, or
    /// `None` on loopback.
    pub fn places(&self) -> impl Iterator<Item = (Ipv4Addr, &str)> {
        let names = match self {
            Self::Loopback => &[][..],
            Self::Veth(space) => &space.names,
        };
        [self.server_address(), self.client_address()]
            .into_iter()
            .zip(names.iter().map(String::as_str))
    }

    /// Returns `command` changed such that it runs in the network of the server.
    pub fn server(&self, command: Command) -> Command {
        self.at(0, command)
    }

    /// Returns `command` changed such that it runs in the network of the client.
    pub fn client(&self, command: Command) -> Command {
        self.at(1, command)
    }

    /// Returns `command` changed such that it runs in the namespace between the two.
    ///
    /// # Panics
    /// If there is no namespace between them.
    pub fn middle(&self, command: Command) -> Command {
        self.at(2, command)
    }

    /// Calls `what` on a thread in the network of the server. Sockets that it opens stay in that
    /// network.
    ///
    /// # Panics
    /// If `what` panics, or the namespace cannot be entered.
    pub fn inside_server<T: Send>(&self, what: impl FnOnce() -> T + Send) -> T {
        self.inside(0, what)
    }

    /// Like [`Network::inside_server`], in the network of the client.
    ///
    /// # Panics
    /// If `what` panics, or the namespace cannot be entered.
    pub fn inside_client<T: Send>(&self, what: impl FnOnce() -> T + Send) -> T {
        self.inside(1, what)
    }

    fn inside<T: Send>(&self, place: usize, what: impl FnOnce() -> T + Send) -> T {
        let Self::Veth(space) = self else { return what() };
        let file =
            fs::File::open(Path::new(NAMESPACES).join(&space.names[place])).expect("the namespace");
        let done = thread::scope(|scope| {
            let entered = scope.spawn(|| {
                // Affects only this thread, which ends after `what`.
                move_into_link_name_space(file.as_fd(), Some(LinkNameSpaceType::Network))
                    .expect("entering it");
                what()
            });
            entered.join()
        });
        done.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    }

    fn at(&self, place: usize, command: Command) -> Command {
        let Self::Veth(space) = self else { return command };
        inside(&space.ip, &space.names[place], command)
    }
}

/// Folder in which `ip netns` keeps namespaces.
pub(super) const NAMESPACES: &str = "/run/netns";

/// Time limit for an interface to get its carrier or its addresses.
const READY: Duration = Duration::from_secs(60);

/// Address of the server. No other process uses the namespaces, so all tests can use the same
/// addresses.
const SERVER: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 1);
/// Address of the client.
const CLIENT: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 2);

impl Namespaces {
    fn set_up(&self) -> Result<(), String> {
        for name in &self.names {
            self.ip(&["netns", "add", name])?;
        }
        let [server, client] = &self.names[..2] else {
            return Err("two namespaces at least".to_owned());
        };
        let count = self.queues.to_string();
        let queues = ["numtxqueues", &count, "numrxqueues", &count];
        let cable = |from: &str, to: &str, there: &str| {
            let near = [["-n", from, "link", "add", "veth0"].as_slice(), &queues].concat();
            let far =
                [["type", "veth", "peer", "name", there, "netns", to].as_slice(), &queues].concat();
            self.ip(&[near, far].concat())
        };
        if let Some(middle) = self.names.get(2) {
            for (name, there) in [(server, "server"), (client, "client")] {
                cable(name, middle, there)?;
                // This prevents the kernel from sending IPv6 messages of its own on this interface.
                self.ip(&["-n", middle, "link", "set", there, "addrgenmode", "none"])?;
                self.ip(&["-n", middle, "link", "set", there, "up"])?;
            }
        } else {
            cable(server, client, "veth0")?;
        }
        for (name, address) in [(server, SERVER), (client, CLIENT)] {
            self.ip(&["-n", name, "address", "add", &format!("{address}/24"), "dev", "veth0"])?;
            self.ip(&["-n", name, "link", "set", "veth0", "up"])?;
            self.ip(&["-n", name, "link", "set", "lo", "up"])?;
        }
        // Programs that check their port expect it to be up, but its carrier appears a little
        // later.
        for name in [server, client] {
            let link = ["-n", name, "link", "show", "dev", "veth0"];
            wait_for(&self.ip, &link, |said| said.contains("LOWER_UP"))?;
        }
        Ok(())
    }

    fn ip(&self, args: &[&str]) -> Result<String, String> {
        ip(&self.ip, args)
    }
}

/// Returns the output of `ip`.
pub(super) fn ip(program: &Path, args: &[&str]) -> Result<String, String> {
    let output = Command::new(program).args(args).output().map_err(|error| error.to_string())?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    let said = String::from_utf8_lossy(&output.stderr);
    Err(format!("ip {}: {}", args.join(" "), said.trim()))
}

/// Repeats `ip` until it shows a state that `is_ready` accepts.
pub(super) fn wait_for(
    program: &Path,
    args: &[&str],
    is_ready: impl Fn(&str) -> bool,
) -> Result<(), String> {
    let mut limit = WaitLimit::new(READY);
    loop {
        let said = ip(program, args)?;
        if is_ready(&said) {
            return Ok(());
        }
        if limit.is_over() {
            return Err(format!("ip {}: not ready in time: {}", args.join(" "), said.trim()));
        }
        thread::sleep(Duration::from_millis(2));
    }
}

/// Returns `command` changed such that it runs in a network namespace.
pub(super) fn inside(ip: &Path, namespace: &str, command: Command) -> Command {
    let mut inside = Command::new(ip);
    inside.args(["netns", "exec", namespace]);
    run_by(inside, &command)
}

impl Drop for Namespaces {
    fn drop(&mut self) {
        for name in &self.names {
            let _ = self.ip(&["netns", "delete", name]);
        }
    }
}
