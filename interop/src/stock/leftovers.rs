//! Folders and network namespaces of tests that were killed.

use super::network::{NAMESPACES, ip};
use std::env;
use std::ffi::OsString;
use std::fs;
use std::path::Path;

/// Prefixes of the names of network namespaces. The process id follows.
const NAMESPACE_PREFIXES: [&str; 4] = ["uiw-s-", "uiw-c-", "uiw-m-", "uiw-h-"];
/// Prefixes of the names of large temporary folders: libraries, images of containers, and packages.
/// The process id follows.
const FOLDER_PREFIXES: [&str; 4] = ["uiw-stock-", "uiw-ct-", "uiw-pm-", "uiw-packages-"];

/// Returns whether a name that begins with a process id and a hyphen belongs to this process or to
/// one that has ended.
pub fn is_left_over(name: &str) -> bool {
    let owner = name.split('-').next().and_then(|owner| owner.parse::<u32>().ok());
    owner.is_some_and(|owner| {
        owner == std::process::id() || !Path::new(&format!("/proc/{owner}")).exists()
    })
}

/// Removes network namespaces and folders of this process and of processes that have ended.
pub fn sweep() {
    if let Some(program) = crate::find("ip") {
        for name in left_over(Path::new(NAMESPACES), &NAMESPACE_PREFIXES) {
            // Another process may be removing it as well.
            let _ = ip(&program, &["netns", "delete", &name.to_string_lossy()]);
        }
    }
    let folder = env::temp_dir();
    for name in left_over(&folder, &FOLDER_PREFIXES) {
        // This fails for folders of other users, which are left alone.
        let _ = fs::remove_dir_all(folder.join(name));
    }
}

/// Returns the names of the entries of a folder that have one of the prefixes and are left over.
fn left_over(folder: &Path, prefixes: &[&str]) -> Vec<OsString> {
    let names = fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.file_name());
    let is_ours = |name: &OsString| {
        let name = name.to_string_lossy();
        prefixes.iter().filter_map(|prefix| name.strip_prefix(prefix)).any(is_left_over)
    };
    names.filter(is_ours).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stock::Network;
    use std::process::Command;

    /// Returns the id of a process that has ended.
    fn ended_process() -> u32 {
        let mut child = Command::new("true").spawn().unwrap();
        child.wait().unwrap();
        child.id()
    }

    #[test]
    fn only_ended_processes_leave_something() {
        let ended = ended_process();
        assert!(is_left_over(&format!("{ended}-0")) && is_left_over(&format!("{ended}")));
        assert!(is_left_over(&format!("{}-0", std::process::id())));
        assert!(!is_left_over("1-0") && !is_left_over("tls-1") && !is_left_over(""));
    }

    #[test]
    fn namespaces_of_ended_process_found() {
        let Some(program) = crate::require("ip") else { return };
        let Some(network) = Network::veth() else { return };
        let name = format!("uiw-s-{}-0", ended_process());
        ip(&program, &["netns", "add", &name]).unwrap();
        let found = left_over(Path::new(NAMESPACES), &NAMESPACE_PREFIXES);
        let own = network.places().all(|(_, own)| found.contains(&own.into()));
        assert!(found.contains(&name.clone().into()) && own, "{found:?}");
        ip(&program, &["netns", "delete", &name]).unwrap();
    }
}
