//! Debian package.

use std::env;
use std::fs;
use std::io;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::{PackageBuild, archive};
use crate::install::Built;
use crate::process::output;

const CONTROL: &str = include_str!("../../../packaging/debian/control");
const COPYRIGHT: &str = include_str!("../../../packaging/debian/copyright");
const SCRIPTS: [(&str, &str); 3] = [
    ("postinst", include_str!("../../../packaging/debian/postinst")),
    ("prerm", include_str!("../../../packaging/debian/prerm")),
    ("postrm", include_str!("../../../packaging/debian/postrm")),
];

pub(super) fn make(dist: &PackageBuild, built: &Built) -> Result<PathBuf, String> {
    let root = dist.stage(built, "deb", "/usr")?;
    let arch = dist.arch.debian();
    let file = dist.out.join(format!("uiw_{}-1_{arch}.deb", dist.version));
    let compressed = fill(&root).map_err(|error| format!("{}: {error}", root.display()))?;
    archive::gzip(&compressed)?;
    control(dist, &root, arch).map_err(|error| format!("{}: {error}", root.display()))?;
    // dpkg-deb replaces time stamps that are later than this one by it.
    let mut build = Command::new("dpkg-deb");
    build.env("SOURCE_DATE_EPOCH", dist.seconds().to_string());
    output(build.args(["--build", "--root-owner-group", "-Zxz"]).args([&root, &file]))?;
    Ok(file)
}

/// Returns the maintainer, from the environment variables that Debian's tools use.
fn maintainer() -> String {
    let of = |name: &str, other: &str| {
        env::var(name).ok().filter(|text| !text.is_empty()).unwrap_or_else(|| other.to_owned())
    };
    format!("{} <{}>", of("DEBFULLNAME", "the uiw authors"), of("DEBEMAIL", "uiw@localhost"))
}

/// Moves and adds the files that are different in Debian. Returns the files to compress.
fn fill(root: &Path) -> io::Result<Vec<PathBuf>> {
    let zsh = root.join("usr/share/zsh");
    fs::rename(zsh.join("site-functions"), zsh.join("vendor-completions"))?;
    let (man, doc) = (root.join("usr/share/man"), root.join("usr/share/doc/uiw"));
    fs::remove_file(doc.join("LICENSE-APACHE"))?;
    let mit = fs::read_to_string(doc.join("LICENSE-MIT"))?;
    fs::remove_file(doc.join("LICENSE-MIT"))?;
    // In a control file, the continuation lines of a field begin with a space, and an empty line is
    // written as a dot.
    let mit = mit
        .lines()
        .map(|line| if line.is_empty() { " .\n".to_owned() } else { format!(" {line}\n") });
    fs::write(doc.join("copyright"), COPYRIGHT.replace("@mit@\n", &mit.collect::<String>()))?;
    fs::copy(crate::workspace::root().join("CHANGELOG.md"), doc.join("changelog"))?;
    let pages = archive::files(&man)?.into_iter().map(|page| man.join(page));
    Ok(pages.chain(["changelog", "THIRD-PARTY-LICENSES"].map(|name| doc.join(name))).collect())
}

/// Writes the control files of the package.
fn control(dist: &PackageBuild, root: &Path, arch: &str) -> io::Result<()> {
    let mut size = 0;
    for file in archive::files(root)? {
        size += fs::symlink_metadata(root.join(file))?.len().div_ceil(1024);
    }
    let control = CONTROL
        .replace("@version@", &format!("{}-1", dist.version))
        .replace("@arch@", arch)
        .replace("@glibc@", &format!("2.{}", dist.needs.minor))
        .replace("@size@", &size.to_string())
        .replace("@maintainer@", &maintainer());
    let folder = root.join("DEBIAN");
    fs::create_dir(&folder)?;
    fs::write(folder.join("control"), control)?;
    for (name, script) in SCRIPTS {
        fs::write(folder.join(name), script)?;
        fs::set_permissions(folder.join(name), fs::Permissions::from_mode(0o755))?;
    }
    Ok(())
}
