//! The table of cases.

mod rping;

use crate::case::{Case, Setting};

/// Every case, in the order of the table.
#[must_use]
pub fn all() -> Vec<Case> {
    rping::cases()
}

/// uiw's arguments for siw's large FPDUs.
fn profile(setting: &Setting) -> &'static [&'static str] {
    if setting.gso { &["--peer", "siw-gso"] } else { &[] }
}
