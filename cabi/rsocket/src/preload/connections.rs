//! List of the connections of the preload library, which `uiw run` uses to report the connections
//! that used rsockets and those that used TCP. Each process has a file with one line for each
//! connection, in the directory that `UIW_COUNTERS` names.
//!
//! ```text
//!   rsocket connected 192.0.2.1:6379
//!   tcp connected 192.0.2.7:53
//!   rsocket accepted 0.0.0.0:6379
//! ```
//!
//! Each line is written with one call to a file that is opened for the line. A process that is
//! killed therefore leaves no partial line, and a fork copies no buffered data.

use std::fs::OpenOptions;
use std::io::Write as _;
use std::net::SocketAddr;
use std::os::unix::fs::OpenOptionsExt as _;
use uiw_cabi_core::counters::CounterDestination;
use uiw_cabi_core::settings::Settings;

/// Suffix of the files' names, which begin with the process ID.
pub const SUFFIX: &str = ".sockets";

/// Protocol that carries a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Carrier {
    /// RDMA.
    Rsocket,
    /// The kernel's TCP.
    Tcp,
}

/// Role of a process in a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Role {
    /// The process connected to the address.
    Connected,
    /// The process accepted the connection at its own address.
    Accepted,
}

/// One connection of a process, which is one line of the list.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ConnectionRecord {
    /// Carrier of the connection.
    pub carrier: Carrier,
    /// Role of the process.
    pub role: Role,
    /// Address of the server, with the port number of the program.
    pub address: SocketAddr,
}

impl ConnectionRecord {
    /// Parses a line of a file. Returns `None` for invalid lines, because other programs of the
    /// user can write to the file.
    ///
    /// ```
    /// use uiw_cabi_rsocket::preload::connections::{Carrier, ConnectionRecord, Role};
    /// let line = ConnectionRecord::parse("tcp connected 192.0.2.7:53").unwrap();
    /// assert_eq!((line.carrier, line.role), (Carrier::Tcp, Role::Connected));
    /// assert_eq!(ConnectionRecord::parse(&line.to_string()), Some(line));
    /// assert_eq!(ConnectionRecord::parse("tcp connected somewhere"), None);
    /// ```
    pub fn parse(line: &str) -> Option<Self> {
        let [carrier, role, address] = line.split(' ').collect::<Vec<_>>()[..] else { return None };
        Some(Self {
            carrier: match carrier {
                "rsocket" => Carrier::Rsocket,
                "tcp" => Carrier::Tcp,
                _ => return None,
            },
            role: match role {
                "connected" => Role::Connected,
                "accepted" => Role::Accepted,
                _ => return None,
            },
            address: address.parse().ok()?,
        })
    }
}

impl std::fmt::Display for ConnectionRecord {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let carrier = match self.carrier {
            Carrier::Rsocket => "rsocket",
            Carrier::Tcp => "tcp",
        };
        let role = match self.role {
            Role::Connected => "connected",
            Role::Accepted => "accepted",
        };
        write!(f, "{carrier} {role} {}", self.address)
    }
}

/// Records a connection if `uiw run` has requested it, and logs it at level info.
pub(crate) fn note(line: ConnectionRecord) {
    tracing::info!("connection: {line}");
    let Ok(Settings { counters: CounterDestination::In(directory), .. }) = Settings::get() else {
        return;
    };
    let path = directory.join(format!("{}{SUFFIX}", std::process::id()));
    // The flags keep a symbolic link from redirecting the line, and a FIFO from blocking the
    // program.
    let file = OpenOptions::new()
        .append(true)
        .create(true)
        .mode(0o600)
        .custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK)
        .open(path);
    // The program must not fail because the connection cannot be recorded. The same applies to
    // counters that cannot be published.
    if let Ok(mut file) = file {
        let _ = file.write_all(format!("{line}\n").as_bytes());
    }
}
