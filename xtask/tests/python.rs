//! Runs the tests of the Python module with pytest.

mod common;

use common::{Folder, output, run, source};
use std::fs;
use std::process::Command;

/// Returns an interpreter with pytest: the usual one, or one in a new environment in which pytest is
/// installed. Without one, returns `None` and counts the test as skipped.
fn interpreter(folder: &Folder) -> Option<String> {
    let _ = uiw_interop::require("python3")?;
    let has = |python: &str| {
        output(Command::new(python).args(["-m", "pytest", "--version"])).status.success()
    };
    let is_new = |python: &str| {
        let script = "import sys; sys.exit(sys.version_info < (3, 11))";
        output(Command::new(python).args(["-c", script])).status.success()
    };
    if !is_new("python3") {
        uiw_interop::skip("Python 3.11");
        return None;
    }
    if has("python3") {
        return Some("python3".to_owned());
    }
    let environment = folder.join("venv");
    let python = environment.join("bin/python").display().to_string();
    let made =
        output(Command::new("python3").args(["-m", "venv"]).arg(&environment)).status.success();
    let pip = ["-m", "pip", "install", "--quiet", "--disable-pip-version-check", "pytest"];
    if made && output(Command::new(&python).args(pip)).status.success() && has(&python) {
        return Some(python);
    }
    uiw_interop::skip("pytest (python3-pytest)");
    None
}

#[test]
fn every_class_of_the_module() {
    let folder = Folder::new("python");
    let Some(python) = interpreter(&folder) else { return };
    let module = folder.join("uiw");
    fs::create_dir(&module).unwrap();
    for entry in fs::read_dir(source("python/uiw")).unwrap() {
        let path = entry.unwrap().path();
        if path.is_file() {
            fs::copy(&path, module.join(path.file_name().unwrap())).unwrap();
        }
    }
    fs::copy(uiw_interop::stock::built().join("lib_uiw.so"), module.join("_uiw.abi3.so")).unwrap();
    let tests = source("python/tests").display().to_string();
    let path = format!("PYTHONPATH={}", folder.0.display());
    let program = format!("UIW_PROGRAM={}", uiw_interop::stock::built().join("uiw").display());
    let said = run(
        "env",
        &[&path, &program, &python, "-B", "-m", "pytest", "-q", "-p", "no:cacheprovider", &tests],
    );
    assert!(said.contains(" passed") && !said.contains(" skipped"), "{said}");
}
