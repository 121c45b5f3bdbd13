//! Observations about requirements.

/// Observation about one requirement.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Judgement {
    pub(super) id: String,
    /// Violation; `None` if the requirement was kept.
    pub(super) broken: Option<String>,
}

/// Observations of a case.
#[derive(Debug, Default)]
pub(super) struct Judgements(pub(super) Vec<Judgement>);

impl Judgements {
    /// Records that the requirements were kept, or that they were broken as described by `what`.
    pub(super) fn check<I: AsRef<str>>(&mut self, kept: bool, ids: &[I], what: impl FnOnce() -> String) {
        let broken = (!kept).then(what);
        for id in ids {
            self.0.push(Judgement { id: id.as_ref().to_owned(), broken: broken.clone() });
        }
    }

    pub(super) fn add_kept<I: AsRef<str>>(&mut self, ids: &[I]) {
        self.check(true, ids, String::new);
    }

    pub(super) fn add_broken<I: AsRef<str>>(&mut self, ids: &[I], what: impl Into<String>) {
        self.check(false, ids, || what.into());
    }
}
