//! Mounts in a mount namespace of this process and of the program that it executes. Root needs
//! nothing else. For ordinary users, a user namespace that keeps their user id is created as well.
//! The mounts are not visible outside of the namespace.

use std::ffi::{CString, OsStr};
use std::fs::{self, File};
use std::io;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::ptr;

/// Enters a new mount namespace. The process must have one thread.
///
/// # Errors
/// Returns OS errors, for example if this user may not create namespaces.
pub(crate) fn enter() -> io::Result<()> {
    // SAFETY: the calls have no arguments.
    let (uid, gid) = unsafe { (libc::geteuid(), libc::getegid()) };
    // SAFETY: unshare(2) takes only an integer.
    let enters = |namespaces| unsafe { libc::unshare(namespaces) } == 0;
    if !enters(libc::CLONE_NEWNS) {
        if !enters(libc::CLONE_NEWUSER | libc::CLONE_NEWNS) {
            return Err(refused("no new namespaces", &io::Error::last_os_error()));
        }
        let map = || {
            fs::write("/proc/self/setgroups", "deny")?;
            fs::write("/proc/self/uid_map", format!("{uid} {uid} 1"))?;
            fs::write("/proc/self/gid_map", format!("{gid} {gid} 1"))
        };
        map().map_err(|error| refused("no user in a new namespace", &error))?;
    }
    mount("none".as_ref(), Path::new("/"), None, libc::MS_REC | libc::MS_PRIVATE)
        .map_err(|error| refused("no mounts", &error))
}

/// Adds the failed step to an error, because an error number alone would not distinguish namespaces
/// from mounts.
fn refused(what: &str, error: &io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("{what}: {error}"))
}

fn mount(
    source: &OsStr,
    target: &Path,
    kind: Option<&str>,
    flags: libc::c_ulong,
) -> io::Result<()> {
    let (source, target) =
        (CString::new(source.as_bytes())?, CString::new(target.as_os_str().as_bytes())?);
    let kind = kind.map(CString::new).transpose()?;
    let kind = kind.as_ref().map_or(ptr::null(), |kind| kind.as_ptr());
    // SAFETY: the strings end with NUL, and the type and the options may be null.
    match unsafe { libc::mount(source.as_ptr(), target.as_ptr(), kind, flags, ptr::null()) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Mounts the file or folder `from`, with all mounts below it, at `to`, which must exist.
pub(crate) fn bind(from: &Path, to: &Path) -> io::Result<()> {
    mount(from.as_os_str(), to, None, libc::MS_BIND | libc::MS_REC)
}

/// Covers the folder with an empty one that is writable and has the same permissions.
///
/// # Errors
/// Returns OS errors.
pub(crate) fn cover(folder: &Path) -> io::Result<()> {
    let mode = fs::metadata(folder)?.permissions();
    mount("tmpfs".as_ref(), folder, Some("tmpfs"), libc::MS_NOSUID | libc::MS_NODEV)?;
    fs::set_permissions(folder, mode)
}

/// Covers the folder with one that is writable and has the same entries.
///
/// # Errors
/// Returns OS errors.
pub(crate) fn make_writable(folder: &Path) -> io::Result<()> {
    // The entries that the new mount hides remain reachable through the working directory.
    let back = std::env::current_dir();
    std::env::set_current_dir(folder)?;
    let entries: Vec<_> = fs::read_dir(".")?.collect::<io::Result<_>>()?;
    // The new mount has `nodev`. Devices in it can be used nevertheless, because each of them is a
    // bind mount of the original one.
    cover(folder)?;
    for entry in entries {
        let (from, to) = (entry.file_name(), folder.join(entry.file_name()));
        let kind = entry.file_type()?;
        if kind.is_symlink() {
            symlink(fs::read_link(&from)?, &to)?;
            continue;
        }
        if kind.is_dir() {
            fs::create_dir(&to)?;
        } else {
            File::create(&to)?;
        }
        bind(Path::new(&from), &to)?;
    }
    if let Ok(back) = back {
        std::env::set_current_dir(back)?;
    }
    Ok(())
}
