//! Defects that the models must notice.

use std::path::Path;
use std::process::Command;

/// Applies each defect of the folder `defects` to a copy of the sources, and runs a model that must
/// fail then.
#[test]
fn defects_are_noticed() {
    let models = Path::new(env!("CARGO_MANIFEST_DIR"));
    let status = Command::new("sh")
        .arg(models.join("../../xtask/scripts/defects.sh"))
        .arg(models.join("defects"))
        .env("LOOM_MAX_PREEMPTIONS", "3")
        .status();
    assert!(status.expect("there is a shell").success());
}
