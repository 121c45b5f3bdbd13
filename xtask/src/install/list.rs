//! List of the files to install.

use std::fs;
use std::path::{Path, PathBuf};

use super::file::{FileContent, InstalledFile};
use super::{Built, Layout};

/// Files of the source tree that are installed as they are.
const COPIES: [(&str, &str); 8] = [
    ("packaging/valgrind.supp", "share/uiw/valgrind.supp"),
    ("packaging/uiw.sysusers", "lib/sysusers.d/uiw.conf"),
    ("docs/uiw.lua", "share/uiw/uiw.lua"),
    ("examples/c/client.c", "share/doc/uiw/examples/c/client.c"),
    ("examples/c/common.h", "share/doc/uiw/examples/c/common.h"),
    ("examples/c/server.c", "share/doc/uiw/examples/c/server.c"),
    ("LICENSE-MIT", "share/doc/uiw/LICENSE-MIT"),
    ("LICENSE-APACHE", "share/doc/uiw/LICENSE-APACHE"),
];

/// Folders with the exercises of docs/learn.md.
const COURSE: [&str; 2] = ["examples/learn", "examples/learn/solutions"];

/// Completion files that the program generates, and the paths in which shells search them.
const COMPLETIONS: [(&str, &str); 3] = [
    ("uiw.bash", "share/bash-completion/completions/uiw"),
    ("_uiw", "share/zsh/site-functions/_uiw"),
    ("uiw.fish", "share/fish/vendor_completions.d/uiw.fish"),
];

/// Libraries to install. They are installed without links for linkers and without pkg-config files,
/// because a program that was linked with them would expect symbols of librdmacm in
/// libibverbs.so.1. The library of rdma-core does not have these symbols.
const LIBRARIES: [&str; 2] = ["ibverbs", "rdmacm"];

/// Returns all files, in the order in which they are installed.
pub(super) fn all(
    layout: &Layout,
    built: &Built,
    strip: bool,
) -> Result<Vec<InstalledFile>, String> {
    let source = crate::workspace::root();
    let read = |path: &str| {
        fs::read_to_string(source.join(path))
            .map_err(|error| format!("{}: {error}", source.join(path).display()))
    };
    let executable = |name: &str, option| match strip {
        true => built.stripped(name, option),
        false => FileContent::Executable(built.file(name)),
    };
    let mut files = Vec::new();
    let mut add = |path: PathBuf, content| files.push(InstalledFile { path, content });
    add("bin/uiw".into(), executable("uiw", "--strip-all"));
    for name in LIBRARIES {
        let file = layout.libdir().join(format!("lib{name}.so.1"));
        add(file, executable(&format!("lib{name}.so"), "--strip-unneeded"));
    }
    let sockets = layout.libdir().join("rsocket");
    add(sockets.join("librspreload.so"), FileContent::Link("librspreload.so.1".into()));
    add(sockets.join("librspreload.so.1"), executable("librspreload.so", "--strip-unneeded"));
    for (from, to) in COPIES {
        add(to.into(), FileContent::Copy(source.join(from)));
    }
    for folder in COURSE {
        let entries = entries(&source.join(folder))?;
        for file in entries.into_iter().filter(|entry| entry.is_file()) {
            let name = file.file_name().unwrap_or_default();
            add(
                Path::new("share/doc/uiw").join(folder).join(name),
                FileContent::Copy(file.clone()),
            );
        }
    }
    for (from, to) in COMPLETIONS {
        add(to.into(), FileContent::Copy(built.generated().join("completions").join(from)));
    }
    for page in entries(&built.generated().join("man"))? {
        let name = page.file_name().unwrap_or_default();
        add(Path::new("share/man/man1").join(name), FileContent::Copy(page.clone()));
    }
    // Quoted as systemd.syntax(7) and systemd.unit(5) say.
    let program = layout.prefix().join("bin/uiw").display().to_string();
    let program = program.replace('\\', "\\\\").replace('"', "\\\"").replace('%', "%%");
    let unit = fill(&read("packaging/uiw.service")?, &[("@program@", &program)]);
    add("lib/systemd/system/uiw.service".into(), FileContent::Text(unit));
    Ok(files)
}

fn fill(template: &str, values: &[(&str, &str)]) -> String {
    values.iter().fold(template.to_owned(), |text, (key, value)| text.replace(key, value))
}

/// Returns the sorted entries of a folder.
fn entries(folder: &Path) -> Result<Vec<PathBuf>, String> {
    let entries = fs::read_dir(folder).and_then(|entries| {
        entries.map(|entry| entry.map(|entry| entry.path())).collect::<Result<Vec<_>, _>>()
    });
    let mut entries = entries.map_err(|error| format!("{}: {error}", folder.display()))?;
    entries.sort();
    Ok(entries)
}
