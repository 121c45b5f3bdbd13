//! Sandboxes like those of systemd and container runtimes: `c/sandbox.c` sets up seccomp filters
//! and limits, so neither of the two is needed.

use rustix::io::Errno;
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use uiw_interop::stock::{Libraries, User, uiw};

/// Creates sandboxes for programs.
pub(crate) struct Sandboxes<'a> {
    pub(crate) libraries: &'a Libraries,
    program: PathBuf,
    /// System call numbers from the headers of this system.
    calls: BTreeMap<String, u32>,
}

/// Order in which the sandbox and `uiw run` are started.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    /// The sandbox is set up first, and `uiw run` is started in it.
    Inside,
    /// `uiw run` starts the program that sets up the sandbox, so the libraries are preloaded there
    /// as well.
    Outside,
}

/// Calls that an old kernel, or an old library of a container runtime, may not know.
const NEWER: &str = "epoll_pwait2 openat2 statx io_uring_setup io_uring_enter io_uring_register mseal process_madvise clone3 faccessat2 \
    close_range pidfd_open pidfd_send_signal pidfd_getfd process_mrelease rseq membarrier copy_file_range getrandom memfd_create preadv2 \
    pwritev2 renameat2 sched_setattr sched_getattr futex_waitv fchmodat2 cachestat landlock_create_ruleset mlock2 pkey_mprotect \
    pkey_alloc execveat userfaultfd";

/// System calls that docker's default profile refuses a container without capabilities, but that
/// `@system-service` permits.
const NOT_IN_DOCKER: &str = "add_key keyctl request_key mbind get_mempolicy set_mempolicy move_pages migrate_pages kcmp process_madvise setns \
    unshare userfaultfd mount umount2 pivot_root fsopen fsmount move_mount open_tree bpf perf_event_open pidfd_getfd syslog \
    io_uring_setup io_uring_enter io_uring_register open_by_handle_at fanotify_init";

/// Filter that systemd makes from `RestrictAddressFamilies=AF_INET AF_INET6 AF_UNIX`.
pub(crate) const FAMILIES: &str = "families=1,2,10";

impl<'a> Sandboxes<'a> {
    /// Returns `None`, and counts the test as skipped, without a compiler.
    #[track_caller]
    pub(crate) fn get(libraries: &'a Libraries) -> Option<Self> {
        let compiler = uiw_interop::require("cc")?;
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/stock/c/sandbox.c");
        let program = libraries.folder().join("sandbox.program");
        let mut command = Command::new(&compiler);
        command.args(["-Wall", "-Wextra", "-Werror", "-o"]).arg(&program).arg(source);
        let output = command.output().expect("cc");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let header = libraries.folder().join("calls.c");
        fs::write(&header, "#include <sys/syscall.h>\n").expect("a source file");
        let output = Command::new(&compiler).args(["-E", "-dM"]).arg(header).output().expect("cc");
        let text = String::from_utf8_lossy(&output.stdout);
        let call = |line: &str| {
            let (name, number) = line.strip_prefix("#define __NR_")?.split_once(' ')?;
            Some((name.to_owned(), number.parse().ok()?))
        };
        let calls: BTreeMap<_, _> = text.lines().filter_map(call).collect();
        assert!(calls.contains_key("sendmsg"), "{text}");
        Some(Self { libraries, program, calls })
    }

    /// Returns the numbers of those calls in a list of names that exist on this architecture.
    fn numbers(&self, names: &str) -> Vec<String> {
        names
            .split_whitespace()
            .filter_map(|name| Some(self.calls.get(name)?.to_string()))
            .collect()
    }

    /// Returns a rule that makes the calls fail with `errno`.
    pub(crate) fn refuse(&self, errno: Errno, names: &str) -> String {
        format!("refuse={}:{}", errno.raw_os_error(), self.numbers(names).join(","))
    }

    /// Returns a rule that ends all other calls with `action`.
    pub(crate) fn permit(&self, action: &str, names: &str) -> String {
        let file = self.libraries.folder().join("permitted");
        fs::write(&file, self.numbers(names).join("\n")).expect("a list of calls");
        format!("permit={action}:{}", file.display())
    }

    /// Returns the rule for `SystemCallFilter=@system-service`; any other call ends the process.
    pub(crate) fn system_service(&self) -> String {
        self.permit("kill", &system_service())
    }

    /// Returns a rule that makes newer calls fail with ENOSYS.
    pub(crate) fn old_kernel(&self) -> String {
        self.refuse(Errno::NOSYS, NEWER)
    }

    /// Returns the rules of docker's default profile.
    pub(crate) fn docker(&self) -> Vec<String> {
        vec![self.refuse(Errno::PERM, NOT_IN_DOCKER), "namespaces".to_owned()]
    }

    /// Returns the rules of a service as `systemd-analyze security` recommends them.
    pub(crate) fn hardened(&self) -> Vec<String> {
        let rules = [FAMILIES, "namespaces", "write-exec", "limit=memlock:0", "limit=nofile:64"];
        rules.map(str::to_owned).into_iter().chain([self.system_service()]).collect()
    }

    /// Returns the command that runs `program` under `uiw run`, with both or only the program in
    /// the sandbox.
    pub(crate) fn run(&self, place: Place, rules: &[String], program: &[&str]) -> Command {
        let uiw = [uiw().to_str().expect("a path of text"), "run", "--"];
        let mut command = match place {
            Place::Inside => self.command(rules, &[&uiw[..], program].concat()),
            Place::Outside => {
                let mut command = self.libraries.command(User::Same, uiw[0]);
                command.args(&uiw[1..]).arg(&self.program).args(rules).arg("--").args(program);
                command
            }
        };
        command.env("UIW_LIB", self.libraries.folder()).env_remove("LD_LIBRARY_PATH");
        command
    }

    /// Returns the command that runs a program in a sandbox, where it finds the libraries.
    pub(crate) fn command(&self, rules: &[String], program: &[&str]) -> Command {
        let mut command = self.libraries.command(User::Same, &self.program);
        command.args(rules).arg("--").args(program);
        command
    }
}

/// Returns the calls of `@system-service`.
pub(crate) fn system_service() -> String {
    let text =
        fs::read_to_string(uiw_interop::data("seccomp/system-service.txt")).expect("the list");
    text.lines().filter(|line| !line.starts_with('#')).collect::<Vec<_>>().join(" ")
}
