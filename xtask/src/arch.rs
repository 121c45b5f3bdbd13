//! Processors for which packages are built.

use std::env;

/// Processor, by its name in Rust.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Arch(&'static str);

/// Processors for which packages can be built on other machines.
const KNOWN: [&str; 2] = ["x86_64", "aarch64"];

/// Suffix after the processor in the names of Rust's targets.
const SYSTEM: &str = "-unknown-linux-gnu";

impl Arch {
    /// Returns the processor of this machine.
    pub(crate) fn here() -> Self {
        Self(env::consts::ARCH)
    }

    /// Returns the processor of a target.
    pub(crate) fn of_target(target: &str) -> Result<Self, String> {
        let name = target.strip_suffix(SYSTEM);
        let found = KNOWN.into_iter().find(|known| Some(*known) == name);
        found.map(Self).ok_or_else(|| {
            let all = KNOWN.map(|known| format!("{known}{SYSTEM}"));
            format!("packages are made for {}", all.join(" and "))
        })
    }

    pub(crate) fn is_here(self) -> bool {
        self == Self::here()
    }

    pub(crate) fn name(self) -> &'static str {
        self.0
    }

    /// Returns the name of the target in Rust.
    pub(crate) fn target(self) -> String {
        format!("{}{SYSTEM}", self.0)
    }

    /// Returns the name of the processor in Debian, which is also its name in images.
    pub(crate) fn debian(self) -> &'static str {
        match self.0 {
            "x86_64" => "amd64",
            "aarch64" => "arm64",
            other => other,
        }
    }

    /// Returns the program that strips binaries for the processor: the value of the variable STRIP,
    /// or otherwise `strip` of GNU binutils.
    pub(crate) fn strip(self) -> String {
        env::var("STRIP").ok().filter(|name| !name.is_empty()).unwrap_or_else(|| self.tool("strip"))
    }

    /// Returns the name of a program of binutils for the processor on this machine.
    pub(crate) fn tool(self, name: &str) -> String {
        if self.is_here() { name.to_owned() } else { format!("{}-linux-gnu-{name}", self.0) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn targets_are_linux_and_glibc() {
        let arm = Arch::of_target("aarch64-unknown-linux-gnu").unwrap();
        assert_eq!((arm.name(), arm.debian()), ("aarch64", "arm64"));
        assert_eq!(arm.target(), "aarch64-unknown-linux-gnu");
        for target in ["aarch64", "aarch64-unknown-linux-musl", "m68k-unknown-linux-gnu", ""] {
            let refused = Arch::of_target(target).unwrap_err();
            assert!(
                refused.contains("x86_64-unknown-linux-gnu and aarch64-unknown-linux-gnu"),
                "{refused}"
            );
        }
        assert!(Arch::here().is_here());
    }
}
