//! Rows of the matrix.

use crate::bench::Bench;
use crate::net::Family;
pub use crate::setting::Setting;
use crate::{Error, Result};
use std::fmt;

/// End that sends the MPA Request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Direction {
    /// uiw.
    Ours,
    /// siw.
    Theirs,
}

impl Direction {
    /// Both directions.
    pub const BOTH: &[Self] = &[Self::Ours, Self::Theirs];
    /// The direction of cases in which only uiw can begin.
    pub const OURS: &[Self] = &[Self::Ours];
    /// The direction of cases in which only siw can begin.
    pub const THEIRS: &[Self] = &[Self::Theirs];
}

impl fmt::Display for Direction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Ours => "uiw to siw",
            Self::Theirs => "siw to uiw",
        })
    }
}

/// Settings in which a case runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Axes {
    /// Only [`Setting::USUAL`].
    Usual,
    /// Settings with and without CRCs.
    Crc,
    /// Over IPv4 and IPv6, with both MTUs.
    Tcp,
    /// All sixteen settings.
    All,
}

impl Axes {
    /// Returns the settings in an order in which neighbours differ in settings that are quick to
    /// change.
    pub fn settings(self) -> Vec<Setting> {
        let mut settings = Vec::new();
        for gso in [false, true] {
            for mtu in [1500, 9000] {
                for family in [Family::V4, Family::V6] {
                    settings.extend([true, false].map(|crc| Setting { crc, family, mtu, gso }));
                }
            }
        }
        settings.retain(|setting| match self {
            Self::All => true,
            Self::Crc => Setting { crc: true, ..*setting } == Setting::USUAL,
            Self::Tcp => setting.crc && !setting.gso,
            Self::Usual => *setting == Setting::USUAL,
        });
        settings
    }
}

/// Outcome of a run of a row.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The outcome is right; the text describes it in a few words.
    Pass(String),
    /// The outcome is wrong.
    Fail(String),
    /// The case has failed because of a fault of siw that QUIRKS.md explains. A run may have at
    /// most [`MOST_KNOWN`] of them.
    Known {
        /// Name of the entry in QUIRKS.md.
        quirk: &'static str,
        /// Description of the failure.
        seen: String,
    },
    /// The case cannot run, because siw or this machine lacks something.
    NotApplicable(String),
}

/// Names of the entries in QUIRKS.md that explain failures of rows.
pub mod quirk {
    /// siw answers a Read of no bytes with the bytes of the previous Send.
    pub const READ_OF_NOTHING: &str = "Read of no bytes while siw is sending";
    /// siw includes the payload of an FPDU twice in its CRC.
    pub const SUMMED_TWICE: &str = "the CRC of an FPDU that waited for room in TCP";
    /// The MO or TO of an FPDU of siw lies one FPDU too far.
    pub const SKIPPED_FPDU: &str = "an MO or TO that skips an FPDU";
    /// A program in the guest waits forever in `siw_destroy_qp`.
    pub const DESTROY_QP: &str = "the end of rdma_xserver";
    /// The guest's TCP resets a connection whose end was closed before all that its program sent
    /// had been acknowledged.
    pub const RESET_BY_CLOSE: &str = "what was sent before a close";
}

/// Maximum number of [`Verdict::Known`] in one run. Any further ones are failures, because siw or
/// uiw has probably become worse.
pub const MOST_KNOWN: usize = 3;

impl Verdict {
    /// Creates [`Verdict::Known`]; `quirk` is the name of an entry in QUIRKS.md.
    pub fn known(quirk: &'static str, seen: impl Into<String>) -> Self {
        Self::Known { quirk, seen: seen.into() }
    }

    /// Returns the verdict, but as a failure if it is [`Verdict::Known`] and this run already has
    /// `before` others.
    #[must_use]
    pub fn limited(self, before: usize) -> Self {
        match self {
            Self::Known { quirk, seen } if before >= MOST_KNOWN => Self::Fail(format!(
                "more than {MOST_KNOWN} rows that QUIRKS.md explains; {quirk}: {seen}"
            )),
            verdict => verdict,
        }
    }

    /// Creates [`Verdict::Pass`] without a text.
    pub fn pass() -> Self {
        Self::Pass(String::new())
    }

    /// Creates [`Verdict::Pass`] with `seen` if `right` is true, and [`Verdict::Fail`] otherwise.
    pub fn of(right: bool, seen: impl Into<String>) -> Self {
        if right { Self::Pass(seen.into()) } else { Self::Fail(seen.into()) }
    }
}

impl From<Error> for Verdict {
    fn from(error: Error) -> Self {
        match error {
            Error::Missing(what) => Self::NotApplicable(what),
            Error::Failed(what) => Self::Fail(what),
        }
    }
}

type Run = dyn Fn(&mut Bench, &Setting, Direction) -> Result<Verdict>;

/// A case of the matrix: its programs, directions and settings.
pub struct Case {
    /// Name; `--only` selects cases by a part of it.
    pub name: String,
    /// Directions in which it runs.
    pub directions: &'static [Direction],
    /// Settings in which it runs.
    pub axes: Axes,
    /// True if `cargo xtask test` runs it, in the usual setting.
    pub short: bool,
    run: Box<Run>,
}

impl Case {
    /// Creates a case that only the complete matrix runs, in both directions and in the usual
    /// setting.
    pub fn new(
        name: impl Into<String>,
        run: impl Fn(&mut Bench, &Setting, Direction) -> Result<Verdict> + 'static,
    ) -> Self {
        Self {
            name: name.into(),
            directions: Direction::BOTH,
            axes: Axes::Usual,
            short: false,
            run: Box::new(run),
        }
    }

    /// Sets the settings in which it runs.
    #[must_use]
    pub fn axes(self, axes: Axes) -> Self {
        Self { axes, ..self }
    }

    /// Sets the directions in which it runs.
    #[must_use]
    pub fn directions(self, directions: &'static [Direction]) -> Self {
        Self { directions, ..self }
    }

    /// Adds it to the short set.
    #[must_use]
    pub fn short(self) -> Self {
        Self { short: true, ..self }
    }

    /// Runs it once.
    pub fn run(&self, bench: &mut Bench, setting: &Setting, direction: Direction) -> Verdict {
        if let Err(error) = bench.apply(setting) {
            return error.into();
        }
        let verdict = (self.run)(bench, setting, direction).unwrap_or_else(Verdict::from);
        if matches!(verdict, Verdict::Fail(_) | Verdict::Known { .. }) {
            bench.renew();
        }
        verdict
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A row is known by the bold name of an entry in QUIRKS.md.
    #[test]
    fn quirks_are_documented() {
        let quirks = include_str!("../QUIRKS.md");
        let all = [
            quirk::READ_OF_NOTHING,
            quirk::SUMMED_TWICE,
            quirk::SKIPPED_FPDU,
            quirk::DESTROY_QP,
            quirk::RESET_BY_CLOSE,
        ];
        for quirk in all {
            assert!(quirks.contains(&format!("* **{quirk}**")), "{quirk}");
        }
    }

    #[test]
    fn few_are_known() {
        let known = Verdict::known("a quirk", "it was seen");
        assert_eq!(known.clone().limited(MOST_KNOWN - 1), known);
        assert!(
            matches!(known.limited(MOST_KNOWN), Verdict::Fail(why) if why.ends_with("a quirk: it was seen"))
        );
        assert_eq!(Verdict::pass().limited(MOST_KNOWN), Verdict::pass());
    }

    #[test]
    fn settings_are_distinct() {
        let all = Axes::All.settings();
        assert_eq!(all.len(), 16);
        for (index, one) in all.iter().enumerate() {
            assert!(!all[..index].contains(one));
        }
        assert_eq!(Axes::Crc.settings().len(), 2);
        assert_eq!(Axes::Tcp.settings().len(), 4);
        assert_eq!(Axes::Usual.settings(), [Setting::USUAL]);
    }
}
