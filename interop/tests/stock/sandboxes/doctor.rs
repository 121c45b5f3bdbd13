//! Runs `uiw doctor` in sandboxes: it reports the refused operations and nothing else.

use super::filters::{FAMILIES, Sandboxes};
use super::mounts;
use crate::reported::parsed;
use rustix::io::Errno;
use serde_json::Value;
use std::fs;
use std::os::unix::fs::{PermissionsExt as _, chown};
use std::process::Command;
use uiw_interop::stock::{Libraries, Running, uiw};

/// Checks that concern sandboxes.
const CHECKS: [&str; 8] = [
    "system calls",
    "namespaces",
    "address families",
    "preloading",
    "counters",
    "reports of runs",
    "descriptors",
    "threads",
];

fn checks(mut command: Command, libraries: &Libraries) -> Vec<Value> {
    command.env("UIW_LIB", libraries.folder());
    let ended = Running::start(command).end();
    let report = parsed(&ended.said);
    let all = report["checks"].as_array().expect("checks").clone();
    let ours: Vec<_> = all
        .into_iter()
        .filter(|check| CHECKS.iter().any(|name| check["check"] == **name))
        .collect();
    assert_eq!(ours.len(), CHECKS.len(), "{ours:?}");
    // Every check that fails has a hint.
    for check in &ours {
        assert_eq!(check["state"] == "ok", check["fix"].is_null(), "{check}");
    }
    ours
}

/// Returns the checks that fail in a sandbox but succeed outside of it.
fn refused(sandboxes: &Sandboxes<'_>, rules: &[String]) -> Vec<Value> {
    let uiw = uiw().to_str().expect("a path of text");
    let doctor = |rules: &[String]| {
        checks(sandboxes.command(rules, &[uiw, "doctor", "--json"]), sandboxes.libraries)
    };
    let (without, within) = (doctor(&[]), doctor(rules));
    let is_well = |check: &Value| {
        without.iter().any(|one| one["check"] == check["check"] && one["state"] == "ok")
    };
    within.into_iter().filter(|check| check["state"] != "ok" && is_well(check)).collect()
}

#[track_caller]
fn is_alone(found: &[Value], name: &str, state: &str, says: &str) -> Value {
    let [only] = found else { panic!("{name} alone: {found:?}") };
    assert_eq!(
        (only["check"].as_str(), only["state"].as_str()),
        (Some(name), Some(state)),
        "{only}"
    );
    assert!(only["says"].as_str().is_some_and(|text| text.contains(says)), "{only}");
    only.clone()
}

#[test]
fn doctor_reports_sandbox_refusals() {
    let libraries = Libraries::get();
    let Some(sandboxes) = Sandboxes::get(&libraries) else { return };
    let refused = |rules: &[String]| refused(&sandboxes, rules);
    assert_eq!(
        refused(&[sandboxes.permit("1", &super::system_service())])
            .iter()
            .map(|check| &check["check"])
            .collect::<Vec<_>>(),
        ["namespaces"],
        "mounts are not among the calls of system services"
    );
    let families = is_alone(
        &refused(&[FAMILIES.to_owned()]),
        "address families",
        "limited",
        "AF_NETLINK is refused",
    );
    assert_eq!(families["details"]["refused"], serde_json::json!({ "AF_NETLINK": 97 }));
    is_alone(&refused(&["namespaces".to_owned()]), "namespaces", "limited", "no new namespaces");
    is_alone(
        &refused(&[sandboxes.refuse(Errno::PERM, "mount")]),
        "namespaces",
        "limited",
        "no mounts",
    );
    assert_eq!(refused(&["write-exec".to_owned(), "limit=memlock:0".to_owned()]), [Value::Null; 0]);
    is_alone(&refused(&["limit=nofile:64".to_owned()]), "descriptors", "limited", "64");
    is_alone(&refused(&["threads".to_owned()]), "threads", "no", "0 of");
    let calls = is_alone(
        &refused(&[sandboxes.refuse(Errno::PERM, "sendmmsg")]),
        "system calls",
        "limited",
        "UD queue pairs",
    );
    assert_eq!(calls["details"]["refused"], serde_json::json!({ "sendmmsg": "EPERM" }));
    let calls = is_alone(
        &refused(&[sandboxes.refuse(Errno::NOSYS, "accept4")]),
        "system calls",
        "no",
        "nothing runs",
    );
    assert_eq!(calls["details"]["refused"], serde_json::json!({ "accept4": "ENOSYS" }));
    // uiw works without most of the calls that an old kernel lacks, but not without these three.
    let calls = is_alone(&refused(&[sandboxes.old_kernel()]), "system calls", "limited", "uiw cp");
    let names: Vec<_> = calls["details"]["refused"].as_object().expect("calls").keys().collect();
    assert_eq!(names, ["openat2", "sched_getattr", "sched_setattr"]);
}

/// The doctor survives a filter that ends the process.
#[test]
fn doctor_survives_fatal_calls() {
    let libraries = Libraries::get();
    let Some(sandboxes) = Sandboxes::get(&libraries) else { return };
    let all = super::system_service();
    let without: Vec<_> =
        all.split_whitespace().filter(|name| !["sendmmsg", "openat2"].contains(name)).collect();
    let found = refused(&sandboxes, &[sandboxes.permit("kill", &without.join(" "))]);
    let calls = found.iter().find(|check| check["check"] == "system calls").expect("refused calls");
    assert_eq!(
        calls["details"]["refused"],
        serde_json::json!({ "openat2": "ends the process", "sendmmsg": "ends the process" })
    );
    assert_eq!(
        (&calls["details"]["seccomp"], &calls["details"]["no_new_privs"]),
        (&2.into(), &true.into())
    );
}

#[test]
fn doctor_reports_read_only_file_systems() {
    let Some(_) = uiw_interop::require("unshare") else { return };
    let libraries = Libraries::get();
    let Some(ended) = mounts::doctor(&libraries) else { return };
    let report = parsed(&ended.said);
    let of = |name: &str| {
        report["checks"].as_array().expect("checks").iter().find(|check| check["check"] == name)
    };
    for (name, state) in [
        ("counters", "limited"),
        ("reports of runs", "limited"),
        ("preloading", "ok"),
        ("threads", "ok"),
    ] {
        assert_eq!(of(name).map(|check| &check["state"]), Some(&state.into()), "{name}: {report}");
    }
}

/// These programs would not load the libraries.
#[test]
fn doctor_reports_preloading() {
    let libraries = Libraries::get();
    let preloading = |program: &str| {
        let mut command = Command::new(uiw());
        command.args(["doctor", "--json", "--program", program]);
        let found = checks(command, &libraries);
        found.into_iter().find(|check| check["check"] == "preloading").expect("the check")
    };
    let is = |check: Value, state: &str, says: &str| {
        assert_eq!(check["state"], state, "{check}");
        assert!(check["says"].as_str().is_some_and(|text| text.contains(says)), "{check}");
    };
    is(preloading("/bin/true"), "ok", "libibverbs.so.1 is loaded first");
    let script = libraries.folder().join("script");
    fs::write(
        &script,
        "#!/bin/sh\nexit 0 # and some more characters, so that it is as long as the header of a program\n",
    )
    .expect("a script");
    is(preloading(script.to_str().expect("text")), "no", "no program of this architecture");
    if let Some(compiler) = uiw_interop::require("cc") {
        let (source, program) =
            (libraries.folder().join("static.c"), libraries.folder().join("static.program"));
        fs::write(&source, "int main(void) { return 0; }\n").expect("a source file");
        let linked = Command::new(compiler)
            .arg("-static")
            .arg("-o")
            .arg(&program)
            .arg(&source)
            .output()
            .expect("cc");
        if linked.status.success() {
            is(preloading(program.to_str().expect("text")), "no", "linked statically");
        } else {
            uiw_interop::skip("a static C library");
        }
    }
    if !rustix::process::geteuid().is_root() {
        return uiw_interop::skip("root, for a program of another user's rights");
    }
    let program = libraries.folder().join("setuid");
    fs::copy("/bin/true", &program).expect("a copy");
    chown(&program, Some(65534), Some(65534)).expect("another owner");
    fs::set_permissions(&program, fs::Permissions::from_mode(0o4755)).expect("a setuid program");
    is(preloading(program.to_str().expect("text")), "no", "more rights than its user");
}
