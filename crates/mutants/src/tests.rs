//! The tool itself: what it finds, and that what it writes is still Rust and still means the same.

use std::collections::BTreeMap;

use crate::copy;
use crate::find::find;
use crate::judge::Verdict;
use crate::mutant::Mutant;
use crate::page::{Reasons, page, summary};
use crate::rewrite::Rewritten;
use crate::sample;
use crate::table::{Row, Table};

/// A crate of its own in the copy.
#[path = "../switch/lib.rs"]
#[expect(unreachable_pub, reason = "there it is the root")]
mod switch;

/// What can be mutated in the body of a function, one line each.
fn found(body: &str) -> Vec<String> {
    let source = format!("fn f() -> u8 {{\n{body}\n}}");
    let mutants = find("a.rs", &source).expect("Rust");
    mutants.iter().map(|mutant| format!("{} {}", mutant.operator, mutant.what)).collect()
}

#[test]
fn comparisons_and_connectives_change_places() {
    assert_eq!(
        found("let x = a < b && c == d;"),
        [
            "comparison `a < b` with `<=` for `<`",
            "connective `a < b && c == d` with `||` for `&&`",
            "comparison `c == d` with `!=` for `==`",
        ]
    );
}

#[test]
fn a_condition_is_negated_once() {
    assert_eq!(found("if a.b() { c = d; }"), ["condition `a.b()` is negated", "skip `c = d;` is left out"]);
    assert_eq!(found("if a != b {}"), ["comparison `a != b` with `==` for `!=`"]);
    assert_eq!(found("if !a {}"), ["negation `!a` without `!`"]);
    assert_eq!(found("if a.is_some() {}"), ["method `a.is_some()` with `is_none` for `is_some`"]);
    assert_eq!(found("match a { _ if b => c, _ => d }"), ["condition `b` is negated"]);
}

#[test]
fn a_condition_that_binds_never_holds() {
    assert_eq!(
        found("if let Some(x) = a && x > b {}"),
        ["condition `let Some(x) = a && x > b` never holds", "comparison `x > b` with `>=` for `>`"]
    );
    assert_eq!(found("let Some(x) = a else { return b };"), ["nothing `a` becomes `None`"]);
}

#[test]
fn results_of_functions_are_answered_at_once() {
    let whats = |source: &str| find("a.rs", source).expect("Rust").into_iter().map(|m| m.what).collect::<Vec<_>>();
    assert_eq!(whats("impl A { fn f() -> bool { a } }"), ["answers `true`", "answers `false`"]);
    assert_eq!(whats("fn f() -> Option<u8> { a }"), ["answers `None`"]);
    assert_eq!(whats("fn f() -> bool { true }"), ["answers `false`", "`true` is negated"]);
}

#[test]
fn what_a_function_does_last_can_be_left_out() {
    let source = "fn f() { match a { B => c(), D => { e(); } } }";
    let whats: Vec<_> = find("a.rs", source).expect("Rust").into_iter().map(|m| m.what).collect();
    assert_eq!(whats, ["`c()` is left out", "`e();` is left out"]);
}

#[test]
fn numbers_and_constants_are_one_more() {
    assert_eq!(
        found("Duration::from_secs(15).min(LIMIT)"),
        [
            "method `Duration::from_secs(15).min(LIMIT)` with `max` for `min`",
            "number `15` becomes `16`",
            "number `LIMIT` is one more",
        ]
    );
}

#[test]
fn filters_let_all_through_and_sets_take_nothing() {
    assert_eq!(
        found("a.filter(|x| x.y()); b(c.insert(d));"),
        [
            "skip `a.filter(|x| x.y());` is left out",
            "always `x.y()` of `filter` is always true",
            "skip `b(c.insert(d));` is left out",
            "always `c.insert(d)` is true and inserts nothing",
        ]
    );
    assert_eq!(found("c.insert(d);"), ["skip `c.insert(d);` is left out"]);
}

#[test]
fn text_for_people_tests_constants_and_patterns_stay_as_they_are() {
    for source in [
        "impl fmt::Debug for A { fn fmt(&self) -> bool { a == b } }",
        "#[cfg(test)] mod tests { fn f() { a(); } }",
        "const A: u8 = 1 + 2;",
        "fn f() { match a { 1 | B => {} _ => {} } }",
        "fn f() { debug_assert!(a == b); }",
        "fn f() { a.shrink_to_fit(); }",
        "fn f(a: [u8; 4]) {}",
    ] {
        assert_eq!(find("a.rs", source).expect("Rust"), [], "{source}");
    }
}

/// Every mutant of our own sources at once is still Rust, and each place can be found again.
#[test]
fn what_is_written_can_be_read() {
    for source in [include_str!("find.rs"), include_str!("main.rs"), include_str!("judge.rs"), include_str!("page.rs")]
    {
        let mutants = find("a.rs", source).expect("Rust");
        assert!(mutants.len() > 20);
        let numbered: Vec<(u32, &Mutant)> = (0..).zip(&mutants).collect();
        let rewritten = Rewritten::new(source, &numbered);
        syn::parse_file(&rewritten.text).expect("still Rust");
        assert_eq!(rewritten.places.len(), mutants.len());
        for (number, place) in &rewritten.places {
            assert!(rewritten.text[place.clone()].contains(&format!("({number}")), "{number}");
            assert!(rewritten.around(place).contains(number));
        }
        assert_eq!(Rewritten::new(source, &[]).text, source);
    }
}

#[test]
fn mutants_within_each_other_are_written_within_each_other() {
    let source = "fn f() { if a && b == 1 { c(); } }";
    let mutants = find("a.rs", source).expect("Rust");
    let text = Rewritten::new(source, &(0..).zip(&mutants).collect::<Vec<_>>()).text;
    assert_eq!(
        text,
        "fn f() { if (::mutant::on(0) ^ ((if ::mutant::on(1) { a || b == 1 } else { a && \
         (::mutant::on(2) ^ (b == (if ::mutant::on(3) { 2 } else { 1 }))) }))) \
         { if !::mutant::on(4) { c(); } } }"
    );
}

#[test]
fn a_sample_has_of_each_file_its_share_and_is_the_same_each_time() {
    let source = |n| format!("fn f() {{ {} }}", (0..n).map(|n| format!("a{n}();")).collect::<String>());
    let mut all = find("large.rs", &source(300)).expect("Rust");
    all.extend(find("small.rs", &source(100)).expect("Rust"));
    let order = sample::order(&all, 7);
    assert_eq!(order, sample::order(&all, 7));
    assert_ne!(order, sample::order(&all, 8));
    let small = order[..40].iter().filter(|number| all[**number as usize].file == "small.rs").count();
    assert!((9..=11).contains(&small), "{small}");
}

#[test]
fn a_table_is_read_as_it_was_written() {
    let source = "fn f() { a(); a(); if b || c {} }";
    let mutants = find("a.rs", source).expect("Rust");
    let rows = mutants.iter().map(Row::new);
    let verdicts = [Verdict::Noticed("some::test".to_owned()), Verdict::Stuck, Verdict::Survived, Verdict::Unreached];
    let rows = rows.zip(verdicts).map(|(row, unit)| Row { unit, ..row }).collect();
    let table = Table { about: vec![("commit".to_owned(), "1".to_owned())], rows };
    assert_eq!(table.rows.len(), 4);
    assert_eq!(Table::read(&table.text()), table);
}

#[test]
fn the_page_counts_and_gives_reasons() {
    let row = |what: &str, unit: &str, sim: &str| Row {
        file: "crates/lb/src/a.rs".to_owned(),
        line: 1,
        operator: "skip".to_owned(),
        what: what.to_owned(),
        unit: unit.into(),
        sim: sim.into(),
    };
    let rows = vec![
        row("one", "noticed: t", "noticed: Traffic"),
        row("two", "survived", "survived"),
        row("three", "noticed: t", "not reached"),
        row("four", "survived", "survived"),
    ];
    let table = Table { about: Vec::new(), rows };
    let reasons = Reasons::read(
        "crates/lb/src/a.rs two\n    equivalent: a second\n    time changes nothing\n# c\n\ncrates/lb/src/a.rs *\n  no such world\nx\n y\n",
    );
    let text = page(std::slice::from_ref(&table), &reasons);
    assert!(text.contains("| **all** | 4 | 2 (50.0 %) | 1 (25.0 %) | 2 (50.0 %) |"), "{text}");
    assert!(text.contains("| without the equivalent ones | 3 | 2 (66.7 %) | 1 (33.3 %) | 2 (66.7 %) |"), "{text}");
    assert!(text.contains("two\n  equivalent: a second time changes nothing"), "{text}");
    assert!(text.contains("three (the simulator does not come by)\n  no such world"), "{text}");
    assert_eq!(reasons.unused(std::slice::from_ref(&table)), ["x"]);
    // Who was not asked has let nothing pass.
    let half = Table { about: Vec::new(), rows: vec![row("five", "-", "survived")] };
    let text = page(&[table.clone(), half], &reasons);
    assert_eq!(text.matches("\n## A sample\n").count(), 2, "{text}");
    let half = text.rsplit("\n## A sample\n").next().expect("a part");
    let (both, alone) = half.split_once("## Survivors of the simulator").expect("a list");
    assert!(!both.contains("five") && alone.contains("five"), "{text}");
    assert!(summary(&table, &reasons).starts_with("all: 4 mutants"));
}

#[test]
fn constants_are_off_by_one_in_their_own_unit() {
    use switch::More;
    assert_eq!(7_u32.more(), 8);
    assert_eq!(u8::MAX.more(), 254);
    assert_eq!(std::time::Duration::from_secs(2).more(), std::time::Duration::from_secs(3));
    assert_eq!(std::time::Duration::from_millis(2).more(), std::time::Duration::from_millis(3));
    // Without a variable of the environment none is on.
    assert!(!switch::on(1));
    assert_eq!(switch::more(1, 5_u64), 5);
}

/// The tool must not look for its files in vain after something was moved.
#[test]
fn the_cores_have_mutants() {
    let root = crate::root().expect("run by cargo");
    let all = crate::sources(&root).expect("the sources of the cores");
    let mut rooms: BTreeMap<&str, usize> = BTreeMap::new();
    for mutant in &all {
        let room = crate::MUTATED.into_iter().find(|room| mutant.file.starts_with(room)).expect("a known room");
        *rooms.entry(room).or_default() += 1;
        assert!(!crate::is_test(&mutant.file), "{}", mutant.file);
    }
    // Listeners are a small room, and the file beside the folder of servers is smaller still.
    let least = |room: &str| match room {
        "crates/xds/src/resource/listener" => 100,
        "crates/xds/src/serve.rs" => 50,
        _ => 150,
    };
    let is_full = rooms.iter().all(|(room, count)| *count > least(room));
    assert!(rooms.len() == crate::MUTATED.len() && is_full, "{rooms:?}");
    let keys: std::collections::BTreeSet<String> = all.iter().map(Mutant::key).collect();
    assert_eq!(keys.len(), all.len(), "keys are names");
    assert!(copy::files(&root.join("crates/mutants")).expect("readable").len() > 5);
}
