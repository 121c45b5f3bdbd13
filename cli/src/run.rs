//! `uiw run -- CMD`: runs a stock program with uiw's libibverbs and librdmacm.

mod guard;
mod report;
mod tree;

use crate::shared::child;
use crate::shared::env::variable_failure;
use crate::shared::fail::{Exit, Failure, Result};
use crate::shared::open::Global;
use report::Requirement;
use std::env;
use std::ffi::OsString;
use std::fs;
use std::io;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use uiw_cabi_core::persona::Persona;
use uiw_cabi_core::settings::{Settings, Variable};
use uiw_cabi_core::system_path;
use uiw_cabi_core::tls;
use uiw_cli_sys::sysfs::{self, SystemDevices};

/// Exit codes of `uiw run`.
pub(crate) const EXIT_CODES: &str = "\
Exit codes: those of the program (128 and the signal's number when a signal ended it); 125 when it ended well and what --require asks for
is missing; 126 when it cannot be run, 127 when it is not found, 2 and 1 when uiw itself fails.

Further variables for the program: `uiw env`.";

/// Names by which programs load the libraries.
pub(crate) const LIBRARIES: [&str; 2] = ["libibverbs.so.1", "librdmacm.so.1"];

/// Library preloaded by --sockets, relative to the folder of the libraries.
const SOCKETS_LIBRARY: &str = "rsocket/librspreload.so.1";

/// Default port offset of --sockets. An rsocket listens on a TCP port, which must differ from the
/// port of the TCP service with the same number.
const SOCKETS_PORT_OFFSET: i32 = 10_000;

/// Run a program.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Args {
    /// The kind of device that the program sees: iwarp, roce or ib. The wire is the same
    #[arg(long, value_name = "KIND", value_parser = parse_persona)]
    persona: Option<String>,
    /// Show the program a small /sys/class/infiniband and devices in /dev/infiniband, which UCX,
    /// MPI and Mooncake look for. Uses a mount namespace, and for ordinary users also a user
    /// namespace
    #[arg(long)]
    sysfs: bool,
    /// Hide the RDMA devices of this machine from the program, as by default, but do not print a
    /// line about them
    #[arg(long)]
    only_uiw: bool,
    /// Show the program the RDMA devices of this machine as well, before those of uiw. They are
    /// opened by the system's libibverbs, or by the library at FILE; rdma_cm uses only uiw
    #[arg(long, value_name = "FILE", num_args = 0..=1, require_equals = true, conflicts_with = "only_uiw")]
    with_system: Option<Option<PathBuf>>,
    /// Number added to every port that the program passes to rdma_cm, for programs that use the
    /// same port over TCP
    #[arg(long, value_name = "N", allow_hyphen_values = true, value_parser = clap::value_parser!(i32).range(-65535..=65535))]
    port_offset: Option<i32>,
    /// Turn the program's TCP sockets into rsockets, by librspreload.so; a peer without rsockets is
    /// reached over TCP. Both ends need the same port offset, which separates rsockets from TCP
    /// services with the same port; it is 10000 unless --port-offset sets another one
    #[arg(long)]
    sockets: bool,
    /// With --sockets, programs and ports that stay on TCP. Names apply to all processes that are
    /// started
    #[arg(long, value_name = "PROGRAM|PORT,..", value_delimiter = ',', requires = "sockets")]
    tcp: Vec<String>,
    /// Require that the program, or one that it has started, moved payload to or from another
    /// process by uiw; otherwise exit with code 125 even if the program succeeded. Datagrams count
    /// from 64 KiB on, because libraries such as UCX set up connections by datagrams and then do
    /// not use them; with `any`, every byte counts. A report is printed on standard error when the
    /// program ends
    #[arg(long, value_name = "WHAT", num_args = 0..=1, require_equals = true, default_missing_value = "payload")]
    require: Option<Requirement>,
    /// Report as a JSON object, on standard error. Without --require, the exit code stays that of the program
    #[arg(long)]
    json: bool,
    /// The program and its arguments
    #[arg(last = true, required = true, value_name = "CMD")]
    command: Vec<OsString>,
}

pub(crate) fn parse_persona(text: &str) -> std::result::Result<String, String> {
    Persona::from_name(text)
        .map(|_| text.to_owned())
        .ok_or_else(|| "expected iwarp, roce or ib".to_owned())
}

/// Replaces this process by the program. To report, runs the program as a child and waits for it
/// instead. Returns only on an error, or after a report.
pub(crate) fn run(args: &Args, global: &Global) -> ExitCode {
    let done = prepare_command(args, global).and_then(|mut command| {
        if args.require.is_some() || args.json || global.verbose > 0 {
            return report::run(command, args.require, args.json);
        }
        let error = command.exec();
        Ok(report_cannot_run(&command, &error))
    });
    done.unwrap_or_else(|failure| {
        note!("{failure}");
        failure.exit.into()
    })
}

/// Prints why the program cannot be run, and returns the exit code.
fn report_cannot_run(command: &Command, error: &io::Error) -> ExitCode {
    let program = command.get_program().display();
    let (code, fix) = match error.kind() {
        io::ErrorKind::NotFound => (127, "check its name, or give its path"),
        _ => (126, "check that it may be executed"),
    };
    note!("error: cannot run {program}: {error}\nhint: {fix}");
    ExitCode::from(code)
}

fn prepare_command(args: &Args, global: &Global) -> Result<Command> {
    let Some((program, rest)) = args.command.split_first() else {
        return Err(Failure::usage("invalid command line", "no program", "see `uiw run --help`"));
    };
    if !args.only_uiw && args.with_system.is_none() {
        report_hidden_devices();
    }
    let libraries = find_libraries()?;
    let system = args
        .with_system
        .as_ref()
        .map(|file| system_library(file.as_deref(), &libraries))
        .transpose()?;
    let mut preloaded = preload_list(&libraries);
    if args.sockets {
        let library = sockets_library(&libraries)?;
        if !is_one_word(&library) {
            let why = "the loader takes no such path in LD_PRELOAD";
            return Err(Failure::usage(
                library.display(),
                why,
                "name a folder without spaces and colons by UIW_LIB",
            ));
        }
        preloaded.push(":");
        preloaded.push(library);
    }
    let mut paths = vec![libraries];
    let before = env::var_os("LD_LIBRARY_PATH").unwrap_or_default();
    // The loader takes an empty element for the current directory.
    paths.extend(env::split_paths(&before).filter(|path| !path.as_os_str().is_empty()));
    let paths = env::join_paths(paths).map_err(|error| {
        Failure::usage("LD_LIBRARY_PATH", error, "unset it, or use paths without `:`")
    })?;
    let mut command = Command::new(program);
    command.args(rest).env("LD_LIBRARY_PATH", paths).env("LD_PRELOAD", preloaded);
    if let Some(persona) = &args.persona {
        command.env("UIW_PERSONA", persona);
    }
    if let Some(system) = system {
        command.env(system_path::VARIABLE, system);
    }
    let offset = args.port_offset.or_else(|| {
        let is_set = env::var_os("UIW_PORT_OFFSET").is_some_and(|value| !value.is_empty());
        (args.sockets && !is_set).then_some(SOCKETS_PORT_OFFSET)
    });
    if let Some(offset) = offset {
        command.env("UIW_PORT_OFFSET", offset.to_string());
    }
    if !args.tcp.is_empty() {
        command.env("UIW_SOCKETS_TCP", args.tcp.join(","));
    }
    if let Some(file) = &global.pcap {
        let path = std::path::absolute(file.path())
            .map_err(|error| Failure::usage(file, error, "choose a file that can be written"))?;
        command.env("UIW_PCAP", file.clone().with_path(path).to_string());
    }
    if let Some(llp) = &global.llp {
        command.env("UIW_LLP", &llp.text);
    }
    for (name, path) in [(tls::VARIABLE, &global.tls), (tls::KEY_LOG, &global.keylog)] {
        if let Some(path) = path {
            let path = std::path::absolute(path).map_err(|error| {
                Failure::usage(path.display(), error, "choose a file that can be read")
            })?;
            command.env(name, path);
        }
    }
    let settings = check_variables(&command)?;
    if args.sockets && settings.llp.own().is_some() {
        let why = "a program's sockets are the kernel's, and the TCP is not";
        return Err(Failure::usage("--sockets", why, "leave out --llp and UIW_LLP"));
    }
    if args.sysfs {
        let persona = args.persona.as_deref().and_then(Persona::from_name).unwrap_or_else(|| {
            env::var("UIW_PERSONA")
                .ok()
                .and_then(|name| Persona::from_name(&name))
                .unwrap_or_default()
        });
        let others = match args.with_system {
            Some(_) => SystemDevices::Shown,
            None => SystemDevices::Hidden,
        };
        sysfs::enter(persona, others).map_err(|error| {
            Failure::new(Exit::Failed, "cannot make /sys/class/infiniband", error, sysfs_fix())
        })?;
    }
    Ok(command)
}

/// Returns the hint for a machine where --sysfs cannot be used.
pub(crate) fn sysfs_fix() -> &'static str {
    "run as root, or allow namespaces and mounts (kernel.unprivileged_userns_clone, in a service RestrictNamespaces= and \
     SystemCallFilter=@mount), or do without --sysfs"
}

/// Returns the library that turns sockets into rsockets.
fn sockets_library(libraries: &Path) -> Result<PathBuf> {
    let file = libraries.join(SOCKETS_LIBRARY);
    if file.is_file() {
        return Ok(file);
    }
    let fix = "install with `cargo xtask install --prefix DIR`, or put it there";
    Err(Failure::new(Exit::Failed, file.display(), "it is not there", fix))
}

/// Returns the value of LD_PRELOAD, with our libibverbs as the first library. A program may contain
/// a libibverbs of its own under another name, as Python wheels do; the preloaded functions replace
/// those of that library. `librdmacm.so.1` also takes its functions from libibverbs.
fn preload_list(libraries: &Path) -> OsString {
    let library = libraries.join(LIBRARIES[0]);
    // The loader looks for a name without a path in LD_LIBRARY_PATH.
    let mut list =
        if is_one_word(&library) { library.into_os_string() } else { LIBRARIES[0].into() };
    if let Some(others) = env::var_os("LD_PRELOAD").filter(|others| !others.is_empty()) {
        list.push(":");
        list.push(others);
    }
    list
}

/// Returns whether LD_PRELOAD can contain a path. The loader separates the names in it at spaces
/// and colons.
fn is_one_word(path: &Path) -> bool {
    !path.as_os_str().as_bytes().iter().any(|byte| matches!(byte, b' ' | b':'))
}

/// Folders in which Debian and Red Hat install libibverbs.
const SYSTEM_FOLDERS: [&str; 4] = [
    if cfg!(target_arch = "aarch64") {
        "/usr/lib/aarch64-linux-gnu"
    } else {
        "/usr/lib/x86_64-linux-gnu"
    },
    "/usr/lib64",
    "/usr/lib",
    "/usr/local/lib",
];

/// Returns the system's libibverbs: `file`, or the first one in [`SYSTEM_FOLDERS`] that is not
/// ours.
fn system_library(file: Option<&Path>, libraries: &Path) -> Result<PathBuf> {
    let own = fs::canonicalize(libraries.join(LIBRARIES[0])).ok();
    let is_other = |path: &PathBuf| fs::canonicalize(path).is_ok_and(|path| Some(path) != own);
    match file {
        Some(file) => std::path::absolute(file).ok().filter(is_other).ok_or_else(|| {
            let why = "it is not there, or is uiw's own";
            Failure::usage(
                format!("--with-system={}", file.display()),
                why,
                "give the path of the system's libibverbs.so.1",
            )
        }),
        None => {
            let places = SYSTEM_FOLDERS.map(|folder| Path::new(folder).join(LIBRARIES[0]));
            places.into_iter().find(is_other).ok_or_else(|| {
                let why =
                    format!("no {} of the system in {}", LIBRARIES[0], SYSTEM_FOLDERS.join(", "));
                Failure::new(
                    Exit::Failed,
                    "--with-system",
                    why,
                    "install it, or give its path by --with-system=FILE",
                )
            })
        }
    }
}

/// Prints a line about the RDMA devices of this machine, which the program does not see. They are
/// hidden by default because a user of `uiw run` wants uiw, and hosted machines often have unwanted
/// devices.
fn report_hidden_devices() {
    let names = fs::read_dir("/sys/class/infiniband").into_iter().flatten().flatten();
    let mut others: Vec<_> = names
        .map(|entry| entry.file_name().to_string_lossy().into_owned())
        .filter(|name| !name.starts_with("uiw_"))
        .collect();
    others.sort();
    if !others.is_empty() {
        note!(
            "uiw: the program does not see this machine's RDMA devices ({}); --with-system shows them, --only-uiw omits this line",
            others.join(", ")
        );
    }
}

/// Checks the variables of the program. A bad value is reported here, because the program would
/// only say that there are no devices.
fn check_variables(command: &Command) -> Result<Settings> {
    let value = |variable: &Variable| {
        let name = variable.name;
        let set = command.get_envs().find(|(key, _)| *key == name).and_then(|(_, value)| value);
        let value = set.map_or_else(|| env::var_os(name), |value| Some(value.to_owned()));
        value?.into_string().ok().filter(|value| !value.is_empty())
    };
    Settings::read(value).map_err(|line| variable_failure(&line).with_fix("see `uiw env`"))
}

/// Folders of the libraries, relative to the installation prefix. System packages use a private
/// folder, because the loader may search `lib`, which contains the libraries of rdma-core.
const FOLDERS: [&str; 3] = ["lib/uiw", "lib64/uiw", "lib"];

/// Returns the folder with both libraries: the one named by UIW_LIB, otherwise one of [`FOLDERS`].
pub(crate) fn find_libraries() -> Result<PathBuf> {
    let has = |folder: &Path| LIBRARIES.iter().all(|library| folder.join(library).is_file());
    if let Some(folder) = crate::shared::env::path("UIW_LIB") {
        return if has(&folder) {
            // The program may change its directory.
            std::path::absolute(folder)
                .map_err(|error| Failure::local("cannot find the current directory", error))
        } else {
            Err(Failure::usage(
                format!("UIW_LIB={}", folder.display()),
                format!("{} are not both there", LIBRARIES.join(" and ")),
                "name the folder that has them, or unset it",
            ))
        };
    }
    let program = child::own_file()?;
    let prefix = program.parent().and_then(Path::parent).unwrap_or(Path::new("/"));
    FOLDERS.iter().map(|folder| prefix.join(folder)).find(|folder| has(folder)).ok_or_else(|| {
        Failure::new(
            Exit::Failed,
            prefix.display(),
            format!("{} are not both in {}", LIBRARIES.join(" and "), FOLDERS.join(", ")),
            "install with `cargo xtask install --prefix DIR` and use DIR/bin/uiw, or name their folder by UIW_LIB",
        )
    })
}
