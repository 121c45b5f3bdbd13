//! The Linux kernel's siw driver as an oracle: Debian packages in a cache, a guest in QEMU,
//! commands in the guest through one channel, and the matrix of cases that siw and uiw run
//! together.
//!
//! How to use it and what it needs: `interop/siw/README.md`.

pub mod bench;
pub mod cache;
pub mod case;
pub mod cases;
pub mod debian;
pub mod guest;
pub mod image;
pub mod kernel;
pub mod load;
pub mod matrix;
pub mod net;
pub mod packages;
pub mod results;
pub mod setting;
pub mod shell;
pub mod test_vm;
pub mod workspace;

/// Reason why a run cannot continue.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// This machine lacks something. What needs the guest is skipped.
    #[error("{0}")]
    Missing(String),
    /// An unexpected failure.
    #[error("{0}")]
    Failed(String),
}

/// Result type of this crate.
pub type Result<T> = std::result::Result<T, Error>;

impl Error {
    pub(crate) fn io(what: impl std::fmt::Display) -> impl FnOnce(std::io::Error) -> Self {
        move |error| Self::Failed(format!("{what}: {error}"))
    }
}
