//! The requirements of the RFCs, and which of them can be judged from outside.

use std::collections::BTreeMap;
use uiw_requirements::TABLE;

/// Possibility of judging a requirement from outside.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Visibility {
    Alone,
    Partner,
    /// Reason why it is not visible.
    No(&'static str),
}

/// A requirement, which is one sentence of an RFC.
#[derive(Clone, Debug)]
pub(super) struct Requirement {
    pub(super) id: &'static str,
    pub(super) level: &'static str,
    pub(super) quote: &'static str,
    pub(super) visibility: Visibility,
}

fn parse_visibility(mark: &str) -> Visibility {
    match mark {
        "alone" => Visibility::Alone,
        "partner" => Visibility::Partner,
        "initiator" => Visibility::No("binds the end that connects"),
        "interface" => Visibility::No("binds the interface to the program above, or its policy"),
        "permission" => Visibility::No("a permission, which cannot be broken"),
        "extension" => Visibility::No("an extension that a listener does not announce"),
        "elsewhere" => Visibility::No(
            "not a matter of this protocol: kept in TCP, SCTP, IPsec or by the operator",
        ),
        _ => Visibility::No("happens inside the listener and shows in no frame"),
    }
}

/// Returns all requirements in the order of the table.
pub(super) fn all() -> Vec<Requirement> {
    let mut lines = TABLE.lines();
    let head: BTreeMap<&str, usize> = lines
        .next()
        .unwrap_or_default()
        .split('\t')
        .enumerate()
        .map(|(at, name)| (name, at))
        .collect();
    let column = |name: &str| head.get(name).copied().unwrap_or(usize::MAX);
    let (id, level, quote, mark) =
        (column("id"), column("level"), column("quote"), column("outside"));
    lines
        .map(|line| {
            let cells: Vec<&'static str> = line.split('\t').collect();
            let cell = |at: usize| cells.get(at).copied().unwrap_or_default();
            Requirement {
                id: cell(id),
                level: cell(level),
                quote: cell(quote),
                visibility: parse_visibility(cell(mark)),
            }
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requirement_table_parsed() {
        let all = all();
        assert_eq!(all.len(), 625);
        let pad = all.iter().find(|row| row.id == "RFC5044-4.1-02").unwrap();
        assert_eq!((pad.level, pad.visibility), ("MUST", Visibility::Partner));
        assert!(pad.quote.starts_with("The pad data MUST be set to zero"));
        let judged =
            |row: &&Requirement| matches!(row.visibility, Visibility::Alone | Visibility::Partner);
        assert!(all.iter().filter(judged).count() >= 120);
    }
}
