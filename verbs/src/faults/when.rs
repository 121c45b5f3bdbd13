//! Triggers of fault rules.

use std::str::FromStr;
use std::time::Duration;

/// Selects the matching calls to which a rule applies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FaultTrigger {
    /// All calls. It has no text form: it is the trigger of rules without `@WHEN`.
    Always,
    /// One call, counted from 1: `3`.
    Nth(u64),
    /// This call and all later ones, counted from 1: `3+`.
    From(u64),
    /// Each call with this probability, in millionths: `0.5%`.
    Chance(u32),
    /// The first call after this time since the device was opened: `2s`.
    After(Duration),
}

impl FromStr for FaultTrigger {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, &'static str> {
        const RULE: &str = "expected behind @ a number such as 3 or 3+, a chance such as 0.5%, or a time such as 2s";
        let number = |text: &str| text.parse::<u64>().ok().filter(|number| *number > 0).ok_or(RULE);
        if let Some(percent) = text.strip_suffix('%') {
            let percent =
                percent.parse::<f64>().ok().filter(|p| *p > 0.0 && *p <= 100.0).ok_or(RULE)?;
            #[expect(
                clippy::cast_possible_truncation,
                clippy::cast_sign_loss,
                reason = "above 0, at most 1,000,000"
            )]
            return Ok(Self::Chance((percent * 10_000.0).round() as u32));
        }
        if let Some(first) = text.strip_suffix('+') {
            return number(first).map(Self::From);
        }
        if text.ends_with('s') || text.ends_with('m') {
            return duration(text).map(Self::After).map_err(|_| RULE);
        }
        number(text).map(Self::Nth)
    }
}

/// Parses a time: `250us`, `5ms`, `2s`, `1m`.
pub(super) fn duration(text: &str) -> Result<Duration, &'static str> {
    const RULE: &str = "expected a time such as 250us, 5ms, 2s or 1m";
    let digits = text.find(|c: char| !c.is_ascii_digit()).ok_or(RULE)?;
    let (number, unit) = text.split_at(digits);
    let number = number.parse::<u32>().map_err(|_| RULE)?;
    match unit {
        "us" => Ok(Duration::from_micros(number.into())),
        "ms" => Ok(Duration::from_millis(number.into())),
        "s" => Ok(Duration::from_secs(number.into())),
        "m" => Ok(Duration::from_secs(u64::from(number) * 60)),
        _ => Err(RULE),
    }
}
