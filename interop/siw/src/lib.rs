//! The Linux kernel's siw driver as an oracle: Debian packages in a cache, a guest under QEMU,
//! commands in it over one channel, and the table of cases that it and uiw go through together.
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

/// Reason why a run cannot go on.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// This machine lacks something: what needs the guest is skipped.
    #[error("{0}")]
    Missing(String),
    /// Something went wrong that should not.
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
