//! Runs the script of `action.yml` with the files of a runner in a temporary folder, and then stock
//! programs as later steps would run them.

mod common;

use common::{Folder, output, run, source, xtask};
use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::{Command, Output, Stdio};

/// Files of a runner in which a step leaves its results for later steps.
struct Runner {
    folder: Folder,
}

impl Runner {
    fn new(name: &str) -> Self {
        let folder = Folder::new(name);
        for file in ["env", "path", "output"] {
            fs::write(folder.join(file), "").unwrap();
        }
        Self { folder }
    }

    /// Runs the step with these inputs.
    fn step(&self, inputs: &[(&str, &str)]) -> Output {
        output(&mut self.script(inputs))
    }

    /// Returns the command that runs the script of the step with these inputs.
    fn script(&self, inputs: &[(&str, &str)]) -> Command {
        let mut command = Command::new("bash");
        command
            .arg(source("packaging/action.sh"))
            .current_dir(&self.folder.0)
            .env_remove("LD_LIBRARY_PATH")
            .env_remove("PKG_CONFIG_PATH");
        for name in ["PREFIX", "PACKAGE", "PERSONA"] {
            command.env(format!("INPUT_{name}"), "");
        }
        command.env("INPUT_EXPORT", "true");
        for (variable, file) in
            [("GITHUB_ENV", "env"), ("GITHUB_PATH", "path"), ("GITHUB_OUTPUT", "output")]
        {
            command.env(variable, self.folder.join(file));
        }
        command.envs(inputs.iter().map(|(name, value)| (format!("INPUT_{name}"), value)));
        command
    }

    /// Returns the lines `NAME=VALUE` of a file.
    fn values(&self, file: &str) -> BTreeMap<String, String> {
        let text = fs::read_to_string(self.folder.join(file)).unwrap();
        text.lines()
            .map(|line| line.split_once('=').unwrap())
            .map(|(name, value)| (name.into(), value.into()))
            .collect()
    }

    /// Returns a command as a later step runs it.
    fn command(&self, program: &str) -> Command {
        let path = fs::read_to_string(self.folder.join("path")).unwrap();
        let mut command = Command::new("env");
        command.arg(format!("PATH={}:{}", path.trim_end(), std::env::var("PATH").unwrap()));
        command.args(self.values("env").iter().map(|(name, value)| format!("{name}={value}")));
        command.args(["UIW_COUNTERS=off", program]);
        command
    }
}

#[test]
fn later_steps_run_stock_programs() {
    for program in ["bash", "strip", "tar", "ibv_devinfo", "rping"] {
        let Some(_) = uiw_interop::require(program) else { return };
    }
    let installed = Folder::new("installed");
    let prefix = installed.0.to_str().unwrap();
    xtask(&["install", "--debug", "--prefix", prefix]);
    // The folder has already been filled, as by a cache.
    let runner = Runner::new("cached");
    let step = runner.step(&[("PREFIX", prefix), ("PERSONA", "roce")]);
    assert!(step.status.success(), "{step:?}");
    let version = format!("uiw {}", runner.values("output")["version"]);
    assert_eq!(run(installed.join("bin/uiw"), &["--version"]), format!("{version}\n"));
    assert_eq!(runner.values("output")["prefix"], prefix);
    let devices = output(runner.command("ibv_devinfo").args(["-d", "uiw_lo"]));
    assert!(String::from_utf8_lossy(&devices.stdout).contains("InfiniBand (0)"), "{devices:?}");
    assert_eq!(
        String::from_utf8_lossy(&output(runner.command("uiw").arg("--version")).stdout),
        format!("{version}\n")
    );

    // A package is unpacked.
    let package = Folder::new("package");
    let file = package.join("uiw.tar.gz");
    run(
        "tar",
        &[
            "-czf",
            file.to_str().unwrap(),
            "-C",
            installed.0.parent().unwrap().to_str().unwrap(),
            installed.0.file_name().unwrap().to_str().unwrap(),
        ],
    );
    let runner = Runner::new("unpacked");
    // A relative path refers to the folder of this step. Later steps may run in other folders.
    let step = runner.step(&[("PREFIX", "unpacked"), ("PACKAGE", file.to_str().unwrap())]);
    assert!(step.status.success(), "{step:?}");
    assert!(Path::new(&runner.values("output")["prefix"]).is_absolute(), "{step:?}");
    exchange(&runner);
}

/// Hosted runners have RDMA devices of their own that programs cannot use.
#[test]
fn action_runs_beside_devices_of_runner() {
    for program in ["bash", "strip", "unshare", "ibv_devices"] {
        let Some(_) = uiw_interop::require(program) else { return };
    }
    let installed = Folder::new("beside");
    let prefix = installed.0.to_str().unwrap();
    xtask(&["install", "--debug", "--prefix", prefix]);
    let runner = Runner::new("beside-runner");
    let script = "mount -t tmpfs none /sys/class && mkdir -p /sys/class/infiniband/mana_0/ports/1 /sys/class/net || exit 77; \
        bash \"$0\" && exec \"$INPUT_PREFIX/bin/uiw\" run -- ibv_devices";
    let command = runner.script(&[("PREFIX", prefix)]);
    let arguments: Vec<_> = command.get_args().map(ToOwned::to_owned).collect();
    let mut inside = Command::new("unshare");
    inside.args(["-rm", "sh", "-c", script]).args(arguments).current_dir(&runner.folder.0);
    for (name, value) in command.get_envs() {
        match value {
            Some(value) => inside.env(name, value),
            None => inside.env_remove(name),
        };
    }
    let step = output(&mut inside);
    if step.status.code() == Some(77) || String::from_utf8_lossy(&step.stderr).contains("unshare:")
    {
        uiw_interop::skip("mount namespaces");
        return;
    }
    assert!(step.status.success(), "{step:?}");
    assert!(String::from_utf8_lossy(&step.stdout).contains("uiw_lo"), "{step:?}");
}

#[test]
fn package_without_libraries_named() {
    for program in ["bash", "tar"] {
        let Some(_) = uiw_interop::require(program) else { return };
    }
    let package = Folder::new("no-libraries");
    fs::create_dir_all(package.join("uiw/bin")).unwrap();
    fs::copy("/bin/true", package.join("uiw/bin/uiw")).unwrap();
    let file = package.join("uiw.tar");
    run("tar", &["-cf", file.to_str().unwrap(), "-C", package.0.to_str().unwrap(), "uiw"]);
    let runner = Runner::new("no-libraries-runner");
    let step = runner.step(&[("PREFIX", "unpacked"), ("PACKAGE", file.to_str().unwrap())]);
    assert_eq!(step.status.code(), Some(1), "{step:?}");
    assert!(
        String::from_utf8_lossy(&step.stderr).contains("no libibverbs.so.1 in lib/uiw"),
        "{step:?}"
    );
}

/// Runs both ends of rping as two later steps would, on a port that the system chooses.
fn exchange(runner: &Runner) {
    let port = std::net::TcpListener::bind("127.0.0.1:0")
        .unwrap()
        .local_addr()
        .unwrap()
        .port()
        .to_string();
    let rping = |end: &str| {
        let mut command = runner.command("rping");
        command.args([end, "-a", "127.0.0.1", "-p", &port, "-C", "3"]);
        command
    };
    let mut server = rping("-s").stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    // The client fails until the server listens.
    let connected = (0..100).any(|_| {
        let done = output(&mut rping("-c")).status.success();
        if !done {
            std::thread::sleep(std::time::Duration::from_millis(100));
        }
        done
    });
    if !connected {
        server.kill().unwrap();
    }
    assert!(server.wait().unwrap().success() && connected);
}

#[test]
fn inputs_with_other_variables_refused() {
    let Some(_) = uiw_interop::require("bash") else { return };
    for inputs in [
        [("PREFIX", "/nowhere\nPATH=/tmp")],
        [("PERSONA", "ib\nPATH=/tmp")],
        [("PERSONA", "ethernet")],
    ] {
        let runner = Runner::new(&format!("refused-{}", inputs[0].1.len()));
        let step = runner.step(&inputs);
        assert_eq!(step.status.code(), Some(2), "{step:?}");
        for file in ["env", "path", "output"] {
            assert_eq!(fs::read_to_string(runner.folder.join(file)).unwrap(), "");
        }
    }
}

#[test]
fn script_has_action_inputs() {
    let action = fs::read_to_string(source("action.yml")).unwrap();
    let script = fs::read_to_string(source("packaging/action.sh")).unwrap();
    assert!(
        action.contains("\"$GITHUB_ACTION_PATH/packaging/action.sh\"")
            && Path::new(&source("packaging/action.sh")).exists()
    );
    let passed: Vec<_> = action
        .lines()
        .filter_map(|line| line.trim().strip_prefix("INPUT_")?.split_once(": "))
        .collect();
    assert_eq!(passed.len(), 4);
    for (name, value) in passed {
        let input = name.to_lowercase();
        assert_eq!(value, format!("${{{{ inputs.{input} }}}}"));
        assert!(
            action.contains(&format!("\n  {input}:\n"))
                && script.contains(&format!("INPUT_{name}")),
            "{name}"
        );
    }
}
