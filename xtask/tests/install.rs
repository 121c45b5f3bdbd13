//! Runs `cargo xtask install`, and tests the installed files and the list of them.

mod common;

use common::{Folder, output, run, source, xtask};
use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use uiw_interop::stock::Running;

#[test]
fn installed_files_work_and_are_listed() {
    let Some(_) = uiw_interop::require("strip") else { return };
    let prefix = Folder::new("prefix");
    let given = prefix.0.to_str().unwrap();
    fs::create_dir(prefix.join("bin")).unwrap();
    fs::write(prefix.join("bin/other"), "of another package").unwrap();
    let before = prefix.entries();

    let said = xtask(&["install", "--debug", "--prefix", given]);
    assert!(said.contains(&format!("{given}/bin/uiw\n")), "{said}");
    let installed = prefix.entries();
    assert!(run(prefix.join("bin/uiw"), &["--version"]).starts_with("uiw "));
    // The program finds the libraries.
    let listed = run(prefix.join("bin/uiw"), &["run", "--", "env"]);
    assert!(listed.contains(&format!("LD_LIBRARY_PATH={given}/lib")), "{listed}");
    for library in ["ibverbs", "rdmacm"] {
        let mode = fs::metadata(prefix.join(&format!("lib/lib{library}.so.1")))
            .unwrap()
            .permissions()
            .mode();
        assert_eq!(mode & 0o777, 0o755);
    }
    if uiw_interop::require("ldd").is_some() {
        let needed = run("ldd", &[prefix.join("lib/librdmacm.so.1")]);
        assert!(
            needed.contains(&format!("libibverbs.so.1 => {given}/lib/libibverbs.so.1 ")),
            "{needed}"
        );
    }
    let unit = fs::read_to_string(prefix.join("lib/systemd/system/uiw.service")).unwrap();
    assert!(unit.contains(&format!("\nExecStart=\"{given}/bin/uiw\" serve ")), "{unit}");
    // These options would make openat2(2) unavailable.
    let is_set = |option: &str| unit.lines().any(|line| line.starts_with(option));
    assert!(
        is_set("Type=notify") && !is_set("DynamicUser=") && !is_set("RestrictSUIDSGID="),
        "{unit}"
    );
    assert!(
        installed.iter().all(|path| !path.display().to_string().contains("generated")),
        "{installed:?}"
    );

    // The next installation removes a file that is only in the old list.
    fs::write(prefix.join("share/uiw/former"), "").unwrap();
    let list = prefix.join("share/uiw/installed");
    fs::write(&list, fs::read_to_string(&list).unwrap() + "share/uiw/former\n").unwrap();
    xtask(&["install", "--debug", "--prefix", given, "--no-strip"]);
    assert_eq!(prefix.entries(), installed);

    // This is the command of docs/installing.md.
    run("sh", &["-c", "cd \"$1\" && xargs -d '\\n' rm < share/uiw/installed", "sh", given]);
    let is_file = |path: &PathBuf| !prefix.0.join(path).is_dir();
    let left: BTreeSet<_> = prefix.entries().into_iter().filter(is_file).collect();
    assert_eq!(left, before.into_iter().filter(is_file).collect());
}

/// Returns the lines of the first block of this kind in README.md.
fn first_block(kind: &str) -> Vec<String> {
    let readme = fs::read_to_string(source("README.md")).unwrap();
    let (_, block) = readme.split_once(&format!("```{kind}\n")).unwrap();
    block.lines().take_while(|line| *line != "```").map(str::to_owned).collect()
}

/// Returns the commands that install, and those of the first block with their output.
fn first_commands() -> (Vec<String>, Vec<String>) {
    let shown = first_block("console").into_iter();
    let shown = shown.filter_map(|line| Some(line.strip_prefix("$ ")?.to_owned()));
    (first_block("sh"), shown.collect())
}

/// Runs the commands as a reader types them, except that the installed build is a debug build.
#[test]
fn first_readme_commands_work() {
    let needs = ["strip", "unshare", "ip", "ss", "ib_write_bw"];
    if needs.iter().any(|program| uiw_interop::require(program).is_none()) {
        return;
    }
    let home = Folder::new("home");
    let (install, commands) = first_commands();
    let prefix = install[0].split_whitespace().collect::<Vec<_>>();
    assert_eq!(prefix[..5], ["cargo", "xtask", "install", "--prefix", "~/.local"]);
    xtask(&["install", "--debug", "--prefix", home.join(".local").to_str().unwrap()]);

    // In a separate network namespace, every port is free. Where a reader sleeps for a second, the
    // script waits for the port of the server that was started.
    let script = format!(
        "set -e; cd; ip link set lo up; ports='7174 18515'
         sleep() {{
             port=${{ports%% *}} ports=${{ports#* }} tries=0
             until ss -tlnH | grep -q \":$port \"; do
                 tries=$((tries + 1)); test $tries -lt 1200 || exit 1; command sleep 0.05
             done
         }}
         {}
         {}
         kill %1; wait",
        install[1..].join("\n"),
        commands.join("\n")
    );
    let mut shell = Command::new("unshare");
    shell.args([
        "--map-root-user",
        "--net",
        "--pid",
        "--fork",
        "--kill-child",
        "--",
        "bash",
        "-c",
        &script,
    ]);
    let shown = output(shell.env("HOME", &home.0).env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin"));
    let (text, error) =
        (String::from_utf8_lossy(&shown.stdout), String::from_utf8_lossy(&shown.stderr));
    assert!(shown.status.success(), "{text}{error}");
    assert!(text.contains("5 round trips (send, 64 bytes), all verified"), "{text}{error}");
    // This line has the figures of the stock program.
    assert_eq!(text.matches("\n 65536 ").count(), 1, "{text}{error}");
}

#[test]
fn destdir_has_all_files() {
    let Some(_) = uiw_interop::require("strip") else { return };
    let root = Folder::new("destdir");
    let given = root.0.to_str().unwrap();
    xtask(&["install", "--debug", "--prefix", "/usr", "--destdir", given]);
    let installed = root.entries();
    for file in [
        "usr/bin/uiw",
        "usr/lib/uiw/libibverbs.so.1",
        "usr/lib/uiw/librdmacm.so.1",
        "usr/share/man/man1/uiw.1",
        "usr/share/man/man1/uiw-serve.1",
        "usr/share/bash-completion/completions/uiw",
        "usr/share/zsh/site-functions/_uiw",
        "usr/share/fish/vendor_completions.d/uiw.fish",
        "usr/share/uiw/valgrind.supp",
        "usr/lib/systemd/system/uiw.service",
        "usr/lib/sysusers.d/uiw.conf",
    ] {
        assert!(installed.contains(Path::new(file)), "{file}: {installed:?}");
    }
    // The libraries are not where the loader looks, and hidden commands have no page.
    assert!(!installed.contains(Path::new("usr/lib/libibverbs.so.1")));
    assert!(!installed.contains(Path::new("usr/share/man/man1/uiw-generate.1")));
    for folder in ["bin", "lib", "share"] {
        for file in installed.iter().filter(|file| file.starts_with(format!("usr/{folder}"))) {
            let Ok(text) = fs::read_to_string(root.0.join(file)) else { continue };
            assert!(!text.contains(given), "{} names the folder of the packager", file.display());
        }
    }
    assert!(
        run(root.join("usr/bin/uiw"), &["run", "--", "env"])
            .contains(&format!("LD_LIBRARY_PATH={given}/usr/lib/uiw"))
    );
}

#[test]
fn generated_files_parsed_by_programs() {
    let Some(_) = uiw_interop::require("strip") else { return };
    let prefix = Folder::new("readers");
    let given = prefix.0.to_str().unwrap();
    xtask(&["install", "--debug", "--prefix", given]);
    if uiw_interop::require("man").is_some() {
        let page = prefix.join("share/man/man1/uiw-serve.1");
        let mut man = Command::new("man");
        let shown = output(
            man.env("LC_ALL", "C.UTF-8")
                .env("MANWIDTH", "200")
                .arg("--warnings")
                .arg("-l")
                .arg(page),
        );
        let (text, warnings) =
            (String::from_utf8_lossy(&shown.stdout), String::from_utf8_lossy(&shown.stderr));
        assert!(text.contains("--listen"), "{text}");
        assert_eq!(warnings, "");
    }
    if uiw_interop::require("bash").is_some() {
        let script = "source \"$1\"; COMP_WORDS=(uiw ser); COMP_CWORD=1; _uiw uiw ser uiw; echo \"${COMPREPLY[@]}\"";
        let file = prefix.join("share/bash-completion/completions/uiw");
        assert_eq!(run("bash", &["-c", script, "bash", file.to_str().unwrap()]), "serve\n");
    }
    if uiw_interop::require("systemd-analyze").is_some() {
        let unit = prefix.join("lib/systemd/system/uiw.service");
        let said = run(
            "systemd-analyze",
            &["verify", "--man=no", "--recursive-errors=no", unit.to_str().unwrap()],
        );
        assert_eq!(said, "");
    }
}

#[test]
fn linked_programs_run_on_both_libraries() {
    let needs = ["strip", "cc", "pkg-config"];
    if needs.iter().any(|program| uiw_interop::require(program).is_none()) {
        return;
    }
    if !Path::new("/usr/include/rdma/rdma_cma.h").exists() {
        uiw_interop::skip("librdmacm-dev");
        return;
    }
    let prefix = Folder::new("linked");
    let given = prefix.0.to_str().unwrap();
    xtask(&["install", "--debug", "--prefix", given]);
    for name in ["server", "client"] {
        // A user may expect files of pkg-config there. This must not prevent the build.
        let script = "PKG_CONFIG_PATH=\"$1/lib/pkgconfig\"; export PKG_CONFIG_PATH; \
            cc -o \"$2\" \"$3\" -L\"$1/lib\" $(pkg-config --cflags --libs librdmacm libibverbs)";
        let (program, code) = (prefix.join(name), source(&format!("examples/c/{name}.c")));
        run("sh", &["-c", script, "sh", given, program.to_str().unwrap(), code.to_str().unwrap()]);
    }
    let on_rdma_core =
        output(Command::new(prefix.join("client")).env_remove("LD_LIBRARY_PATH").args([
            "127.0.0.1",
            "1",
            "",
        ]));
    let said = String::from_utf8_lossy(&on_rdma_core.stderr).into_owned();
    assert!(on_rdma_core.status.code() != Some(127) && !said.contains("RDMACM_"), "{said}");
    let mut first: Vec<&[&str]> = vec![&[]];
    let suppressions = format!("--suppressions={given}/share/uiw/valgrind.supp");
    let valgrind = ["valgrind", "-q", "--error-exitcode=9", "--leak-check=full", &suppressions];
    if uiw_interop::require("valgrind").is_some() {
        first.push(&valgrind);
    }
    for first in first {
        let of = |name: &str, args: &[&str]| {
            let mut command = Command::new(prefix.join("bin/uiw"));
            command
                .args(["run", "--"])
                .args(first)
                .arg(prefix.join(name))
                .args(args)
                .env("UIW_COUNTERS", "off");
            command
        };
        let mut server = Running::start(of("server", &["1"]));
        server.wait_saying("port ");
        let said = server.said();
        let (_, port) = said.trim_end().rsplit_once("port ").unwrap();
        let client = output(&mut of("client", &["127.0.0.1", port, "good day"]));
        assert_eq!(
            String::from_utf8_lossy(&client.stdout),
            "client got: you said 8 bytes\n",
            "{client:?}"
        );
        assert!(client.status.success(), "{client:?}");
        assert_eq!(server.end().well().count("server got: good day"), 1);
    }
}
