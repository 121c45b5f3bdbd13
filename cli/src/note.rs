//! Lines on standard error.

/// A line on standard error. Where that cannot be written (a full disk, a closed pipe) nothing ends for it, as it does by `eprintln!`.
macro_rules! note {
    ($($arg:tt)*) => {{
        let line = format!("{}\n", format_args!($($arg)*));
        let _ = std::io::Write::write_all(&mut std::io::stderr(), line.as_bytes());
    }};
}
