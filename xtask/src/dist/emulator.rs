//! Emulation of other processors by QEMU.

use std::path::Path;
use std::process::Command;

use crate::arch::Arch;
use crate::process::output;

/// Guard during whose lifetime the kernel runs programs for a processor, with a handler that the
/// system already has, or with that of Debian, which is enabled meanwhile.
pub(super) struct Emulator {
    enabled: Option<String>,
}

impl Emulator {
    /// Enables the emulation. The error names the missing prerequisite.
    pub(super) fn start(arch: Arch) -> Result<Self, String> {
        let name = format!("qemu-{}", arch.name());
        if arch.is_here() || Path::new("/proc/sys/fs/binfmt_misc").join(&name).exists() {
            return Ok(Self { enabled: None });
        }
        match output(Command::new("update-binfmts").args(["--enable", &name])) {
            Ok(_) => Ok(Self { enabled: Some(name) }),
            Err(error) => Err(format!(
                "{name} (Debian packages qemu-user-static and binfmt-support): {error}"
            )),
        }
    }
}

impl Drop for Emulator {
    fn drop(&mut self) {
        if let Some(name) = &self.enabled {
            let _ = output(Command::new("update-binfmts").args(["--disable", name]));
        }
    }
}
