//! What is installed.

use std::fs;
use std::path::{Path, PathBuf};

use super::file::{Content, File};
use super::{Built, Layout};

/// Files of the source tree that are installed as they are.
const COPIES: [(&str, &str); 7] = [
    ("packaging/valgrind.supp", "share/uiw/valgrind.supp"),
    ("docs/uiw.lua", "share/uiw/uiw.lua"),
    ("examples/c/client.c", "share/doc/uiw/examples/c/client.c"),
    ("examples/c/common.h", "share/doc/uiw/examples/c/common.h"),
    ("examples/c/server.c", "share/doc/uiw/examples/c/server.c"),
    ("LICENSE-MIT", "share/doc/uiw/LICENSE-MIT"),
    ("LICENSE-APACHE", "share/doc/uiw/LICENSE-APACHE"),
];

/// Where shells look for completions, by the names of the files that the program writes.
const COMPLETIONS: [(&str, &str); 3] = [
    ("uiw.bash", "share/bash-completion/completions/uiw"),
    ("_uiw", "share/zsh/site-functions/_uiw"),
    ("uiw.fish", "share/fish/vendor_completions.d/uiw.fish"),
];

/// The libraries: name, the prefix of its versioned nodes, and what its pkg-config file requires.
const LIBRARIES: [(&str, &str, &str); 2] =
    [("ibverbs", "IBVERBS_1.", ""), ("rdmacm", "RDMACM_1.", " libibverbs")];

/// Every file, in the order in which they are installed.
pub(super) fn all(layout: &Layout, built: &Built, strip: bool) -> Result<Vec<File>, String> {
    let source = crate::workspace::root();
    let read = |path: &str| {
        fs::read_to_string(source.join(path))
            .map_err(|error| format!("{}: {error}", source.join(path).display()))
    };
    let executable = |name: &str, option| match strip {
        true => built.stripped(name, option),
        false => Content::Executable(built.file(name)),
    };
    let mut files = Vec::new();
    let mut add = |path: PathBuf, content| files.push(File { path, content });
    add("bin/uiw".into(), executable("uiw", "--strip-all"));
    let exports = Exports { public: read("cabi/data/exports.tsv")?, private: read("cabi/data/private.tsv")? };
    let template = read("packaging/library.pc")?;
    for (name, node, requires) in LIBRARIES {
        let folder = layout.libdir();
        let (file, link) = (format!("lib{name}.so.1"), format!("lib{name}.so"));
        add(folder.join(link), Content::Link(file.clone()));
        add(folder.join(file), executable(&format!("lib{name}.so"), "--strip-unneeded"));
        let version = exports.version(node).ok_or_else(|| format!("cabi/data/exports.tsv has no {node}"))?;
        let values = [("@name@", name), ("@version@", &version), ("@requires@", requires)];
        add(folder.join(format!("pkgconfig/lib{name}.pc")), Content::Text(fill(&template, &values)));
    }
    let sockets = layout.libdir().join("rsocket");
    add(sockets.join("librspreload.so"), Content::Link("librspreload.so.1".into()));
    add(sockets.join("librspreload.so.1"), executable("librspreload.so", "--strip-unneeded"));
    for (from, to) in COPIES {
        add(to.into(), Content::Copy(source.join(from)));
    }
    for (from, to) in COMPLETIONS {
        add(to.into(), Content::Copy(built.generated().join("completions").join(from)));
    }
    for page in pages(&built.generated().join("man"))? {
        let name = page.file_name().unwrap_or_default();
        add(Path::new("share/man/man1").join(name), Content::Copy(page.clone()));
    }
    let program = layout.prefix().join("bin").display().to_string();
    let unit = fill(&read("packaging/uiw.service")?, &[("@bindir@", &program)]);
    add("lib/systemd/system/uiw.service".into(), Content::Text(unit));
    Ok(files)
}

fn fill(template: &str, values: &[(&str, &str)]) -> String {
    values.iter().fold(template.to_owned(), |text, (key, value)| text.replace(key, value))
}

fn pages(folder: &Path) -> Result<Vec<PathBuf>, String> {
    let entries = fs::read_dir(folder).and_then(|entries| {
        entries.map(|entry| entry.map(|entry| entry.path())).collect::<Result<Vec<_>, _>>()
    });
    let mut pages = entries.map_err(|error| format!("{}: {error}", folder.display()))?;
    pages.sort();
    Ok(pages)
}

/// The tables of what the libraries export.
struct Exports {
    public: String,
    private: String,
}

impl Exports {
    /// The version of the rdma-core whose names a library has, as its own pkg-config files have it: the newest public node and the newest
    /// private one.
    fn version(&self, node: &str) -> Option<String> {
        let nodes = self
            .public
            .lines()
            .filter_map(|line| line.split('\t').nth(1)?.strip_prefix(node)?.parse::<u32>().ok());
        let tags = self.private.lines().filter_map(|line| line.split('\t').nth(1));
        let newest = tags.flat_map(|tags| tags.split(',')).filter_map(|tag| tag.parse::<u32>().ok()).max()?;
        Some(format!("1.{}.{newest}.0", nodes.max()?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_those_of_the_newest_names() {
        let exports = Exports {
            public: "symbol\tversion\tdefault\na\tIBVERBS_1.9\tdefault\nb\tIBVERBS_1.14\tcompat\nc\tRDMACM_1.3\tdefault\n".into(),
            private: "name\ttags\tfunction\nx\t9,44\t-\ny\t34\t-\n".into(),
        };
        assert_eq!(exports.version("IBVERBS_1.").as_deref(), Some("1.14.44.0"));
        assert_eq!(exports.version("RDMACM_1.").as_deref(), Some("1.3.44.0"));
        assert_eq!(exports.version("OTHER_1."), None);
    }
}
