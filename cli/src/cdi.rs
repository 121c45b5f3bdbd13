//! `uiw cdi`: the description with which container runtimes add uiw to a container (Container
//! Device Interface), and the hook that the description names.
//!
//! The libraries are added by mounts and an environment variable. Device nodes and sysfs depend on
//! the network of the container, which exists when the runtime calls the hook. The hook adds both
//! by mounts, because ordinary users cannot create devices.

use crate::run;
use crate::shared::child;
use crate::shared::fail::{Exit, Failure, Result};
use crate::shared::text;
use serde_json::{Value, json};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use uiw_cabi_core::persona::Persona;
use uiw_cli_sys::sysfs;

/// Vendor and class of the devices.
const KIND: &str = "uiw.dev/rdma";

/// First version of the specification with all the fields used here.
const VERSION: &str = "0.3.0";

/// Installation prefix of the program and the libraries inside the container.
const PREFIX: &str = "/opt/uiw";

/// Text below the help.
pub(crate) const HELP: &str = "\
Devices:
  uiw.dev/rdma=all        libraries, device nodes and sysfs
  uiw.dev/rdma=libraries  libraries alone, for runtimes without hooks

Example:
  uiw cdi --persona roce | sudo tee /etc/cdi/uiw.json
  podman run --device uiw.dev/rdma=all IMAGE PROGRAM

Exit codes:
  0  done
  1  the libraries are not there
  2  the command line is wrong";

/// Describe uiw as a device of containers, in JSON.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Args {
    /// The kind of device that programs see: iwarp, roce or ib. The wire is the same
    #[arg(long, value_name = "KIND", value_parser = run::parse_persona)]
    persona: Option<String>,
}

pub(crate) fn run(args: &Args) -> Result<()> {
    let program = child::own_file()?;
    let libraries = run::find_libraries()?;
    let libraries = fs::canonicalize(&libraries)
        .map_err(|error| Failure::local(format!("cannot find {}", libraries.display()), error))?;
    let description =
        describe(&utf8_path(&program)?, &utf8_path(&libraries)?, args.persona.as_deref());
    text::raw_line(&format!("{description:#}"));
    Ok(())
}

/// Returns a path as text. JSON cannot represent paths that are not UTF-8.
fn utf8_path(path: &Path) -> Result<String> {
    path.to_str().map(str::to_owned).ok_or_else(|| {
        Failure::usage(
            path.display(),
            "the path is not UTF-8",
            "install uiw in a folder whose name is",
        )
    })
}

/// Returns the description. `program` and `libraries` are paths on the host.
fn describe(program: &str, libraries: &str, persona: Option<&str>) -> Value {
    let mount = |host: &str, container: String| {
        json!({
            "hostPath": host,
            "containerPath": container,
            "options": ["ro", "nosuid", "nodev", "rbind"],
        })
    };
    // This variable replaces the one of the image. LD_LIBRARY_PATH is not used, because images for
    // accelerators set it. A program that asks for a library that is already preloaded gets the
    // preloaded one.
    let preloaded = run::LIBRARIES.map(|name| format!("{PREFIX}/lib/{name}")).join(":");
    let persona = persona.map(|persona| format!("UIW_PERSONA={persona}"));
    let env: Vec<String> = [format!("LD_PRELOAD={preloaded}")].into_iter().chain(persona).collect();
    json!({
        "cdiVersion": VERSION,
        "kind": KIND,
        "devices": [
            {
                "name": "all",
                "containerEdits": {
                    "hooks": [{
                        "hookName": "createContainer",
                        "path": program,
                        "args": ["uiw", "cdi-hook"],
                        // The hook does not inherit the variables of the user.
                        "env": ["PATH=/usr/bin:/bin"],
                    }],
                },
            },
            // The specification requires at least one edit for each device.
            { "name": "libraries", "containerEdits": { "env": [env[0]] } },
        ],
        "containerEdits": {
            "env": env,
            "mounts": [
                mount(program, format!("{PREFIX}/bin/uiw")),
                mount(libraries, format!("{PREFIX}/lib")),
            ],
        },
    })
}

/// Runs the hook, which adds device nodes and sysfs to a container that is being created. Reads the
/// state of the container (OCI runtime specification) from standard input.
pub(crate) fn hook() -> Result<()> {
    let state =
        io::read_to_string(io::stdin()).map_err(|error| hook_failure("standard input", error))?;
    let container = ContainerState::from_state(&state)?;
    sysfs::show_in(&container.root, container.persona).map_err(|error| {
        hook_failure(
            format!("cannot make device nodes and sysfs in {}", container.root.display()),
            error,
        )
    })
}

fn hook_failure(what: impl std::fmt::Display, why: impl std::fmt::Display) -> Failure {
    Failure::new(
        Exit::Failed,
        what,
        why,
        "use the device uiw.dev/rdma=libraries, which needs no hook",
    )
}

/// The properties of a container that the hook needs.
#[derive(Debug, PartialEq, Eq)]
struct ContainerState {
    /// Root file system, as a path of the container runtime.
    root: PathBuf,
    persona: Persona,
}

impl ContainerState {
    /// Reads the configuration of the container from the folder named in its state.
    fn from_state(state: &str) -> Result<Self> {
        let wrong = |why: &str| hook_failure("the state of the container on standard input", why);
        let state: Value =
            serde_json::from_str(state).map_err(|error| wrong(&error.to_string()))?;
        let bundle = state["bundle"].as_str().ok_or_else(|| wrong("it has no bundle"))?;
        let bundle = Path::new(bundle);
        let file = bundle.join("config.json");
        let config =
            fs::read_to_string(&file).map_err(|error| hook_failure(file.display(), error))?;
        Self::from_config(bundle, &config).map_err(|why| hook_failure(file.display(), why))
    }

    fn from_config(bundle: &Path, config: &str) -> std::result::Result<Self, String> {
        let config: Value = serde_json::from_str(config).map_err(|error| error.to_string())?;
        let root = config["root"]["path"].as_str().ok_or("it has no root file system")?;
        let env = config["process"]["env"].as_array().map(Vec::as_slice).unwrap_or_default();
        // If a variable is set several times, the last value counts.
        let mut env = env.iter().rev().filter_map(Value::as_str);
        let persona = env.find_map(|line| line.strip_prefix("UIW_PERSONA=")).unwrap_or_default();
        // A bad value is not an error here: the libraries report it to the program.
        let persona = Persona::from_name(persona).unwrap_or_default();
        Ok(Self { root: bundle.join(root), persona })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn libraries_mounted_at_preload_path() {
        let all = describe("/usr/bin/uiw", "/usr/lib/uiw", Some("roce"));
        let edits = &all["containerEdits"];
        let mounts: Vec<_> = edits["mounts"]
            .as_array()
            .unwrap()
            .iter()
            .map(|mount| {
                (mount["hostPath"].as_str().unwrap(), mount["containerPath"].as_str().unwrap())
            })
            .collect();
        assert_eq!(
            mounts,
            [("/usr/bin/uiw", "/opt/uiw/bin/uiw"), ("/usr/lib/uiw", "/opt/uiw/lib")]
        );
        let preloaded = "LD_PRELOAD=/opt/uiw/lib/libibverbs.so.1:/opt/uiw/lib/librdmacm.so.1";
        assert_eq!(edits["env"], json!([preloaded, "UIW_PERSONA=roce"]));
        let hook = &all["devices"][0]["containerEdits"]["hooks"][0];
        assert_eq!(
            (&hook["path"], &hook["args"]),
            (&json!("/usr/bin/uiw"), &json!(["uiw", "cdi-hook"]))
        );
        assert_eq!(describe("/a", "/b", None)["containerEdits"]["env"], json!([preloaded]));
    }

    #[test]
    fn hook_reads_container_configuration() {
        let of =
            |config: Value| ContainerState::from_config(Path::new("/run/c1"), &config.to_string());
        let container = |root: &str, persona| Ok(ContainerState { root: root.into(), persona });
        assert_eq!(
            of(json!({"root": {"path": "rootfs"}})),
            container("/run/c1/rootfs", Persona::Iwarp)
        );
        let env = json!(["UIW_PERSONA=ib", "A=B", "UIW_PERSONA=roce"]);
        let config = json!({"root": {"path": "/images/1"}, "process": {"env": env}});
        assert_eq!(of(config), container("/images/1", Persona::Roce));
        assert!(of(json!({"root": {}})).is_err());
    }
}
