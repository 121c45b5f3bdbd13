//! Fresh Debian for each page. It is created once by mmdebstrap and kept below the target folder.
//! Each page uses it through a layer in memory, which contains all changes and disappears with the
//! processes of the page.

use std::collections::hash_map::DefaultHasher;
use std::fs;
use std::hash::{Hash as _, Hasher as _};
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::process::output;
use uiw_siw::debian;

/// Debian packages that the commands of the pages need: stock programs, a C compiler with the
/// headers of rdma-core, Python.
const PACKAGES: &[&str] = &[
    "rdmacm-utils",
    "ibverbs-utils",
    "perftest",
    "gcc",
    "libc6-dev",
    "libibverbs-dev",
    "librdmacm-dev",
    "python3-venv",
    "iproute2",
    "curl",
    "tcpdump",
    "valgrind",
    "gdb",
    "ucx-utils",
];

/// Programs that are needed for a fresh root.
pub(super) const PROGRAMS: &[&str] = &["mmdebstrap", "unshare", "chroot", "mount"];

/// Script that `unshare` runs in new namespaces. It mounts the layers, and executes a shell in
/// them.
///
/// Its arguments are the lower layers, the path of the root and the script to run, followed by
/// groups of three: a folder, its path in the root, and `ro` or `rw`.
const ENTER: &str = r#"
set -eu
layers=$1 root=$2 script=$3
shift 3
mount -t tmpfs -o mode=755 uiw "$root"
mkdir "$root/changes" "$root/work" "$root/all"
mount -t overlay overlay -o "lowerdir=$layers,upperdir=$root/changes,workdir=$root/work" "$root/all"
mount -t proc proc "$root/all/proc"
mount -t sysfs sysfs "$root/all/sys"
mount --rbind /dev "$root/all/dev"
while [ $# -gt 2 ]; do
    mkdir -p "$root/all/$2"
    mount --bind "$1" "$root/all/$2"
    mount -o "remount,bind,$3" "$root/all/$2"
    shift 3
done
ip link set lo up
exec chroot "$root/all" /usr/bin/env -i -C /root HOME=/root LC_ALL=C.UTF-8 DEBIAN_FRONTEND=noninteractive \
    PATH=/opt/rust/bin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin sh -c "$script"
"#;

/// Debian without uiw.
pub(super) struct Root {
    layer: PathBuf,
}

impl Root {
    /// Returns the existing root below `folder` if it has the same packages, otherwise creates one.
    pub(super) fn get(folder: &Path) -> Result<Self, String> {
        let mut hasher = DefaultHasher::new();
        (debian::SUITE, PACKAGES).hash(&mut hasher);
        let name = format!("root-{:016x}", hasher.finish());
        let layer = folder.join(&name);
        if !layer.exists() {
            let failed = |error: std::io::Error| format!("{}: {error}", folder.display());
            for entry in fs::read_dir(folder).map_err(failed)? {
                let entry = entry.map_err(failed)?;
                if entry.file_name().to_string_lossy().starts_with("root-") {
                    let _ = fs::remove_dir_all(entry.path());
                }
            }
            make(&layer)?;
        }
        Ok(Self { layer })
    }

    /// Returns a command that runs a shell script in the root, in new namespaces for mounts,
    /// processes and the network.
    ///
    /// `layers` are folders whose files are above those of Debian, the topmost one first. `seen`
    /// contains folders to mount, their paths in the root, and whether they are writable (`ro`,
    /// `rw`).
    pub(super) fn command(
        &self,
        layers: &[&Path],
        place: &Path,
        script: &str,
        seen: &[(&Path, &str, &str)],
    ) -> Command {
        let layers = layers.iter().copied().chain([self.layer.as_path()]);
        let layers: Vec<_> = layers.map(|layer| layer.display().to_string()).collect();
        let mut command = Command::new("unshare");
        command.args(["--mount", "--net", "--pid", "--fork", "--kill-child"]);
        command.args(["--", "sh", "-c", ENTER, "sh"]);
        command.arg(layers.join(":")).arg(place).arg(script);
        for (folder, to, mode) in seen {
            command.arg(folder).args([to, mode]);
        }
        command
    }
}

/// Creates the Debian. It gets its final name only when it is complete.
fn make(layer: &Path) -> Result<(), String> {
    let partial = layer.with_extension(format!("partial-{}", std::process::id()));
    eprintln!("xtask: making a Debian in {}", layer.display());
    let mut make = Command::new("mmdebstrap");
    make.args(["--quiet", "--variant=apt"]).arg(format!("--include={}", PACKAGES.join(",")));
    make.arg(debian::SUITE).arg(&partial).args(debian::sources());
    let made = output(&mut make).and_then(|_| {
        fs::rename(&partial, layer).map_err(|error| format!("{}: {error}", layer.display()))
    });
    if made.is_err() {
        let _ = fs::remove_dir_all(&partial);
    }
    // Another process may have created the same one meanwhile.
    if layer.exists() { Ok(()) } else { made }
}
