//! Runs programs from a directory, which a variable names, on two hosts.

use crate::proof::options;
use crate::reported::isolated;
use std::path::{Path, PathBuf};
use uiw_interop::stock::{Libraries, Network, ProcessEnd, Running};

/// Directory that contains the programs.
pub(crate) struct Programs(PathBuf);

impl Programs {
    /// Returns the directory named by the variable. If it is not set, returns `None` and counts the
    /// test as skipped for lack of `what`.
    #[track_caller]
    pub(crate) fn given(variable: &str, what: &str) -> Option<Self> {
        let folder = std::env::var_os(variable);
        if folder.is_none() {
            uiw_interop::skip(what);
        }
        folder.map(|folder| Self(folder.into()))
    }

    /// Returns the directory.
    pub(crate) fn folder(&self) -> &Path {
        &self.0
    }

    /// Returns the path of one of the programs.
    pub(crate) fn path(&self, name: &str) -> String {
        let file = self.0.join(name);
        assert!(file.is_file(), "{} is not there", file.display());
        file.to_str().expect("a path of text").to_owned()
    }
}

/// Returns `programs` together with two hosts, whose programs have their own mounts, and the
/// libraries. If they are not available, returns `None` and counts the test as skipped.
#[track_caller]
pub(crate) fn on_two_hosts(programs: Programs) -> Option<(Programs, Network, Libraries)> {
    uiw_interop::require("unshare")?;
    Some((programs, Network::veth()?, Libraries::get()))
}

/// Runs a server and a client on two hosts, in namespaces of their own, until both have ended.
pub(crate) fn exchange(
    libraries: &Libraries,
    network: &Network,
    persona: &str,
    port: u16,
    programs: [&[&str]; 2],
) -> [ProcessEnd; 2] {
    let [server, client] = programs.map(|program| isolated(libraries, &options(persona), program));
    let mut server = Running::start(network.server(server));
    server.wait_listening(port);
    let client = Running::start(network.client(client)).end();
    [server.end(), client]
}
