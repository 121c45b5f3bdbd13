//! OCI image: a small Debian with the package, in an archive of the image layout, created by umoci.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::{Kind, PackageBuild, archive};
use crate::process::output;
use uiw_siw::debian;

/// Run configuration of the image, as options of umoci.
const CONFIG: [(&str, &str); 9] = [
    ("user", "65534:65534"),
    ("entrypoint", "/usr/bin/uiw"),
    ("cmd", "serve"),
    ("cmd", "--listen"),
    ("cmd", "0.0.0.0:7174"),
    ("exposedports", "7174/tcp"),
    ("env", "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"),
    ("label", "org.opencontainers.image.title=uiw"),
    ("label", "org.opencontainers.image.licenses=MIT OR Apache-2.0"),
];

pub(super) fn make(dist: &PackageBuild) -> Result<PathBuf, String> {
    let package = dist
        .package(Kind::Deb)
        .ok_or("the image has the Debian package in it: leave `deb` in --only")?;
    let layer = root(dist, package)?;
    let folder = dist.work.join("oci");
    let image = format!("{}:{}", folder.display(), dist.version);
    let created = dist.timestamp()?;
    let umoci = |args: &[&str]| output(Command::new("umoci").args(args)).map(drop);
    umoci(&["init", "--layout", &folder.display().to_string()])?;
    umoci(&["new", "--image", &image])?;
    let history = ["--history.created", &created, "--history.created_by", "cargo xtask dist"];
    let layer = layer.display().to_string();
    umoci(&[&["raw", "add-layer", "--image", &image], &history[..], &[&layer]].concat())?;
    let mut config = Command::new("umoci");
    config.args(["config", "--image", &image, "--no-history", "--created", &created]);
    config.args(["--os", "linux", "--architecture", dist.arch.debian()]);
    config.arg(format!("--config.label=org.opencontainers.image.version={}", dist.version));
    output(config.args(CONFIG.map(|(name, value)| format!("--config.{name}={value}"))))?;
    // Removes objects that the previous steps have left.
    umoci(&["gc", "--layout", &folder.display().to_string()])?;
    let file = dist.out.join(format!("uiw-{}-{}.oci.tar", dist.version, dist.arch.name()));
    archive::tar(&folder, ".", dist.seconds(), &file)?;
    Ok(file)
}

/// Creates the root file system as a tar archive.
fn root(dist: &PackageBuild, package: &Path) -> Result<PathBuf, String> {
    // mmdebstrap passes hooks to a shell, so the package has a simple file name in its working
    // folder. It must be readable for the user that mmdebstrap becomes.
    let name = "uiw.deb";
    let folder = dist.work.join("package");
    let place = || {
        fs::create_dir_all(&folder)?;
        fs::copy(package, folder.join(name))
    };
    place().map_err(|error| format!("{}: {error}", folder.display()))?;
    dist.emulator()?;
    let layer = dist.work.join("layer.tar");
    let mut make = Command::new("mmdebstrap");
    make.args(["--variant=minbase", "--include=libgcc-s1"])
        .arg(format!("--architectures={}", dist.arch.debian()))
        .env("SOURCE_DATE_EPOCH", dist.seconds().to_string());
    make.arg(format!("--customize-hook=copy-in {name} /"));
    make.arg(format!("--customize-hook=chroot \"$1\" dpkg --install /{name}"));
    make.arg(format!("--customize-hook=rm \"$1/{name}\""));
    // The next `apt-get update` creates these lists and caches again.
    make.arg("--customize-hook=rm -rf \"$1\"/var/cache/ldconfig/* \"$1\"/var/log/*.log \"$1\"/var/log/apt/*");
    make.arg(debian::SUITE).arg(&layer).args(debian::sources()).current_dir(&folder);
    output(&mut make)?;
    Ok(layer)
}
