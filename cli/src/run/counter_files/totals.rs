//! What all programs of the user have moved, by address. It only grows, also when programs end and their files are removed.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::path::PathBuf;
use uiw_cabi::counters;
use uiw_verbs::counters::{AddressCounts, Directions, Directory};

/// Counts by the address of this end.
type Addresses = BTreeMap<IpAddr, AddressCounts>;

/// The sums.
#[derive(Debug, Default)]
pub(super) struct Totals {
    /// Of programs whose files are there, by directory and name: each file has a name of its own.
    present: BTreeMap<(PathBuf, String), Addresses>,
    /// Of those whose files were removed.
    removed: Addresses,
}

impl Totals {
    /// Reads the files of the user's programs, and of those that `uiw run` has linked to them.
    pub(super) fn update(&mut self) {
        let user = counters::user();
        let linked = user.linked().unwrap_or_default();
        self.update_from(&[&[user], &linked[..]].concat());
    }

    fn update_from(&mut self, directories: &[Directory]) {
        let mut now = BTreeMap::new();
        for directory in directories {
            for file in directory.files().into_iter().flatten().flatten() {
                let name = (directory.path().to_owned(), file.name().to_owned());
                // What cannot be read at the moment has still what it had.
                let counts = match file.snapshot() {
                    Ok(snapshot) => Some(snapshot.addresses),
                    Err(_) => self.present.remove(&name),
                };
                self.present.remove(&name);
                now.extend(counts.map(|counts| (name, counts)));
            }
        }
        for (_, addresses) in std::mem::replace(&mut self.present, now) {
            for (address, counts) in addresses {
                add(self.removed.entry(address).or_default(), &counts);
            }
        }
    }

    /// The sum over addresses for which `is_of` returns true.
    pub(super) fn of(&self, is_of: impl Fn(&IpAddr) -> bool) -> AddressCounts {
        let mut sum = AddressCounts::default();
        for addresses in self.present.values().chain([&self.removed]) {
            for (_, counts) in addresses.iter().filter(|(address, _)| is_of(address)) {
                add(&mut sum, counts);
            }
        }
        sum
    }
}

fn add(sum: &mut AddressCounts, counts: &AddressCounts) {
    sum.traffic.add(&counts.traffic);
    sum.datagrams = both(sum.datagrams, counts.datagrams);
}

/// Messages and payload of two parts together.
pub(super) fn both(mut one: Directions, other: Directions) -> Directions {
    for (sum, part) in [(&mut one.sent, other.sent), (&mut one.received, other.received)] {
        sum.messages = sum.messages.wrapping_add(part.messages);
        sum.bytes = sum.bytes.wrapping_add(part.bytes);
    }
    one
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use uiw_verbs::counters::{ConnDetails, DeviceCounters, Publish, Traffic};

    #[test]
    fn totals_outlive_files() {
        let path = std::env::temp_dir().join(format!("uiw-totals-{}", std::process::id()));
        fs::create_dir(&path).unwrap();
        let directory = Directory::given(&path);
        // This process's own files are left out by readers: the file is another program's by then.
        let mut totals = Totals::default();
        let here: IpAddr = [10, 0, 0, 1].into();
        let details = ConnDetails {
            qp_num: 1,
            local: (here, 1).into(),
            peer: (here, 2).into(),
            initiator: true,
            same_device: false,
            kernel: true,
        };
        for round in 1..=2_u64 {
            let publish = Publish { directory: directory.clone(), library: String::new() };
            let device = DeviceCounters::new(1, Some(&publish)).unwrap();
            device.shard(0).open(&details).count(Traffic::SendSent, 1, 40);
            drop(device);
            for _ in 0..2 {
                totals.update_from(std::slice::from_ref(&directory));
                assert_eq!(totals.of(|ip| *ip == here).traffic.send.sent.bytes, 40 * round);
            }
            assert!(directory.remove_ended().unwrap());
            totals.update_from(std::slice::from_ref(&directory));
            assert_eq!(totals.of(|ip| *ip == here).traffic.send.sent.bytes, 40 * round);
        }
        assert_eq!(totals.of(|ip| *ip != here), AddressCounts::default());
        fs::remove_dir(&path).unwrap();
    }
}
