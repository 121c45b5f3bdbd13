//! The OCI image: a small Debian with the package, in an archive of the image layout, made without a daemon.

use std::fs;
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde_json::{Value, json};

use super::{Dist, Kind, archive, sums};
use crate::debian;

pub(super) fn make(dist: &Dist) -> Result<PathBuf, String> {
    let package =
        dist.package(Kind::Deb).ok_or("the image has the Debian package in it: leave `deb` in --only")?;
    let layer = root(dist, package)?;
    let folder = dist.work.join("oci");
    let file = dist.out.join(format!("uiw-{}-{}.oci.tar", dist.version, dist.arch.name()));
    let write = || {
        lay_out(dist, &folder, &layer)?;
        archive::tar(&folder, Path::new(""), dist.seconds(), fs::File::create(&file)?)?.sync_all()
    };
    write().map_err(|error: io::Error| format!("{}: {error}", file.display()))?;
    Ok(file)
}

/// The root file system as a tar.
fn root(dist: &Dist, package: &Path) -> Result<Vec<u8>, String> {
    // mmdebstrap passes hooks to a shell, and their paths must be readable for the user that it becomes.
    let name = "uiw.deb";
    let folder = dist.work.join("package");
    let place = || {
        fs::create_dir_all(&folder)?;
        fs::copy(package, folder.join(name))
    };
    place().map_err(|error| format!("{}: {error}", folder.display()))?;
    let mut make = Command::new("mmdebstrap");
    dist.emulator()?;
    make.args(["--variant=minbase", "--include=libgcc-s1"])
        .arg(format!("--architectures={}", dist.arch.debian()))
        .env("SOURCE_DATE_EPOCH", dist.seconds().to_string());
    make.arg(format!("--customize-hook=copy-in {name} /"));
    make.arg(format!("--customize-hook=chroot \"$1\" dpkg --install /{name}"));
    make.arg(format!("--customize-hook=rm \"$1/{name}\""));
    // Lists and caches that the next `apt-get update` makes anew.
    make.arg("--customize-hook=rm -rf \"$1\"/var/cache/ldconfig/* \"$1\"/var/log/*.log \"$1\"/var/log/apt/*");
    make.args([debian::SUITE, "-"]).args(debian::sources()).current_dir(&folder);
    let mut child = make
        .stdout(Stdio::piped())
        .spawn()
        .map_err(|error| format!("mmdebstrap: {error}: install mmdebstrap"))?;
    let mut tar = Vec::new();
    let read = child.stdout.take().map_or(Ok(0), |mut from| from.read_to_end(&mut tar));
    let status = child
        .wait()
        .and_then(|status| read.map(|_| status))
        .map_err(|error| format!("mmdebstrap: {error}"))?;
    if status.success() { Ok(tar) } else { Err(format!("mmdebstrap: {status}")) }
}

/// Writes the layout (OCI image specification 1.0): blobs by their sums, and the index that names them.
fn lay_out(dist: &Dist, folder: &Path, layer: &[u8]) -> io::Result<()> {
    let blobs = folder.join("blobs/sha256");
    fs::create_dir_all(&blobs)?;
    let blob = |kind: &str, bytes: &[u8]| -> io::Result<Value> {
        let sum = sums::hex(bytes);
        fs::write(blobs.join(&sum), bytes)?;
        let kind = format!("application/vnd.oci.image.{kind}");
        Ok(json!({ "mediaType": kind, "digest": format!("sha256:{sum}"), "size": bytes.len() }))
    };
    let mut packed = archive::gzip(Vec::new());
    io::copy(&mut &layer[..], &mut packed)?;
    let layer_blob = blob("layer.v1.tar+gzip", &packed.finish()?)?;
    let created = dist.timestamp().map_err(io::Error::other)?;
    let config = json!({
        "created": created,
        "architecture": dist.arch.debian(),
        "os": "linux",
        "config": {
            "User": "65534:65534",
            "Entrypoint": ["/usr/bin/uiw"],
            "Cmd": ["serve", "--listen", "0.0.0.0:7174"],
            "ExposedPorts": { "7174/tcp": {} },
            "Env": ["PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"],
            "Labels": {
                "org.opencontainers.image.title": "uiw",
                "org.opencontainers.image.version": dist.version,
                "org.opencontainers.image.licenses": "MIT OR Apache-2.0",
            },
        },
        "rootfs": { "type": "layers", "diff_ids": [format!("sha256:{}", sums::hex(layer))] },
        "history": [{ "created": created, "created_by": "cargo xtask dist" }],
    });
    let config = blob("config.v1+json", config.to_string().as_bytes())?;
    let manifest = json!({
        "schemaVersion": 2,
        "mediaType": "application/vnd.oci.image.manifest.v1+json",
        "config": config,
        "layers": [layer_blob],
    });
    let mut manifest = blob("manifest.v1+json", manifest.to_string().as_bytes())?;
    manifest["annotations"] = json!({ "org.opencontainers.image.ref.name": dist.version });
    let index = json!({
        "schemaVersion": 2,
        "mediaType": "application/vnd.oci.image.index.v1+json",
        "manifests": [manifest],
    });
    fs::write(folder.join("index.json"), index.to_string())?;
    fs::write(folder.join("oci-layout"), r#"{"imageLayoutVersion":"1.0.0"}"#)
}
