//! A process has exactly one engine, whichever of the libraries it loads and in whichever order.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use uiw_interop::stock::{Libraries, Running, User, compile};

/// Compiles `engines.c` twice: linked to both libraries, and as a program that only opens them at
/// run time.
fn programs(libraries: &Libraries) -> Option<[PathBuf; 2]> {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/stock/c/engines.c");
    let strict = ["-Wall", "-Wextra", "-Werror", "-Wno-address"];
    let build = |flags: &[&str], name: &str| {
        let program = compile(libraries, &source, &[&strict, flags].concat())?;
        let renamed = program.with_file_name(name);
        fs::rename(program, &renamed).expect("another name for the program");
        Some(renamed)
    };
    Some([
        build(&["-DLINKED", "-Wl,--no-as-needed"], "linked")?,
        build(&["-Wl,--as-needed"], "opening")?,
    ])
}

fn command(libraries: &Libraries, program: &Path, steps: &[&str]) -> Command {
    let mut command = libraries.command(User::Same, program);
    command.args(steps).env("UIW_SHARDS", "1").env("UIW_PERSONA", "roce");
    command
}

#[test]
fn process_has_one_engine() {
    let libraries = Libraries::get();
    let Some(programs) = programs(&libraries) else { return };
    let preload = libraries.folder().join("rsocket/librspreload.so.1");
    for program in &programs {
        for steps in [["verbs", "cm"], ["cm", "verbs"]] {
            let ended = Running::start(command(&libraries, program, &steps)).end();
            let expected = steps.map(|step| format!("{step}: 1\n")).concat();
            assert_eq!(ended.well().said, expected, "{}", program.display());
        }
        for steps in
            [["sockets", "verbs", "cm"], ["cm", "sockets", "verbs"], ["verbs", "cm", "sockets"]]
        {
            let mut command = command(&libraries, program, &steps);
            command.env("LD_PRELOAD", &preload).env("UIW_PORT_OFFSET", "10000");
            let expected = steps.map(|step| format!("{step}: 1\n")).concat();
            let ended = Running::start(command).end();
            assert_eq!(ended.well().said, expected, "{}, preloaded", program.display());
        }
    }
}

/// Verifies the counting itself: a copy of the library in another file has an engine of its own.
#[test]
fn second_engine_counted() {
    let libraries = Libraries::get();
    let Some(programs) = programs(&libraries) else { return };
    let copy = libraries.folder().join("copy.so");
    fs::copy(libraries.folder().join("libibverbs.so.1"), &copy).expect("a copy of the library");
    for program in &programs {
        let steps = ["verbs", "second", copy.to_str().expect("a path of text"), "cm"];
        let ended = Running::start(command(&libraries, program, &steps)).end();
        assert_eq!(ended.well().said, "verbs: 1\nsecond: 2\ncm: 2\n", "{}", program.display());
    }
}

/// Threads and signal handlers need the code after a program has closed its handle of the library.
#[test]
fn library_stays_loaded_after_dlclose() {
    let libraries = Libraries::get();
    let Some([_, opening]) = programs(&libraries) else { return };
    let ended =
        Running::start(command(&libraries, &opening, &["list", "unload", "verbs", "unload"])).end();
    assert_eq!(ended.well().said, "list: 0\nunload: 0\nverbs: 1\nunload: 1\n");
}
