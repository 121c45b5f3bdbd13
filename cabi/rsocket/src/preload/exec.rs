//! Connections that end with exec(3): the next program of the process inherits their numbers, but
//! not their memory.

use crate::sys;
use std::fs;
use std::os::fd::RawFd;
use uiw_cabi_core::environment::{self, PrivilegePolicy};
use uiw_cabi_core::log;
use uiw_cabi_core::settings::Settings;

/// Logs the numbers that were rsockets of the previous program of the process. Called when the
/// library is loaded. The numbers are checked only if the log is enabled.
pub(super) fn report_lost_rsockets() {
    if environment::variable(log::VARIABLE, PrivilegePolicy::LevelOnly).is_none()
        || Settings::get().is_err()
    {
        return;
    }
    let Ok(files) = fs::read_dir("/proc/self/fd") else { return };
    let numbers = files.filter_map(|file| file.ok()?.file_name().to_str()?.parse::<RawFd>().ok());
    for fd in numbers.filter(|fd| sys::stood_for_rsocket(*fd)) {
        tracing::warn!(
            fd,
            "this was an rsocket of the program before exec: its connection has ended, and it reads as closed"
        );
    }
}
