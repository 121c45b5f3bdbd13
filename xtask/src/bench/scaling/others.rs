//! How busy the machine is with other work while nothing of a benchmark runs.

use std::fs;
use std::thread;
use std::time::Duration;

/// Share of all processors' time above which the figures of a row are too noisy to count.
pub(super) const QUIET: f64 = 0.1;
/// Time that is looked at before each slice. The kernel counts in hundredths of a second.
const SAMPLE: Duration = Duration::from_millis(100);

/// The share (0 to 1) of all processors' time that is in use now.
///
/// # Errors
/// Without `/proc/stat`.
pub(super) fn share() -> Result<f64, String> {
    let before = Ticks::now()?;
    thread::sleep(SAMPLE);
    Ok(Ticks::now()?.since(before))
}

/// Of all processors since the system's start.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Ticks {
    idle: u64,
    all: u64,
}

impl Ticks {
    fn now() -> Result<Self, String> {
        let stat = fs::read_to_string("/proc/stat").map_err(|error| format!("/proc/stat: {error}"))?;
        Self::read(&stat).ok_or_else(|| "/proc/stat has no line of all processors".to_owned())
    }

    /// The first line (proc(5)): user, nice, system, idle, iowait, irq, softirq, steal; guests are in user.
    fn read(stat: &str) -> Option<Self> {
        let fields = stat.lines().next()?.strip_prefix("cpu ")?.split_whitespace().take(8);
        let fields: Vec<u64> = fields.map(str::parse).collect::<Result<_, _>>().ok()?;
        let idle = fields.get(3)? + fields.get(4)?;
        Some(Self { idle, all: fields.iter().sum() })
    }

    /// The share in use between the two; none when no time has passed.
    fn since(self, before: Self) -> f64 {
        let all = self.all.saturating_sub(before.all);
        let idle = self.idle.saturating_sub(before.idle).min(all);
        if all == 0 { 0.0 } else { (all - idle) as f64 / all as f64 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_share_is_of_all_processors() {
        let before = Ticks::read("cpu  10 0 10 100 0 0 0 0 0 0\ncpu0 5 0 5 50 0 0 0 0 0 0\n").unwrap();
        assert_eq!(before, Ticks { idle: 100, all: 120 });
        let after = Ticks::read("cpu  14 0 10 110 4 0 0 2 7 0\n").unwrap();
        assert_eq!(after.since(before), 6.0 / 20.0);
        assert_eq!(before.since(before), 0.0);
        assert_eq!(Ticks::read("cpu0 5 0 5 50 0 0 0 0 0 0\n"), None);
    }
}
