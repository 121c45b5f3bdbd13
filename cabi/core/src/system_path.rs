//! The path of the system's libibverbs.

use std::path::Path;

/// Environment variable with the path.
pub const VARIABLE: &str = "UIW_SYSTEM_VERBS";

/// Checks the value of [`VARIABLE`].
///
/// # Errors
/// The rule that the value breaks.
pub fn check(value: &str) -> Result<(), &'static str> {
    // A name without a path would find this library itself.
    if Path::new(value).is_absolute() { Ok(()) } else { Err("expected an absolute path") }
}
