//! Compares the symbols that the two libraries export and need, as shown by binutils, with the
//! tables.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::process::Command;
use uiw_cabi_exports::{PRIVATE, PUBLIC};
use uiw_interop::stock::Libraries;

fn objdump(option: &str, file: &Path) -> String {
    let output = Command::new("objdump").arg(option).arg(file).output().expect("objdump");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// Returns `name version default|compat` for every defined dynamic symbol in the output of objdump,
/// which writes the version of a compat symbol in parentheses.
fn exported(table: &str) -> BTreeSet<String> {
    let defined = table.lines().filter(|line| line.contains(" .text") || line.contains(" .data"));
    let words = defined.map(|line| line.split_whitespace().rev().take(2).collect::<Vec<_>>());
    words
        .map(|words| {
            match words[1].strip_prefix('(').and_then(|version| version.strip_suffix(')')) {
                Some(version) => format!("{} {version} compat", words[0]),
                None => format!("{} {} default", words[0], words[1]),
            }
        })
        .collect()
}

#[test]
fn exports_match_rdma_core() {
    let Some(_) = uiw_interop::require("objdump") else { return };
    let libraries = Libraries::get();
    let rows = PUBLIC.lines().skip(1).map(|line| line.split('\t').take(3).collect::<Vec<_>>());
    // The symbols used by librspreload.so are added below.
    let rows = rows.filter(|row| row[1] != "UIW_SOCKETS_1");
    let mut wanted: BTreeSet<String> = rows.map(|row| row.join(" ")).collect();
    // The count covers the public symbols of rdma-core 44 in Debian 12 and those added by newer
    // versions.
    assert_eq!(wanted.len(), 202);
    for line in PRIVATE.lines().skip(1) {
        let [name, tags, _] = line.split('\t').collect::<Vec<_>>()[..] else { panic!("{line}") };
        let tags: Vec<&str> = tags.split(',').collect();
        let default = if tags.contains(&"34") { "34" } else { tags[0] };
        for tag in tags {
            let kind = if tag == default || name.ends_with("NN") { "default" } else { "compat" };
            wanted.insert(format!("{} IBVERBS_PRIVATE_{tag} {kind}", name.replace("NN", tag)));
        }
    }
    // These functions of the C library are interposed.
    let interposed = [
        "brk",
        "madvise",
        "mmap",
        "mmap64",
        "mprotect",
        "mremap",
        "munmap",
        "pkey_mprotect",
        "pthread_sigmask",
        "sbrk",
        "sigaction",
        "signal",
        "sigprocmask",
    ];
    wanted.extend(interposed.map(|name| format!("{name} Base default")));
    // These symbols are used only by librspreload.so.
    let needed = objdump("-T", &libraries.folder().join("rsocket/librspreload.so.1"));
    let needed = needed.lines().filter(|line| line.contains("*UND*"));
    let needed = needed.filter_map(|line| line.split_whitespace().last());
    wanted.extend(
        needed
            .filter(|name| name.starts_with("uiw_"))
            .map(|name| format!("{name} UIW_SOCKETS_1 default")),
    );
    let got = exported(&objdump("-T", &libraries.folder().join("libibverbs.so.1")));
    let missing: Vec<_> = wanted.difference(&got).collect();
    let more: Vec<_> = got.difference(&wanted).collect();
    assert!(missing.is_empty() && more.is_empty(), "missing {missing:?}, more {more:?}");
}

/// Compares the tables with the distribution's libraries, which are independent of uiw.
#[test]
fn symbols_of_rdma_core_exported() {
    let Some(_) = uiw_interop::require("objdump") else { return };
    let ours = exported(&objdump("-T", &Libraries::get().folder().join("libibverbs.so.1")));
    for name in ["libibverbs.so.1", "librdmacm.so.1"] {
        let file = format!("/usr/lib/{}-linux-gnu/{name}", std::env::consts::ARCH);
        if !Path::new(&file).exists() {
            return uiw_interop::skip(&file);
        }
        let theirs = exported(&objdump("-T", Path::new(&file)));
        let missing: Vec<_> = theirs.difference(&ours).collect();
        assert!(missing.is_empty() && theirs.len() > 50, "{file}: {missing:?}");
    }
}

/// The newest glibc symbol that the libraries need is from the documented version.
#[test]
fn symbols_need_documented_c_library() {
    let Some(_) = uiw_interop::require("objdump") else { return };
    let libraries = Libraries::get();
    let number = |text: &str| {
        let (major, minor) = text.trim_end_matches(')').split_once('.')?;
        Some((major.parse::<u32>().ok()?, minor.split('.').next()?.parse::<u32>().ok()?))
    };
    let documentation = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/run-your-program.md");
    let text = fs::read_to_string(documentation).expect("the documentation");
    let documented =
        text.split("The libraries need glibc ").nth(1).and_then(|rest| rest.split(' ').next());
    let documented = documented.and_then(number).expect("which glibc is needed");
    for name in ["libibverbs.so.1", "librdmacm.so.1", "rsocket/librspreload.so.1"] {
        let table = objdump("-T", &libraries.folder().join(name));
        let needed = table
            .split("GLIBC_")
            .skip(1)
            .filter_map(|rest| number(rest.split_whitespace().next()?));
        let newest = needed.max().expect("a symbol of the C library");
        assert!(
            newest <= documented,
            "{name} needs glibc {newest:?}, documented is {documented:?}"
        );
    }
}

#[test]
fn libraries_share_one_engine() {
    let Some(_) = uiw_interop::require("objdump") else { return };
    let libraries = Libraries::get();
    let head = |name: &str| objdump("-p", &libraries.folder().join(name));
    let has = |text: &str, key: &str, value: &str| {
        text.lines().any(|line| {
            let mut words = line.split_whitespace();
            words.next() == Some(key) && words.next() == Some(value)
        })
    };
    let (verbs, cm) = (head("libibverbs.so.1"), head("librdmacm.so.1"));
    assert!(has(&verbs, "SONAME", "libibverbs.so.1"), "{verbs}");
    assert!(has(&cm, "SONAME", "librdmacm.so.1") && has(&cm, "NEEDED", "libibverbs.so.1"), "{cm}");
    for node in ["RDMACM_1.0", "RDMACM_1.1", "RDMACM_1.2", "RDMACM_1.3", "RDMACM_1.4", "RDMACM_1.5"]
    {
        assert!(cm.contains(node), "{node}:\n{cm}");
    }
    assert!(exported(&objdump("-T", &libraries.folder().join("librdmacm.so.1"))).is_empty());
}

/// Every public name of the two libraries is listed in a table of the documentation, together with
/// its behaviour.
#[test]
fn every_verb_is_documented() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let read = |file: &str| fs::read_to_string(root.join(file)).expect(file);
    let (verbs, cm) = (read("docs/verbs.md"), read("cabi/RDMACM.md"));
    // Returns the complete names between backticks.
    let names = |text: &str| -> BTreeSet<String> {
        text.split('`')
            .skip(1)
            .step_by(2)
            .map(|name| name.trim_start_matches('_').to_owned())
            .collect()
    };
    let (verbs, cm) = (names(&verbs), names(&cm));
    let drivers = [
        "ibv_cmd_",
        "ibv_copy_",
        "ibv_register_driver",
        "ibv_read_ibdev_sysfs_file",
        "verbs_",
        "_verbs",
        "__ibv",
    ];
    let mut missing = Vec::new();
    for line in PUBLIC.lines().skip(1) {
        let name = line.split('\t').next().expect("a name");
        if name.starts_with("uiw_") {
            continue;
        }
        if drivers.iter().any(|prefix| name.starts_with(prefix)) {
            continue;
        }
        let known = match name.strip_prefix('_').unwrap_or(name) {
            name if name.starts_with("rdma_") => cm.contains(name),
            name if name.contains("ibv_") => verbs.contains(name),
            // Names of sockets over RDMA, which `rsocket` in the table covers.
            name if name.starts_with('r') => cm.contains("rsocket"),
            _ => false,
        };
        if !known {
            missing.push(name.to_owned());
        }
    }
    assert!(missing.is_empty(), "{missing:?}");
}
