//! The entries that a command line names, and where each goes.

use super::caller::Caller;
use super::location::Remote;
use super::plan::Plan;
use super::transfer::Place;
use crate::shared::fail::{Exit, Failure, Result};
use rustix::io::Errno;
use std::io::ErrorKind;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use uiw_copy::meta::{Kind, Meta};
use uiw_copy::names::{Name, RelPath};
use uiw_copy::protocol::{Create, Reply, Request};
use uiw_copy::root::{ABANDONED, Root};

fn refused(what: impl std::fmt::Display, why: impl std::fmt::Display, fix: &str) -> Failure {
    Failure::new(Exit::Failed, what, why, fix)
}

/// What there is at the server; `None`: nothing.
fn remote_meta(caller: &mut Caller<'_>, path: &RelPath) -> Result<Option<Meta>> {
    match caller.call(&Request::Stat { path: path.clone() })? {
        Reply::Found(meta) => Ok(Some(meta)),
        Reply::Absent => Ok(None),
        Reply::Failed { text, .. } => Err(refused(path, text, "see the server's messages")),
        _ => Err(Failure::lost(path, "the server gave another answer than what there is")),
    }
}

/// Adds what is to be copied, unless it is there already.
fn consider(plan: &Plan, place: Place, meta: Meta, target: Option<&Meta>) {
    let is_there = meta.kind != Kind::Directory && target.is_some_and(|target| meta.is_copied_by(target));
    if is_there {
        plan.report.unchanged();
    } else if plan.rules.dry_run && matches!(meta.kind, Kind::File | Kind::Symlink) {
        plan.report.would_copy(&place.remote, &meta);
    } else {
        plan.add_entry(place, meta, None);
    }
}

/// A local source: the directory that is opened, the path below it, and the name that it has at the
/// target. Without a name its contents are copied.
struct LocalSource {
    root: Arc<Root>,
    local: RelPath,
    meta: Meta,
    name: Option<Name>,
}

fn source(path: &Path) -> Result<LocalSource> {
    let fix = "check the path and its permissions";
    let failed = |error: &dyn std::fmt::Display| refused(path.display(), error, fix);
    let bytes = path.as_os_str().as_bytes();
    // `.`, `..` and `/` have no name of their own; a slash at the end asks for the contents.
    let is_contents = bytes.ends_with(b"/") || bytes.ends_with(b"/.") || path.file_name().is_none();
    if is_contents {
        let root = Arc::new(Root::open(path).map_err(|error| failed(&error))?);
        let local = RelPath::default();
        let meta = root.meta(&local).map_err(|error| failed(&error))?;
        return Ok(LocalSource { root, local, meta, name: None });
    }
    let name = path.file_name().unwrap_or_default();
    let name = Name::new(name.as_bytes()).map_err(|error| failed(&error))?;
    let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let root = Arc::new(Root::open(parent).map_err(|error| failed(&error))?);
    let local = RelPath::default().join(&name).map_err(|error| failed(&error))?;
    let meta = root.meta(&local).map_err(|error| failed(&error))?;
    Ok(LocalSource { root, local, meta, name: Some(name) })
}

/// Local sources, to the server.
pub(super) fn push(caller: &mut Caller<'_>, from: &[PathBuf], to: &Remote) -> Result<()> {
    let plan = caller.plan();
    let named = |path: &PathBuf| {
        let failed = |failure: &Failure| plan.report.source_failed(path.as_os_str().as_bytes(), failure);
        source(path).inspect_err(failed)
    };
    let sources = from.iter().map(named).collect::<Result<Vec<_>>>()?;
    let there = remote_meta(caller, &to.path)?;
    let is_directory = there.as_ref().is_some_and(|meta| meta.kind == Kind::Directory);
    if there.is_some() && !is_directory && (to.is_directory() || from.len() > 1) {
        return Err(refused(&to.path, "it is no directory", "name a directory as the target"));
    }
    let into = is_directory || to.is_directory() || from.len() > 1;
    for LocalSource { root, local, meta, name } in sources {
        let below = match (&name, meta.kind) {
            (Some(name), Kind::Directory) => Some(name),
            (Some(name), _) if into => Some(name),
            _ => None,
        };
        let remote = match below {
            Some(name) => to.path.join(name).map_err(|error| refused(name, error, "use a shorter name"))?,
            None => to.path.clone(),
        };
        if below.is_some() && !is_directory && !plan.rules.dry_run {
            make(caller, &to.path)?;
        }
        let target = match below {
            Some(_) if is_directory => remote_meta(caller, &remote)?,
            Some(_) => None,
            None => there.clone(),
        };
        consider(plan, Place { root, local, remote }, meta, target.as_ref());
    }
    Ok(())
}

/// The target directory at the server.
fn make(caller: &mut Caller<'_>, path: &RelPath) -> Result<()> {
    let request = Request::List { path: path.clone(), after: Vec::new(), create: Create::Usual };
    match caller.call(&request)? {
        Reply::Listed { .. } => Ok(()),
        Reply::Failed { errno, text } => {
            let is_absent = i32::from(errno) == Errno::NOENT.raw_os_error();
            let fix = if is_absent {
                "the directory that it is in must be there"
            } else {
                "see the server's messages"
            };
            Err(refused(path, text, fix))
        }
        _ => Err(Failure::lost(path, "the server gave another answer than a list")),
    }
}

/// A source at the server.
fn remote_source(caller: &mut Caller<'_>, source: &Remote) -> Result<Meta> {
    let path = &source.path;
    let meta = remote_meta(caller, path)?;
    let meta = meta.ok_or_else(|| refused(path, "the share has no such entry", "check the path"))?;
    if source.is_directory() && meta.kind != Kind::Directory {
        return Err(refused(path, "it is no directory", "leave out the slash at the end"));
    }
    Ok(meta)
}

/// Entries of the server, to a local target.
pub(super) fn pull(caller: &mut Caller<'_>, from: &[Remote], to: &Path) -> Result<()> {
    let plan = caller.plan();
    let fix = "name a directory that is there, or a new name in one";
    let failed = |error: &dyn std::fmt::Display| refused(to.display(), error, fix);
    let there = match std::fs::metadata(to) {
        Ok(data) => Some(data.is_dir()),
        Err(error) if error.kind() == ErrorKind::NotFound => None,
        Err(error) => return Err(failed(&error)),
    };
    let mut sources = Vec::new();
    for source in from {
        let path = &source.path;
        let meta = remote_source(caller, source);
        let meta = meta.inspect_err(|failure| plan.report.source_failed(path.as_bytes(), failure))?;
        sources.push((source, meta));
    }
    let has_slash = to.as_os_str().as_bytes().ends_with(b"/");
    let contents = sources.iter().any(|(_, meta)| meta.kind == Kind::Directory);
    let into = there == Some(true) || has_slash || contents || from.len() > 1;
    if into {
        if there.is_none() && !plan.rules.dry_run {
            std::fs::create_dir(to).map_err(|error| failed(&error))?;
        }
        // A target that would be made has nothing in it.
        if there.is_none() && plan.rules.dry_run {
            plan.set_target_absent();
        }
        let root = Root::open(if plan.is_target_absent() { Path::new(".") } else { to });
        let root = Arc::new(root.map_err(|error| failed(&error))?);
        remove_abandoned(plan, &root);
        for (source, meta) in sources {
            let local = match source.name() {
                Some(name) => {
                    let name = Name::new(&name).map_err(|error| failed(&error))?;
                    RelPath::default().join(&name).map_err(|error| failed(&error))?
                }
                None => RelPath::default(),
            };
            let target = root.meta(&local).ok().filter(|_| there.is_some());
            let place = Place { root: Arc::clone(&root), local, remote: source.path.clone() };
            consider(plan, place, meta, target.as_ref());
        }
        return Ok(());
    }
    let name = to.file_name().ok_or_else(|| failed(&"it has no name"))?;
    let name = Name::new(name.as_bytes()).map_err(|error| failed(&error))?;
    let parent = to.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let root = Arc::new(Root::open(parent).map_err(|error| failed(&error))?);
    remove_abandoned(plan, &root);
    let local = RelPath::default().join(&name).map_err(|error| failed(&error))?;
    for (source, meta) in sources {
        let target = root.meta(&local).ok();
        let place = Place { root: Arc::clone(&root), local: local.clone(), remote: source.path.clone() };
        consider(plan, place, meta, target.as_ref());
    }
    Ok(())
}

/// Removes what transfers that were killed have left in the target directory.
fn remove_abandoned(plan: &Plan, root: &Root) {
    if !plan.rules.dry_run {
        // It is the user's convenience alone.
        let _ = root.remove_abandoned(&RelPath::default(), ABANDONED);
    }
}
