//! Sources of the command line, and the target of each of them.

use super::caller::Caller;
use super::entries::EntryPaths;
use super::location::{RemotePath, local_name};
use super::plan::CopyPlan;
use crate::shared::fail::{Exit, Failure, Result};
use rustix::io::Errno;
use std::fs::File;
use std::io::ErrorKind;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use uiw_copy::meta::{EntryKind, Meta};
use uiw_copy::names::{Name, NameError, RelPath};
use uiw_copy::protocol::{CreateMode, Reply, Request};
use uiw_copy::root::{ABANDONED, Root, sync_names};

fn source_failure(what: impl std::fmt::Display, why: impl std::fmt::Display, fix: &str) -> Failure {
    Failure::new(Exit::Failed, what, why, fix)
}

/// Returns the metadata of an entry at the server, or `None` if it does not exist.
fn stat_remote(caller: &mut Caller<'_>, path: &RelPath) -> Result<Option<Meta>> {
    match caller.call(&Request::Stat { path: path.clone() })? {
        Reply::Found(meta) => Ok(Some(meta)),
        Reply::Absent => Ok(None),
        Reply::Failed { text, .. } => Err(source_failure(path, text, "see the server's messages")),
        _ => Err(Failure::lost(path, "the server gave another answer than what there is")),
    }
}

/// Local source of a copy: an open directory, the path below it, and the name at the target.
/// Without a name, the contents of the source are copied.
struct LocalSource {
    root: Arc<Root>,
    local: RelPath,
    meta: Meta,
    name: Option<Name>,
}

fn open_source(path: &Path) -> Result<LocalSource> {
    let fix = "check the path and its permissions";
    let failed = |error: &dyn std::fmt::Display| source_failure(path.display(), error, fix);
    let name = local_name(path).map(|name| Name::new(name.as_bytes())).transpose();
    let name = name.map_err(|error| failed(&error))?;
    let folder = if name.is_some() { parent_of(path) } else { path };
    let root = Arc::new(Root::open(folder).map_err(|error| failed(&error))?);
    let local = path_of(name.as_ref()).map_err(|error| failed(&error))?;
    let meta = root.meta(&local).map_err(|error| failed(&error))?;
    Ok(LocalSource { root, local, meta, name })
}

/// Returns the directory that contains the entry at `path`.
fn parent_of(path: &Path) -> &Path {
    path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// Returns the path of the entry `name` in a directory, or of the directory itself.
fn path_of(name: Option<&Name>) -> std::result::Result<RelPath, NameError> {
    name.map_or_else(|| Ok(RelPath::default()), |name| RelPath::default().join(name))
}

/// Adds local sources to be copied to the server.
pub(super) fn add_local_sources(
    caller: &mut Caller<'_>,
    from: &[PathBuf],
    to: &RemotePath,
) -> Result<()> {
    let plan = caller.plan();
    let named = |path: &PathBuf| {
        let failed = |failure: &Failure| {
            plan.report.report_source_failed(path.as_os_str().as_bytes(), failure);
        };
        open_source(path).inspect_err(failed)
    };
    let sources = from.iter().map(named).collect::<Result<Vec<_>>>()?;
    let there = stat_remote(caller, &to.path)?;
    let is_directory = there.as_ref().is_some_and(|meta| meta.kind == EntryKind::Directory);
    if there.is_some() && !is_directory && (to.is_directory() || from.len() > 1) {
        return Err(source_failure(
            &to.path,
            "it is no directory",
            "name a directory as the target",
        ));
    }
    let into = is_directory || to.is_directory() || from.len() > 1;
    for LocalSource { root, local, meta, name } in sources {
        // A directory with a name is always copied into the target. A file is copied into the
        // target only if this is a directory or ends with a slash, or if there are several sources.
        // Otherwise the file gets the path of the target.
        let below = match (&name, meta.kind) {
            (Some(name), EntryKind::Directory) => Some(name),
            (Some(name), _) if into => Some(name),
            _ => None,
        };
        let remote = match below {
            Some(name) => to
                .path
                .join(name)
                .map_err(|error| source_failure(name, error, "use a shorter name"))?,
            None => to.path.clone(),
        };
        if below.is_some() && !is_directory && !plan.options.dry_run {
            make_target_directory(caller, &to.path)?;
        }
        let target = match below {
            Some(_) if is_directory => stat_remote(caller, &remote)?,
            Some(_) => None,
            None => there.clone(),
        };
        let place = EntryPaths { root, local, remote };
        plan.add_unless_copied(place, meta, None, target.as_ref());
    }
    Ok(())
}

/// Creates the target directory at the server.
fn make_target_directory(caller: &mut Caller<'_>, path: &RelPath) -> Result<()> {
    let request =
        Request::List { path: path.clone(), after: Vec::new(), create: CreateMode::Usual };
    match caller.call(&request)? {
        Reply::Listed { .. } => Ok(()),
        Reply::Failed { errno, text } => {
            let is_absent = i32::from(errno) == Errno::NOENT.raw_os_error();
            let fix = if is_absent {
                "create the directories above it first"
            } else {
                "see the server's messages"
            };
            Err(source_failure(path, text, fix))
        }
        _ => Err(Failure::lost(path, "the server gave another answer than a list")),
    }
}

/// Returns the metadata of a source at the server.
fn stat_source(caller: &mut Caller<'_>, source: &RemotePath) -> Result<Meta> {
    let path = &source.path;
    let meta = stat_remote(caller, path)?;
    let meta =
        meta.ok_or_else(|| source_failure(path, "the share has no such entry", "check the path"))?;
    if source.is_directory() && meta.kind != EntryKind::Directory {
        return Err(source_failure(path, "it is no directory", "leave out the slash at the end"));
    }
    Ok(meta)
}

/// Adds sources at the server to be copied to a local target.
pub(super) fn add_remote_sources(
    caller: &mut Caller<'_>,
    from: &[RemotePath],
    to: &Path,
) -> Result<()> {
    let plan = caller.plan();
    let fix = "name a directory that is there, or a new name in one";
    let failed = |error: &dyn std::fmt::Display| source_failure(to.display(), error, fix);
    let there = match std::fs::metadata(to) {
        Ok(data) => Some(data.is_dir()),
        Err(error) if error.kind() == ErrorKind::NotFound => None,
        Err(error) => return Err(failed(&error)),
    };
    let mut sources = Vec::new();
    for source in from {
        let path = &source.path;
        let meta = stat_source(caller, source);
        let meta =
            meta.inspect_err(|failure| plan.report.report_source_failed(path.as_bytes(), failure))?;
        sources.push((source, meta));
    }
    let has_slash = to.as_os_str().as_bytes().ends_with(b"/");
    let contents = sources.iter().any(|(_, meta)| meta.kind == EntryKind::Directory);
    let into = there == Some(true) || has_slash || contents || from.len() > 1;
    let own_name = to.file_name().map(|name| name.as_bytes().to_vec());
    if !into && own_name.is_none() {
        return Err(failed(&"it has no name"));
    }
    if into && there.is_none() {
        // In a dry run, a missing target counts as empty. The current directory is opened in its
        // place, but entries are not compared with it.
        if plan.options.dry_run {
            plan.set_target_absent();
        } else {
            let made = std::fs::create_dir(to).and_then(|()| match File::open(to.join("..")) {
                Ok(parent) => sync_names(&parent),
                // The user may have no right to read it.
                Err(_) => Ok(()),
            });
            made.map_err(|error| failed(&error))?;
        }
    }
    let root = Root::open(match into {
        true if plan.is_target_absent() => Path::new("."),
        true => to,
        false => parent_of(to),
    });
    let root = Arc::new(root.map_err(|error| failed(&error))?);
    if into && there.is_some() {
        plan.set_target_mode(root.meta(&RelPath::default()).map_err(|error| failed(&error))?.mode);
    }
    remove_abandoned(plan, &root);
    for (source, meta) in sources {
        let name = if into { source.name() } else { own_name.clone() };
        let name = name.map(|name| Name::new(&name)).transpose();
        let local = name.and_then(|name| path_of(name.as_ref())).map_err(|error| failed(&error))?;
        let target = root.meta(&local).ok().filter(|_| !plan.is_target_absent());
        let place = EntryPaths { root: Arc::clone(&root), local, remote: source.path.clone() };
        plan.add_unless_copied(place, meta, None, target.as_ref());
    }
    Ok(())
}

/// Removes files that killed transfers have left in the target directory.
fn remove_abandoned(plan: &CopyPlan, root: &Root) {
    if !plan.options.dry_run {
        // An error does not matter, because this only cleans up.
        let _ = root.remove_abandoned(&RelPath::default(), ABANDONED);
    }
}
