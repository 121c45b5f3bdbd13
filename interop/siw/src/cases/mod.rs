//! The table of cases.

mod conform;
mod conversation;
mod dmabuf;
mod endings;
mod faults;
mod files;
mod iser;
mod ninep;
mod ops;
mod own_tcp;
mod rcopy;
mod registration;
mod rping;
mod startup;
mod stock;
mod sums;
mod tls;

use crate::case::{Case, Setting};

/// Returns every case, in the order of the table.
pub fn all() -> Vec<Case> {
    let mut cases = rping::cases();
    cases.extend(stock::cases());
    cases.extend(rcopy::cases());
    cases.extend(tls::cases());
    cases.extend(iser::cases());
    cases.extend(ninep::cases());
    cases.extend(registration::cases());
    cases.extend(dmabuf::cases());
    cases.extend(ops::cases());
    cases.extend(own_tcp::cases());
    cases.extend(startup::cases());
    cases.extend(faults::cases());
    cases.extend(endings::cases());
    cases.extend(conform::cases());
    cases
}

/// Returns uiw's arguments for the large FPDUs of siw.
fn profile(setting: &Setting) -> &'static [&'static str] {
    if setting.gso { &["--peer", "siw-gso"] } else { &[] }
}

/// Returns uiw's arguments for a setting.
fn wire(setting: &Setting) -> Vec<&'static str> {
    let crc: &[&str] = if setting.crc { &["--crc", "on"] } else { &["--crc", "off"] };
    [crc, profile(setting)].concat()
}
