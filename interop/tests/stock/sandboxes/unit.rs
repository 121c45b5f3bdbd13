//! Tests the systemd unit of `docs/containers.md`: `sandbox.c` applies the restrictions of its
//! directives to a program, and systemd can parse the unit.

use super::filters::{Place, Sandboxes};
use super::{RPING, page};
use std::fs;
use std::process::Command;
use uiw_interop::stock::{Libraries, Running};

/// Returns the unit in the page.
fn unit() -> String {
    let text = page();
    let behind = text.split("`rping.service`:\n\n```ini\n").nth(1).expect("the unit");
    behind.split("```").next().expect("an end").to_owned()
}

/// Directives about users, file systems and capabilities, which other tests cover: `mounts`, and
/// the ordinary user in most of them.
const OTHERS: [&str; 9] = [
    "DynamicUser",
    "NoNewPrivileges",
    "CapabilityBoundingSet",
    "ProtectSystem",
    "ProtectHome",
    "PrivateTmp",
    "PrivateDevices",
    "TasksMax",
    "SystemCallArchitectures",
];

/// Returns the rule of a sandbox for a directive.
fn rule(sandboxes: &Sandboxes<'_>, name: &str, value: &str) -> Option<String> {
    let family = |name: &str| match name {
        "AF_UNIX" => "1",
        "AF_INET" => "2",
        "AF_INET6" => "10",
        other => panic!("{other}"),
    };
    Some(match (name, value) {
        ("RestrictAddressFamilies", names) => {
            format!(
                "families={}",
                names.split_whitespace().map(family).collect::<Vec<_>>().join(",")
            )
        }
        ("RestrictNamespaces", "yes") => "namespaces".to_owned(),
        ("MemoryDenyWriteExecute", "yes") => "write-exec".to_owned(),
        ("LimitMEMLOCK", bytes) => format!("limit=memlock:{bytes}"),
        ("LimitNOFILE", count) => format!("limit=nofile:{count}"),
        ("SystemCallFilter", "@system-service") => sandboxes.system_service(),
        (name, _) if OTHERS.contains(&name) => return None,
        directive => panic!("{directive:?} is not tried"),
    })
}

#[test]
fn documented_unit_exchanges_data() {
    let Some(_) = uiw_interop::require(RPING.program) else { return };
    let libraries = Libraries::get();
    let Some(sandboxes) = Sandboxes::get(&libraries) else { return };
    let unit = unit();
    let service = unit.split("[Service]\n").nth(1).expect("a service");
    let directives: Vec<_> = service.lines().filter_map(|line| line.split_once('=')).collect();
    let (exec, directives) = directives.split_first().expect("directives");
    assert_eq!(*exec, ("ExecStart", "/usr/bin/uiw run -- rping -s -P"));
    // A filter prevents changing the user and installing other filters, so the user comes first and
    // the filter last.
    let mut rules: Vec<_> =
        rustix::process::geteuid().is_root().then(|| "user=65534".to_owned()).into_iter().collect();
    let (filters, others): (Vec<_>, Vec<_>) =
        directives.iter().partition(|(name, _)| *name == "SystemCallFilter");
    rules.extend(
        [others, filters].concat().iter().filter_map(|(name, value)| rule(&sandboxes, name, value)),
    );
    assert!(rules.iter().any(|rule| rule.starts_with("permit=")), "{rules:?}");
    RPING.succeeds("the unit", |program| sandboxes.run(Place::Inside, &rules, program));
}

#[test]
fn systemd_parses_documented_unit() {
    let Some(analyze) = uiw_interop::require("systemd-analyze") else { return };
    let libraries = Libraries::get();
    let file = libraries.folder().join("rping.service");
    fs::write(&file, unit().replace("/usr/bin/uiw", "/bin/true")).expect("a unit");
    let mut command = Command::new(analyze);
    command.args(["verify", "--man=no"]).arg(&file).env_remove("LD_LIBRARY_PATH");
    let ended = Running::start(command).end();
    assert_eq!(ended.well().count("rping.service"), 0, "{ended:?}");
}
