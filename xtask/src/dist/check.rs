//! `cargo xtask dist --check`: installs, runs and removes the packages in a place without the
//! source tree.

use std::collections::BTreeSet;
use std::env;
use std::fs;
use std::os::unix::fs::chown;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::{Kind, PackageBuild, archive};
use crate::process::output;
use crate::report::Tally;

/// Check of one package, and the programs that it needs.
struct PackageCheck {
    name: &'static str,
    kind: Kind,
    programs: &'static [&'static str],
    run: fn(&PackageBuild, &Path) -> Result<(), String>,
}

/// Programs that are needed for a fresh root.
const ROOT: &[&str] = &["mmdebstrap", "chroot", "unshare", "ip"];

/// Name of the check of the image that runs as an ordinary user, even if root starts it.
const ROOTLESS: &str = "oci-rootless";

const CHECKS: [PackageCheck; 5] = [
    PackageCheck { name: "tarball", kind: Kind::Tarball, programs: ROOT, run: tarball },
    PackageCheck { name: "wheel", kind: Kind::Wheel, programs: ROOT, run: wheel },
    PackageCheck { name: "deb", kind: Kind::Deb, programs: ROOT, run: deb },
    PackageCheck { name: "oci", kind: Kind::Oci, programs: &["podman"], run: image },
    PackageCheck {
        name: ROOTLESS,
        kind: Kind::Oci,
        programs: &["podman", "unshare", "setpriv", "newuidmap"],
        run: image_of_user,
    },
];

/// Runs the checks of the packages that were created. The last line on stdout is the score. Returns
/// `false` if a check failed.
pub(super) fn run(dist: &PackageBuild) -> Result<bool, String> {
    let mut total = Tally::default();
    for check in CHECKS {
        let Some(package) = dist.package(check.kind) else { continue };
        if check.name == ROOTLESS && !rustix::process::geteuid().is_root() {
            // The check `oci` already runs as an ordinary user.
            continue;
        }
        println!("== {}", check.name);
        let missing = check.programs.iter().find(|program| !crate::packages::on_path(program));
        let missing =
            missing.map(|program| (*program).to_owned()).or_else(|| dist.emulator().err());
        if let Some(missing) = missing {
            println!("SKIPPED: {}: {missing}", check.name);
            total.skipped += 1;
            continue;
        }
        match (check.run)(dist, package) {
            Ok(()) => total.passed += 1,
            Err(why) => {
                println!("FAILED: {}: {why}", check.name);
                total.failed += 1;
            }
        }
    }
    println!("{total}");
    Ok(total.failed == 0)
}

/// Script that runs both ends of rping on the installed libraries. Its exit code is 125 if they
/// were not used.
const RPING: &str = "
    set -e
    uiw run --require -- rping -s -a 127.0.0.1 -C 3 -v >/dev/null & server=$!
    tries=0
    until uiw run --require -- rping -c -a 127.0.0.1 -C 3 -v; do
        tries=$((tries + 1)); test $tries -lt 50; sleep 0.2
    done
    wait $server
";

/// Python program that runs the examples in the documentation of the module.
const EXAMPLES: &str = "import doctest, sys, uiw, uiw.aio as aio\n\
                        sys.exit(doctest.testmod(uiw).failed + doctest.testmod(aio).failed)";

/// Script that runs a command in its own network, in which all ports are free.
pub(super) const NETWORK: &str = "ip link set lo up; exec \"$@\"";

fn expect(is_so: bool, otherwise: impl FnOnce() -> String) -> Result<(), String> {
    if is_so { Ok(()) } else { Err(otherwise()) }
}

fn files(root: &Path) -> Result<BTreeSet<PathBuf>, String> {
    archive::files(root)
        .map(BTreeSet::from_iter)
        .map_err(|error| format!("{}: {error}", root.display()))
}

fn same(before: &BTreeSet<PathBuf>, after: &BTreeSet<PathBuf>) -> Result<(), String> {
    let changed: Vec<_> = before.symmetric_difference(after).collect();
    expect(changed.is_empty(), || format!("added or removed: {changed:?}"))
}

fn tarball(dist: &PackageBuild, package: &Path) -> Result<(), String> {
    output(
        Command::new("sha256sum")
            .args(["--check", "--strict", "SHA256SUMS"])
            .current_dir(&dist.out),
    )?;
    let root = dist.root()?;
    root.put(package, "uiw.tar.gz")?;
    root.run("mkdir uiw; tar --strip-components=1 -xf uiw.tar.gz -C uiw")?;
    let said = root.run("uiw/bin/uiw --version; uiw/bin/uiw run -- ibv_devices")?;
    expect(
        said.starts_with(&format!("uiw {}\n", dist.version)) && said.contains("uiw_lo"),
        || said,
    )?;
    root.run(&format!("PATH=$PWD/uiw/bin:$PATH; {RPING}")).map(drop)
}

fn wheel(dist: &PackageBuild, package: &Path) -> Result<(), String> {
    let root = dist.root()?;
    let name = package.file_name().unwrap_or_default().to_string_lossy();
    root.put(package, &name)?;
    root.run(&format!("python3 -m venv env; env/bin/pip install --no-index ./{name}"))?;
    root.run(&format!("PATH=$PWD/env/bin:$PATH; {RPING}"))?;
    root.run(&format!("env/bin/python -B -c '{EXAMPLES}'; env/bin/uiw run --sockets -- true"))?;
    root.run("env/bin/pip uninstall --yes uiw; ! find env | grep -i uiw").map(drop)
}

fn deb(dist: &PackageBuild, package: &Path) -> Result<(), String> {
    let root = dist.root()?;
    root.put(package, "uiw.deb")?;
    let stock = "sha256sum $(dpkg -L libibverbs1 librdmacm1 | grep '[.]so[.]1$'); ldconfig -p";
    let (before, libraries) = (own(root.path())?, root.run(stock)?);
    root.run("apt-get install -y ./uiw.deb")?;
    root.run(
        "test \"$(uiw --version)\" = \"uiw $(dpkg-query -W -f '${Version}' uiw | sed 's/-1$//')\"",
    )?;
    let devices = root.run("uiw run -- ibv_devices")?;
    expect(devices.contains("uiw_lo"), || devices)?;
    root.run(RPING)?;
    root.run(
        "test -s /usr/share/man/man1/uiw-serve.1.gz && test -s /lib/systemd/system/uiw.service",
    )?;
    expect(root.run(stock)? == libraries, || "libraries of rdma-core were replaced".to_owned())?;
    root.run("apt-get purge -y uiw")?;
    same(&before, &own(root.path())?)
}

/// Returns the files of a root, except those in which package managers record their actions.
fn own(root: &Path) -> Result<BTreeSet<PathBuf>, String> {
    let of_managers = ["var/lib/dpkg", "var/lib/apt", "var/cache", "var/log", "proc", "root"];
    let all = files(root)?.into_iter();
    Ok(all.filter(|file| !of_managers.iter().any(|folder| file.starts_with(folder))).collect())
}

/// Script that runs podman as an ordinary user, even if root starts it. Only cgroups of version 1
/// are visible to podman, because Debian's crun does not support a system with both versions. Its
/// first argument is the folder of the user, in which the file `sub` contains the ids that
/// containers may use. The other arguments are those of podman.
const AS_USER: &str = r#"
    set -e
    umount /sys/fs/cgroup/unified 2>/dev/null || true
    mount --bind "$1/sub" /etc/subuid
    mount --bind "$1/sub" /etc/subgid
    home=$1
    shift
    exec setpriv --reuid 65534 --regid 65534 --clear-groups env HOME="$home" XDG_RUNTIME_DIR="$home/user" podman "$@"
"#;

/// Id of the user of [`AS_USER`].
const ORDINARY: u32 = 65534;
/// Ids that containers of this user may use, in the format of subuid(5).
const SUB: &str = "65534:100000:65536\n";

/// Separate storage for podman, which belongs either to the user of this process or to an ordinary
/// user.
struct PodmanStorage {
    storage: PathBuf,
    as_user: bool,
}

impl PodmanStorage {
    fn new(as_user: bool) -> Result<Self, String> {
        // Podman limits the path of its folder for run-time files to 50 bytes.
        let kind = if as_user { "user" } else { "own" };
        let storage = env::temp_dir().join(format!("uiw-pm-{}-{kind}", std::process::id()));
        let this = Self { storage, as_user };
        let user = this.storage.join("user");
        let make = || {
            fs::create_dir_all(&user)?;
            fs::write(this.storage.join("sub"), SUB)?;
            let mut owned = [&this.storage, &user].into_iter().filter(|_| as_user);
            owned.try_for_each(|folder| chown(folder, Some(ORDINARY), Some(ORDINARY)))
        };
        make().map_err(|error| format!("{}: {error}", this.storage.display()))?;
        Ok(this)
    }

    fn podman(&self, args: &[&str]) -> Result<String, String> {
        let mut command = if self.as_user {
            let mut command = Command::new("unshare");
            command
                .args(["--mount", "sh", "-c", AS_USER, "sh"])
                .arg(&self.storage)
                .current_dir("/");
            command
        } else {
            Command::new("podman")
        };
        command
            .arg("--root")
            .arg(self.storage.join("root"))
            .arg("--runroot")
            .arg(self.storage.join("run"));
        command.args(["--storage-driver=vfs", "--cgroup-manager=cgroupfs"]);
        // On a system with both versions of cgroups, podman's default runtime fails unless cgroups
        // are disabled, so runc is used if it is installed.
        if !self.as_user && crate::packages::on_path("runc") {
            command.arg("--runtime=runc");
        }
        output(command.args(args))
    }

    fn run(&self, image: &str, more: &[&str], args: &[&str]) -> Result<String, String> {
        // In a container, podman cannot raise the limits, and an ordinary user cannot create
        // cgroups.
        let options = ["run", "--rm", "--network=none"];
        let limits = ["--ulimit=nofile=1024:1024", "--ulimit=nproc=1000:1000"];
        let cgroups: &[&str] = if self.as_user { &["--cgroups=disabled"] } else { &[] };
        self.podman(&[&options[..], &limits, cgroups, more, &[image], args].concat())
    }

    /// Runs the image of an archive.
    fn check(&self, dist: &PackageBuild, package: &Path) -> Result<(), String> {
        // The user may not have access to the folder of the package.
        let archive = self.storage.join("image.tar");
        fs::copy(package, &archive).map_err(|error| format!("{}: {error}", archive.display()))?;
        let loaded =
            self.podman(&["pull", "--quiet", &format!("oci-archive:{}", archive.display())])?;
        let image = loaded.trim();
        let said = self.run(image, &[], &["--version"])?;
        expect(said == format!("uiw {}\n", dist.version), || said)?;
        let script = "uiw serve --listen 127.0.0.1:7174 & n=0; until uiw ping 127.0.0.1 -c 3; do n=$((n + 1)); test $n -lt 50; sleep 0.2; done";
        self.run(image, &["--entrypoint=/bin/sh"], &["-ec", script]).map(drop)
    }
}

impl Drop for PodmanStorage {
    fn drop(&mut self) {
        // The files belong to users of the image, so only podman can remove them.
        let _ = self.podman(&["rmi", "--all", "--force"]);
        let _ = fs::remove_dir_all(&self.storage);
    }
}

/// Checks the image in its own storage, with no network except loopback.
fn image(dist: &PackageBuild, package: &Path) -> Result<(), String> {
    PodmanStorage::new(false)?.check(dist, package)
}

/// Like [`image`], but as an ordinary user.
fn image_of_user(dist: &PackageBuild, package: &Path) -> Result<(), String> {
    PodmanStorage::new(true)?.check(dist, package)
}
