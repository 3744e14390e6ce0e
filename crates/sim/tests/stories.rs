//! Outages that are written down event by event.

use mainstay_sim::STORIES;

#[test]
fn every_story_ends_well() {
    let failed: Vec<String> = (STORIES.iter())
        .filter_map(|(name, tell)| tell().err().map(|violation| format!("{name}: {violation}")))
        .collect();
    assert!(failed.is_empty(), "{}", failed.join("\n"));
}
