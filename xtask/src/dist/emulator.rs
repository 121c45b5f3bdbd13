//! Programs for another processor, run by QEMU on this machine.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::arch::Arch;

/// While it lives, the kernel runs programs for a processor: directly, by a handler that the system has already, or by one that is
/// registered here and removed at the end.
pub(super) struct Emulator {
    /// The handler's file, and the file system that has it, if it is mounted here.
    registered: Option<(PathBuf, Option<PathBuf>)>,
}

/// Where the kernel's handlers are.
const HANDLERS: &str = "/proc/sys/fs/binfmt_misc";

/// The beginning of an ELF file of 64 bits, little-endian, executable or shared (the last but one byte of the type is masked), of this machine type.
fn magic(machine: u8) -> String {
    let escaped = |bytes: &[u8]| bytes.iter().map(|byte| format!("\\x{byte:02x}")).collect::<String>();
    let magic = [0x7F, b'E', b'L', b'F', 2, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 2, 0, machine, 0];
    let mut mask = [0xFF; 20];
    // The ABI of the system, and executables beside shared objects.
    (mask[7], mask[16]) = (0, 0xFE);
    format!("{}:{}", escaped(&magic), escaped(&mask))
}

/// Of QEMU's names, ELF's number.
const MACHINES: [(&str, u8); 2] = [("x86_64", 62), ("aarch64", 183)];

impl Emulator {
    /// The error is what is missing.
    pub(super) fn start(arch: Arch, work: &Path) -> Result<Self, String> {
        let name = format!("qemu-{}", arch.name());
        if arch.is_here() || Path::new(HANDLERS).join(&name).exists() {
            return Ok(Self { registered: None });
        }
        let program = find(&[format!("{name}-static"), name])?;
        let machine = MACHINES.iter().find(|(known, _)| *known == arch.name()).map(|(_, machine)| *machine);
        let machine = machine.ok_or_else(|| format!("no format of programs for {}", arch.name()))?;
        let failed = |what: &Path, error: io::Error| format!("{}: {error}", what.display());
        let mut folder = PathBuf::from(HANDLERS);
        let mut mounted = None;
        if !folder.join("register").exists() {
            folder = work.join("binfmt_misc");
            fs::create_dir_all(&folder).map_err(|error| failed(&folder, error))?;
            let mut mount = Command::new("mount");
            let status = mount.args(["-t", "binfmt_misc", "uiw"]).arg(&folder).status();
            if !status.map_err(|error| format!("mount: {error}"))?.success() {
                return Err("binfmt_misc, by which the kernel runs programs of other processors".to_owned());
            }
            mounted = Some(folder.clone());
        }
        let handler = format!("uiw-{}", std::process::id());
        // F: the program is opened now, so that it need not be in the root file systems.
        let line = format!(":{handler}:M::{}:{}:F", magic(machine), program.display());
        let emulator = Self { registered: Some((folder.join(handler), mounted)) };
        fs::write(folder.join("register"), line).map_err(|error| failed(&folder.join("register"), error))?;
        Ok(emulator)
    }
}

impl Drop for Emulator {
    fn drop(&mut self) {
        if let Some((handler, mounted)) = &self.registered {
            let _ = fs::write(handler, "-1");
            if let Some(folder) = mounted {
                let _ = Command::new("umount").arg(folder).status();
            }
        }
    }
}

/// The path of the first of these programs that is here.
fn find(names: &[String]) -> Result<PathBuf, String> {
    let found = names.iter().find_map(|name| crate::packages::find(name));
    found.ok_or_else(|| format!("{} (Debian package qemu-user-static)", names[0]))
}

#[cfg(test)]
mod tests {
    /// As Debian's qemu-user-static registers it.
    #[test]
    fn programs_are_recognised_by_the_head_of_their_file() {
        let (magic, mask) = (
            r"\x7f\x45\x4c\x46\x02\x01\x01\x00\x00\x00\x00\x00\x00\x00\x00\x00\x02\x00\xb7\x00",
            r"\xff\xff\xff\xff\xff\xff\xff\x00\xff\xff\xff\xff\xff\xff\xff\xff\xfe\xff\xff\xff",
        );
        assert_eq!(super::magic(183), format!("{magic}:{mask}"));
    }
}
