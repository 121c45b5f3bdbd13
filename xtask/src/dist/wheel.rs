//! Python wheel, with which `pip install` installs the module, the program and its libraries in an
//! environment.
//!
//! maturin is not used, because it would build the module separately, with different features of
//! the shared crates than the program in the same package.

use std::fs;
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use zip::write::SimpleFileOptions;

use super::{PackageBuild, archive, sums};
use crate::install::{self, Built};

/// Oldest Python that the module supports: `abi3-py311` of pyo3.
const PYTHON: &str = "cp311-abi3";

/// Paths below the prefix whose files are in the wheel, in addition to the module. A wheel cannot
/// contain links, and an environment does not need the systemd service.
const PACKAGED_PATHS: [&str; 4] = ["bin/uiw", "lib/uiw/lib", "lib/uiw/rsocket/lib", "share/"];

pub(super) fn make(dist: &PackageBuild, built: &Built) -> Result<PathBuf, String> {
    let foreign = dist.needs.foreign();
    if !foreign.is_empty() {
        return Err(format!("a wheel may not need {} of the system (PEP 600)", foreign.join(", ")));
    }
    let root = dist.stage(built, "wheel", "/usr/local")?.join("usr/local");
    // Python searches the module by this name.
    let module = dist.work.join("_uiw.abi3.so");
    install::stripped(built, "lib_uiw.so", &module)?;
    let tag = format!("{PYTHON}-manylinux_2_{}_{}", dist.needs.minor, dist.arch.name());
    let file = dist.out.join(format!("uiw-{}-{tag}.whl", dist.version));
    write(dist, &root, &module, &tag, &file)
        .map_err(|error| format!("{}: {error}", file.display()))?;
    Ok(file)
}

fn write(
    dist: &PackageBuild,
    root: &Path,
    module: &Path,
    tag: &str,
    file: &Path,
) -> io::Result<()> {
    let version = &dist.version;
    let (data, info) = (format!("uiw-{version}.data"), format!("uiw-{version}.dist-info"));
    let mut wheel = WheelArchive::new(dist, file)?;
    for path in archive::files(root)? {
        let (from, name) = (root.join(&path), path.display().to_string());
        if from.is_symlink() || !PACKAGED_PATHS.iter().any(|part| name.starts_with(part)) {
            continue;
        }
        let to = match name.strip_prefix("bin/") {
            Some(program) => format!("{data}/scripts/{program}"),
            None => format!("{data}/data/{name}"),
        };
        wheel.add(
            &to,
            &fs::read(&from)?,
            if name.contains(".so") || name.starts_with("bin/") { 0o755 } else { 0o644 },
        )?;
    }
    let source = crate::workspace::root();
    wheel.add("uiw/_uiw.abi3.so", &fs::read(module)?, 0o755)?;
    for path in archive::files(&source.join("python/uiw"))? {
        if path.extension().is_some_and(|kind| kind == "py" || kind == "pyi" || kind == "typed") {
            wheel.add(
                &format!("uiw/{}", path.display()),
                &fs::read(source.join("python/uiw").join(&path))?,
                0o644,
            )?;
        }
    }
    let mut licences = String::new();
    for name in ["LICENSE-APACHE", "LICENSE-MIT"] {
        licences += &format!("License-File: {name}\n");
        wheel.add(&format!("{info}/licenses/{name}"), &fs::read(source.join(name))?, 0o644)?;
    }
    let about = fs::read_to_string(source.join("packaging/wheel.md"))?;
    let metadata = format!(
        "Metadata-Version: 2.4\nName: uiw\nVersion: {version}\nSummary: iWARP in user space: RDMA without RDMA hardware\n\
         License-Expression: MIT OR Apache-2.0\n{licences}Requires-Python: >=3.11\nClassifier: Operating System :: POSIX :: Linux\n\
         Classifier: Topic :: System :: Networking\nDescription-Content-Type: text/markdown\n\n{about}"
    );
    wheel.add(&format!("{info}/METADATA"), metadata.as_bytes(), 0o644)?;
    let about = format!(
        "Wheel-Version: 1.0\nGenerator: uiw ({version})\nRoot-Is-Purelib: false\nTag: {tag}\n"
    );
    wheel.add(&format!("{info}/WHEEL"), about.as_bytes(), 0o644)?;
    wheel.finish(&format!("{info}/RECORD"))
}

/// Archive, and the list of its files with their sums.
struct WheelArchive {
    zip: zip::ZipWriter<fs::File>,
    options: SimpleFileOptions,
    record: String,
}

impl WheelArchive {
    fn new(dist: &PackageBuild, file: &Path) -> io::Result<Self> {
        let time = zip::DateTime::try_from(time::PrimitiveDateTime::new(
            dist.time.date(),
            dist.time.time(),
        ));
        // The format cannot represent times before 1980.
        let options = SimpleFileOptions::default().last_modified_time(time.unwrap_or_default());
        Ok(Self {
            zip: zip::ZipWriter::new(fs::File::create(file)?),
            options,
            record: String::new(),
        })
    }

    fn add(&mut self, name: &str, bytes: &[u8], mode: u32) -> io::Result<()> {
        self.zip.start_file(name, self.options.unix_permissions(mode))?;
        self.zip.write_all(bytes)?;
        let sum = URL_SAFE_NO_PAD.encode(sums::sha256(bytes));
        self.record += &format!("{name},sha256={sum},{}\n", bytes.len());
        Ok(())
    }

    /// Adds the list, which does not contain its own sum, and closes the archive.
    fn finish(mut self, name: &str) -> io::Result<()> {
        self.zip.start_file(name, self.options.unix_permissions(0o644))?;
        self.zip.write_all(self.record.as_bytes())?;
        self.zip.write_all(format!("{name},,\n").as_bytes())?;
        self.zip.finish()?.sync_all()
    }
}
