//! The table of cases.

mod ops;
mod rping;

use crate::case::{Case, Setting};

/// Every case, in the order of the table.
#[must_use]
pub fn all() -> Vec<Case> {
    let mut cases = rping::cases();
    cases.extend(ops::cases());
    cases
}

/// uiw's arguments for siw's large FPDUs.
fn profile(setting: &Setting) -> &'static [&'static str] {
    if setting.gso { &["--peer", "siw-gso"] } else { &[] }
}

/// uiw's arguments of a setting.
fn wire(setting: &Setting) -> Vec<&'static str> {
    let crc: &[&str] = if setting.crc { &["--crc", "on"] } else { &["--crc", "off"] };
    [crc, profile(setting)].concat()
}
