//! Test binaries of the workspace, which are run in the same way as by Cargo.

use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

/// Test binary.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Binary {
    /// Path of the source file in the workspace.
    pub(super) name: String,
    program: PathBuf,
    /// Folder of the package.
    folder: PathBuf,
}

impl Binary {
    /// Parses a line of Cargo's messages. Returns `None` if it does not describe a test binary.
    pub(super) fn of_message(line: &str, root: &Path) -> Option<Self> {
        let message: Value = serde_json::from_str(line).ok()?;
        if message["reason"] != "compiler-artifact" || message["profile"]["test"] != true {
            return None;
        }
        let path = |value: &Value| value.as_str().map(PathBuf::from);
        let source = path(&message["target"]["src_path"])?;
        Some(Self {
            name: source.strip_prefix(root).unwrap_or(&source).display().to_string(),
            program: path(&message["executable"])?,
            folder: path(&message["manifest_path"])?.parent()?.to_owned(),
        })
    }

    /// Returns the command by which `cargo test` runs the binary.
    pub(super) fn command(&self) -> Command {
        let mut command = Command::new(&self.program);
        command.current_dir(&self.folder).env("CARGO_MANIFEST_DIR", &self.folder);
        command.env("CARGO_MANIFEST_PATH", self.folder.join("Cargo.toml"));
        command
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn binary_parsed_from_message() {
        let message = r#"{"reason":"compiler-artifact","package_id":"path+file:///w/verbs#uiw-verbs@0.1.0","manifest_path":"/w/verbs/Cargo.toml",
            "target":{"kind":["test"],"name":"wire","src_path":"/w/verbs/tests/wire/main.rs"},"profile":{"test":true},
            "filenames":["/t/debug/deps/wire-1"],"executable":"/t/debug/deps/wire-1","fresh":false}"#;
        let message = message.replace('\n', "");
        let binary = Binary::of_message(&message, Path::new("/w")).unwrap();
        assert_eq!(binary.name, "verbs/tests/wire/main.rs");
        assert_eq!(binary.command().get_program(), "/t/debug/deps/wire-1");
        assert_eq!(binary.command().get_current_dir(), Some(Path::new("/w/verbs")));
        for (from, to) in
            [("true", "false"), ("compiler-artifact", "build-finished"), ("executable", "other")]
        {
            assert_eq!(
                Binary::of_message(&message.replace(from, to), Path::new("/w")),
                None,
                "{to}"
            );
        }
        assert_eq!(Binary::of_message("warning: unused", Path::new("/w")), None);
    }
}
