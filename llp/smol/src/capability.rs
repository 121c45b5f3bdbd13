//! Capabilities of this process (capabilities(7)), for messages about missing ones.

use std::fmt;
use std::fs;

/// Capability that a stack needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Capability {
    /// CAP_NET_ADMIN, for XDP programs on interfaces.
    NetAdmin,
    /// CAP_NET_RAW, for sockets of AF_PACKET and AF_XDP.
    NetRaw,
    /// CAP_IPC_LOCK, for memory beyond the limit of locked memory.
    IpcLock,
    /// CAP_BPF, for BPF maps and programs.
    Bpf,
}

impl Capability {
    /// Capabilities that AF_PACKET needs.
    pub const PACKET: [Self; 1] = [Self::NetRaw];
    /// Capabilities that AF_XDP needs.
    pub const XDP: [Self; 3] = [Self::NetRaw, Self::NetAdmin, Self::Bpf];

    fn number(self) -> u32 {
        match self {
            Self::NetAdmin => 12,
            Self::NetRaw => 13,
            Self::IpcLock => 14,
            Self::Bpf => 39,
        }
    }

    /// Returns whether this process has the capability.
    #[must_use]
    pub fn is_held(self) -> bool {
        // CAP_SYS_ADMIN is sufficient for the two capabilities that bpf(2) requires, as before
        // kernel 5.8.
        let held = effective();
        let has = |number| held >> number & 1 == 1;
        has(self.number()) || matches!(self, Self::Bpf | Self::NetAdmin) && has(21)
    }

    /// Returns the capabilities of `needed` that this process lacks, formatted as
    /// `CAP_NET_ADMIN and CAP_BPF`, or `None` if it has all of them.
    #[must_use]
    pub fn missing(needed: &[Self]) -> Option<String> {
        let names: Vec<_> =
            needed.iter().filter(|one| !one.is_held()).map(ToString::to_string).collect();
        match names.as_slice() {
            [] => None,
            [one] => Some(one.clone()),
            [first @ .., last] => Some(format!("{} and {last}", first.join(", "))),
        }
    }
}

impl fmt::Display for Capability {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::NetAdmin => "CAP_NET_ADMIN",
            Self::NetRaw => "CAP_NET_RAW",
            Self::IpcLock => "CAP_IPC_LOCK",
            Self::Bpf => "CAP_BPF",
        })
    }
}

/// Returns the effective set, or the empty set if it cannot be read.
fn effective() -> u64 {
    let status = fs::read_to_string("/proc/thread-self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    line.and_then(|set| u64::from_str_radix(set.trim(), 16).ok()).unwrap_or(0)
}

/// Returns the reason why a stack that needs `needed` was refused, and advice.
#[must_use]
pub fn refusal(needed: &[Capability]) -> (String, &'static str) {
    match Capability::missing(needed) {
        Some(names) if names.contains(" and ") => (
            format!("{names} are missing"),
            "run as root, or grant them to the program with setcap",
        ),
        Some(name) => {
            (format!("{name} is missing"), "run as root, or grant it to the program with setcap")
        }
        None => (
            "the capabilities belong to a user namespace".to_owned(),
            "run as root outside of it, or in a privileged container",
        ),
    }
}
