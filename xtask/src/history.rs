//! Earlier commits, whose programs are measured or run together with the new ones.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

/// Returns the name of the last tag, or `otherwise` until there is one.
pub(crate) fn last_tag(otherwise: &str) -> Result<String, String> {
    let mut git = Command::new("git");
    git.args(["describe", "--tags", "--abbrev=0"]).current_dir(crate::workspace::root());
    let tag = git.stderr(Stdio::null()).output().map_err(|error| format!("git: {error}"))?;
    let tag = String::from_utf8_lossy(&tag.stdout);
    Ok(Some(tag.trim()).filter(|tag| !tag.is_empty()).unwrap_or(otherwise).to_owned())
}

/// Exports the files of a commit to a new folder.
///
/// # Errors
/// Returns an error if the repository does not have the commit.
pub(crate) fn export(commit: &str, tree: &Path) -> Result<(), String> {
    let new = tree.with_extension("new");
    // An interrupted run may have left this folder.
    let _ = fs::remove_dir_all(&new);
    fs::create_dir_all(&new).map_err(|error| format!("{}: {error}", new.display()))?;
    let mut archive = Command::new("git")
        .args(["archive", "--format=tar", commit])
        .current_dir(crate::workspace::root())
        .stdout(Stdio::piped())
        .spawn()
        .map_err(|error| format!("git: {error}"))?;
    let stream = archive.stdout.take().ok_or("git archive has no output")?;
    let unpacked = Command::new("tar").args(["-x", "-C"]).arg(&new).stdin(stream).status();
    let archived = archive.wait().map_err(|error| format!("git: {error}"))?;
    let unpacked = unpacked.map_err(|error| format!("tar: {error}"))?;
    if !archived.success() || !unpacked.success() {
        return Err(format!(
            "the sources of {commit} are not in the repository: a clone with the whole history is needed"
        ));
    }
    fs::rename(&new, tree).map_err(|error| format!("{}: {error}", tree.display()))
}
