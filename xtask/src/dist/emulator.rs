//! Programs for another processor, run by QEMU on this machine.

use std::path::Path;
use std::process::Command;

use super::check::output;
use crate::arch::Arch;

/// While it lives, the kernel runs programs for a processor: by a handler that the system has
/// already, or by Debian's, which is enabled meanwhile.
pub(super) struct Emulator {
    enabled: Option<String>,
}

impl Emulator {
    /// The error is what is missing.
    pub(super) fn start(arch: Arch) -> Result<Self, String> {
        let name = format!("qemu-{}", arch.name());
        if arch.is_here() || Path::new("/proc/sys/fs/binfmt_misc").join(&name).exists() {
            return Ok(Self { enabled: None });
        }
        match output(Command::new("update-binfmts").args(["--enable", &name])) {
            Ok(_) => Ok(Self { enabled: Some(name) }),
            Err(error) => {
                Err(format!("{name} (Debian packages qemu-user-static and binfmt-support): {error}"))
            }
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
