//! What `serve` asks before it puts anything into force: whether `mainstay check` finds errors (OP-11).

use mainstay_check::{Id, Level, check};
use mainstay_control_plane::files::Sources;
use mainstay_control_plane::{LoadError, LoadErrorKind, LoadErrors};

use crate::check::source;

/// How strict it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Judge {
    /// What has errors is refused.
    Errors,
    /// Nothing is.
    Nothing,
}

impl Judge {
    /// Whether these resources may be put into force.
    pub(crate) fn sources(self, sources: &Sources) -> Result<(), LoadErrors> {
        self.look(sources, |_| true)
    }

    /// Whether these may be, as a part of more: names may lead to what is not among them.
    pub(crate) fn parts(self, sources: &Sources) -> Result<(), LoadErrors> {
        self.look(sources, |id| !id.is_reference())
    }

    fn look(self, sources: &Sources, counts: impl Fn(Id) -> bool) -> Result<(), LoadErrors> {
        if self == Self::Nothing {
            return Ok(());
        }
        let findings = check(&source::of_sources(sources));
        let errors = findings.into_iter().filter(|finding| finding.level() == Level::Error && counts(finding.id));
        let errors: Vec<_> = errors
            .map(|finding| LoadError {
                kind: LoadErrorKind::Judged,
                file: finding.file.into(),
                line: finding.line,
                resource: Some(finding.resource),
                field: finding.path,
                problem: format!("{} ({})", finding.message, finding.id),
            })
            .collect();
        if errors.is_empty() { Ok(()) } else { Err(LoadErrors(errors)) }
    }
}

/// What to do about errors, if they are of this kind.
pub(crate) fn tip(errors: &LoadErrors) -> Option<&'static str> {
    errors.0.iter().any(|error| error.kind == LoadErrorKind::Judged).then_some(TIP)
}

const TIP: &str = "`mainstay check --explain ID` says what a finding means and what to do about it; \
                   --no-check serves the files as they are";
