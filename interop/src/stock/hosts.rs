//! Several hosts on one switch: network namespaces that are connected only by a bridge.

use super::network::{inside, ip, wait_for};
use std::fs;
use std::net::Ipv4Addr;
use std::path::PathBuf;
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};

/// Namespaces that are connected by a bridge, and one that contains the bridge. Commands that
/// concern all hosts run in the latter. All are removed when dropped.
pub struct Hosts {
    ip: PathBuf,
    /// Prefix of the names of the hosts.
    prefix: String,
    count: u8,
}

impl Hosts {
    /// Creates this number of hosts, at most 200. Returns `None` if that is not possible; the test
    /// is then counted as skipped.
    #[track_caller]
    pub fn new(count: u8) -> Option<Self> {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let path = crate::require("ip")?;
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let hosts =
            Self { ip: path, prefix: format!("uiw-h-{}-{number}-", std::process::id()), count };
        if let Err(reason) = hosts.set_up() {
            crate::skip(&format!("network namespaces with a bridge: {reason}"));
            return None;
        }
        Some(hosts)
    }

    /// Returns the addresses of the hosts with the names of their network namespaces.
    pub fn places(&self) -> impl Iterator<Item = (Ipv4Addr, String)> {
        self.addresses().map(|address| (address, self.name(address.octets()[3])))
    }

    /// Returns the interfaces of the switch, one for each host.
    pub fn ports(&self) -> impl Iterator<Item = String> + use<> {
        self.addresses().map(|address| port(address.octets()[3]))
    }

    fn addresses(&self) -> impl Iterator<Item = Ipv4Addr> + use<> {
        (1..=self.count).map(|last| Ipv4Addr::new(10, 77, 0, last))
    }

    /// Returns the address of the switch, which all hosts reach.
    pub fn switch_address(&self) -> Ipv4Addr {
        Ipv4Addr::new(10, 77, 0, SWITCH)
    }

    /// Returns `command` changed such that it runs on the host with this address.
    pub fn at(&self, host: Ipv4Addr, command: Command) -> Command {
        inside(&self.ip, &self.name(host.octets()[3]), command)
    }

    /// Returns `command` changed such that it runs on the switch.
    pub fn at_switch(&self, command: Command) -> Command {
        inside(&self.ip, &self.name(SWITCH), command)
    }

    /// Returns the ids of the processes on all hosts.
    ///
    /// # Panics
    /// If they cannot be listed.
    pub fn processes(&self) -> Vec<String> {
        let list =
            |last| ip(&self.ip, &["netns", "pids", &self.name(last)]).expect("its processes");
        (1..=self.count)
            .flat_map(|last| list(last).lines().map(str::to_owned).collect::<Vec<_>>())
            .collect()
    }

    fn name(&self, last: u8) -> String {
        format!("{}{last}", self.prefix)
    }

    fn set_up(&self) -> Result<(), String> {
        let run = |args: &[&str]| ip(&self.ip, args).map(drop);
        let switch = self.name(SWITCH);
        run(&["netns", "add", &switch])?;
        run(&["-n", &switch, "link", "add", "name", "switch", "type", "bridge"])?;
        let own = format!("{}/24", self.switch_address());
        run(&["-n", &switch, "address", "add", &own, "dev", "switch"])?;
        run(&["-n", &switch, "link", "set", "switch", "up"])?;
        run(&["-n", &switch, "link", "set", "lo", "up"])?;
        for address in self.addresses() {
            let last = address.octets()[3];
            let (name, port) = (self.name(last), port(last));
            run(&["netns", "add", &name])?;
            run(&[
                "-n", &switch, "link", "add", &port, "type", "veth", "peer", "name", "veth0",
                "netns", &name,
            ])?;
            run(&["-n", &switch, "link", "set", &port, "master", "switch", "up"])?;
            run(&["-n", &name, "address", "add", &format!("{address}/24"), "dev", "veth0"])?;
            run(&["-n", &name, "link", "set", "veth0", "up"])?;
            run(&["-n", &name, "link", "set", "lo", "up"])?;
        }
        // IPv6 addresses become usable a little later. A program that was started before that would
        // first see one address and then two.
        for last in 1..=self.count {
            let name = self.name(last);
            let tentative = ["-n", &name, "-6", "address", "show", "dev", "veth0", "tentative"];
            wait_for(&self.ip, &tentative, |said| !said.contains("inet6"))?;
        }
        Ok(())
    }
}

/// Returns the interface of the switch to the host whose address ends with this number.
fn port(last: u8) -> String {
    format!("port{last}")
}

/// Last byte of the address of the switch.
const SWITCH: u8 = 254;

impl Drop for Hosts {
    fn drop(&mut self) {
        for last in (1..=self.count).chain([SWITCH]) {
            if fs::exists(format!("/run/netns/{}", self.name(last))).unwrap_or(false) {
                let _ = ip(&self.ip, &["netns", "delete", &self.name(last)]);
            }
        }
    }
}
