//! Where the system's libibverbs is.

use std::path::Path;

/// The variable that names it.
pub const VARIABLE: &str = "UIW_SYSTEM_VERBS";

/// The value of [`VARIABLE`].
///
/// # Errors
/// The rule that it breaks.
pub fn check(value: &str) -> Result<(), &'static str> {
    // A name alone would be this library's.
    if Path::new(value).is_absolute() { Ok(()) } else { Err("expected an absolute path") }
}
