//! The commands of the book's pages, run literally, each page in a network namespace of its own, so with the ports that it names.

use std::fs;
use std::path::{Path, PathBuf};
use uiw_interop::stock::{Libraries, Running, User, uiw};

/// A command of a page, and the lines that it prints. `[..]` stands for any characters.
struct Step {
    command: String,
    printed: Vec<String>,
}

/// The commands of the page's `console` blocks, in order.
fn steps(page: &str) -> Vec<Step> {
    let mut steps: Vec<Step> = Vec::new();
    let mut is_console = false;
    for line in page.lines() {
        match line.strip_prefix("```") {
            Some(language) => is_console = language == "console",
            None if !is_console => {}
            None => match (line.strip_prefix("$ "), steps.last_mut()) {
                (Some(command), _) => steps.push(Step { command: command.to_owned(), printed: Vec::new() }),
                (None, Some(step)) => step.printed.push(line.to_owned()),
                (None, None) => panic!("a console block begins with `$ `: {line}"),
            },
        }
    }
    assert!(!steps.is_empty(), "the page has a console block");
    steps
}

fn matches(pattern: &str, line: &str) -> bool {
    let mut parts = pattern.split("[..]");
    let Some(mut rest) = line.strip_prefix(parts.next().unwrap_or_default()) else { return false };
    let mut last = None;
    for part in parts {
        match rest.find(part) {
            Some(at) => rest = &rest[at + part.len()..],
            None => return false,
        }
        last = Some(part);
    }
    // Behind a last `[..]` anything may follow.
    rest.is_empty() || last == Some("")
}

fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("a workspace").to_owned()
}

/// Runs a page with `programs`, which it needs.
fn run(page: &str, programs: &[&str]) {
    if !rustix::process::geteuid().is_root() {
        return uiw_interop::skip("root, for a network namespace");
    }
    for program in programs.iter().chain(&["unshare", "bash", "ip", "ss"]) {
        if uiw_interop::require(program).is_none() {
            return;
        }
    }
    let libraries = Libraries::get();
    let folder = libraries.folder().join("page");
    fs::create_dir(&folder).unwrap();
    let text = fs::read_to_string(repository().join("docs").join(page)).unwrap();
    let steps = steps(&text);
    let mut script = String::from("ip link set lo up\n");
    for (number, step) in steps.iter().enumerate() {
        // In the shell itself: a command may begin a job that a later one ends.
        script += &format!("{{ {}\n}} > .{number}.said 2>&1; echo $? > .{number}.code\n", step.command);
    }
    let mut command = libraries.command(User::Same, "unshare");
    // With a process namespace of their own, jobs of the page end with it.
    command.args(["--net", "--pid", "--fork", "--kill-child", "--mount-proc", "bash", "-c", &script]);
    let bin = libraries.folder().join("bin");
    fs::create_dir(&bin).unwrap();
    std::os::unix::fs::symlink(uiw(), bin.join("uiw")).unwrap();
    let path = std::env::var("PATH").unwrap_or_default();
    command.env("PATH", format!("{}:{path}", bin.display())).env_remove("LD_LIBRARY_PATH");
    command.env("UIW_LIB", libraries.folder()).env("EXAMPLES", repository().join("examples"));
    command.current_dir(&folder);
    Running::start(command).end().well();
    for (number, step) in steps.iter().enumerate() {
        let read =
            |what: &str| fs::read_to_string(folder.join(format!(".{number}.{what}"))).unwrap_or_default();
        let (said, code) = (read("said"), read("code"));
        let lines: Vec<_> = said.lines().collect();
        let fits = lines.len() == step.printed.len()
            && step.printed.iter().zip(&lines).all(|(pattern, line)| matches(pattern, line));
        assert!(
            fits && code.trim() == "0",
            "{page}: $ {}\nexit code {code}expected:\n{}\nprinted:\n{said}",
            step.command,
            step.printed.join("\n"),
        );
    }
}

#[test]
fn patterns() {
    assert!(matches("a[..]c", "abc") && matches("a[..]", "a") && matches("[..]c", "c") && matches("", ""));
    assert!(!matches("a[..]c", "abcd") && !matches("a", "ab") && !matches("[..]x", "y"));
}

#[test]
fn quick_start() {
    run("quick-start.md", &["rping"]);
}

#[test]
fn c_guide() {
    if !Path::new("/usr/include/rdma/rdma_cma.h").exists() {
        return uiw_interop::skip("librdmacm-dev");
    }
    run("c.md", &["cc"]);
}
