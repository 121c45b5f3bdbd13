//! Programs that tests are given in a folder, run on two hosts.

use crate::proof::options;
use crate::reported::isolated;
use std::path::{Path, PathBuf};
use uiw_interop::stock::{Libraries, Network, ProcessEnd, Running};

/// A folder with programs.
pub(crate) struct Programs(PathBuf);

impl Programs {
    /// The folder that the variable names. Nothing without it; the test is noted as skipped then,
    /// for want of `what`.
    #[track_caller]
    pub(crate) fn given(variable: &str, what: &str) -> Option<Self> {
        let folder = std::env::var_os(variable);
        if folder.is_none() {
            uiw_interop::skip(what);
        }
        folder.map(|folder| Self(folder.into()))
    }

    /// The folder itself.
    pub(crate) fn folder(&self) -> &Path {
        &self.0
    }

    /// A program of it.
    pub(crate) fn path(&self, name: &str) -> String {
        let file = self.0.join(name);
        assert!(file.is_file(), "{} is not there", file.display());
        file.to_str().expect("a path of text").to_owned()
    }
}

/// `programs` with two hosts, whose programs have mounts of their own, and the libraries. Nothing
/// where these cannot be had; the test is noted as skipped then.
#[track_caller]
pub(crate) fn on_two_hosts(programs: Programs) -> Option<(Programs, Network, Libraries)> {
    uiw_interop::require("unshare")?;
    Some((programs, Network::veth()?, Libraries::get()))
}

/// A server and a client on two hosts, in namespaces of their own, when both have ended.
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
