//! Output of `uiw decode --json` for a capture.

use std::path::PathBuf;

use serde_json::Value;
use uiw_decode::{DecodeConfig, Summary, decode_to};

/// All output lines except the last one, which is the summary.
pub(crate) struct Decoded {
    pub(crate) records: Vec<Value>,
    pub(crate) summary: Summary,
}

impl Decoded {
    pub(crate) fn new(file: PathBuf) -> Self {
        let mut out = Vec::new();
        let name = file.display().to_string();
        let summary = decode_to(
            &DecodeConfig { files: vec![file], json: true, ..DecodeConfig::default() },
            &mut out,
        );
        let summary = summary.unwrap_or_else(|(_, error)| panic!("{name}: {error}"));
        let text = String::from_utf8(out).expect("JSON is UTF-8");
        let mut records: Vec<Value> = text
            .lines()
            .map(|line| serde_json::from_str(line).expect("one JSON object a line"))
            .collect();
        let last = records.pop().expect("the summary");
        assert_eq!(last["type"], "summary");
        Self { records, summary }
    }

    pub(crate) fn of_type<'a>(&'a self, kind: &'a str) -> impl Iterator<Item = &'a Value> {
        self.records.iter().filter(move |record| record["type"] == kind)
    }
}
