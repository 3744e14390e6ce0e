//! How a mirror is doing, for those who look (FB-18).

use std::time::Duration;

use serde::Serialize;

/// One class.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct ClassStatus {
    /// Its name.
    pub class: String,
    /// Whether everything that the configuration lists for it was complete once.
    pub ready: bool,
    /// How many resources are in force.
    pub resources: usize,
    /// For how many seconds what is in force is not known to be what the primary says; 0 if it is.
    pub age_s: u64,
    /// Whether the primary answers.
    pub primary_reachable: bool,
    /// Since how many seconds it does not.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub unreachable_for_s: Option<u64>,
    /// Why it does not.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub unreachable_because: Option<String>,
    /// What is followed.
    pub targets: Vec<TargetStatus>,
    /// What is held back.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub held: Option<HeldStatus>,
}

/// One target of a class.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct TargetStatus {
    /// Its name.
    pub target: String,
    /// Whether a complete configuration of it came.
    pub complete: bool,
    /// Why what the primary says now is not complete, if it is not.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub problem: Option<String>,
}

/// An update that is held back.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct HeldStatus {
    /// Why, for people.
    pub because: Vec<String>,
    /// Since how many seconds.
    pub for_s: u64,
    /// In how many seconds it passes; absent if it was refused.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub passes_in_s: Option<u64>,
    /// Whether it was refused.
    pub refused: bool,
}

pub(crate) fn seconds(span: Duration) -> u64 {
    span.as_secs()
}
