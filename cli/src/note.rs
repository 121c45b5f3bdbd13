//! Lines on standard error.

/// Prints lines on standard error: see [`crate::shared::text::note`].
macro_rules! note {
    ($($arg:tt)*) => {
        $crate::shared::text::note(&format!($($arg)*))
    };
}
