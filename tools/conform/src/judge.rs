//! Observations about requirements.

use std::collections::BTreeMap;

/// Observations of a case: the first violation of each observed requirement, or `None` if the
/// requirement was always kept. Their number does not grow with the frames of the listener.
#[derive(Clone, Debug, Default)]
pub(super) struct Judgements(pub(super) BTreeMap<String, Option<String>>);

impl Judgements {
    /// Records that the requirements were kept, or that they were broken as described by `what`.
    pub(super) fn check<I: AsRef<str>>(
        &mut self,
        kept: bool,
        ids: &[I],
        what: impl FnOnce() -> String,
    ) {
        let broken = (!kept).then(what);
        for id in ids {
            match self.0.get_mut(id.as_ref()) {
                Some(Some(_)) => {}
                Some(first) => first.clone_from(&broken),
                None => drop(self.0.insert(id.as_ref().to_owned(), broken.clone())),
            }
        }
    }

    /// Returns the requirements that were broken.
    #[cfg(test)]
    pub(super) fn broken(self) -> Vec<String> {
        self.0.into_iter().filter_map(|(id, broken)| broken.map(|_| id)).collect()
    }

    pub(super) fn add_kept<I: AsRef<str>>(&mut self, ids: &[I]) {
        self.check(true, ids, String::new);
    }

    pub(super) fn add_broken<I: AsRef<str>>(&mut self, ids: &[I], what: impl Into<String>) {
        self.check(false, ids, || what.into());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn first_violation_kept() {
        let mut judged = Judgements::default();
        judged.add_kept(&["a", "b"]);
        judged.add_broken(&["a"], "first");
        judged.add_broken(&["a"], "second");
        judged.add_kept(&["a", "b"]);
        let expected = [("a".to_owned(), Some("first".to_owned())), ("b".to_owned(), None)];
        assert_eq!(judged.0, expected.into());
    }
}
