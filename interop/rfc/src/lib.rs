//! Sentences of RFC 5040, 5041, 5044, 6581 and 7306 that contain a keyword of RFC 2119.

/// Tab-separated table with one row per sentence; the first row names the columns.
pub const TABLE: &str = include_str!("../requirements.tsv");
