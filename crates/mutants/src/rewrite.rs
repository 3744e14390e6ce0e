//! Writes mutants into a source text.

use std::ops::Range;

use crate::mutant::Mutant;

/// A source text with mutants in it.
pub(crate) struct Rewritten {
    pub(crate) text: String,
    /// Where each mutant is in the new text, by number.
    pub(crate) places: Vec<(u32, Range<usize>)>,
}

impl Rewritten {
    /// Writes mutants, each with its number, around their places. Places lie within each other or apart.
    pub(crate) fn new(source: &str, mutants: &[(u32, &Mutant)]) -> Self {
        let mut sorted: Vec<_> = mutants.iter().collect();
        sorted.sort_by_key(|(number, mutant)| (mutant.range.start, usize::MAX - mutant.range.end, *number));
        let mut this = Self { text: String::with_capacity(2 * source.len()), places: Vec::new() };
        let mut open: Vec<Open> = Vec::new();
        let mut at = 0;
        for (number, mutant) in sorted {
            while let Some(inner) = open.pop_if(|inner| inner.end <= mutant.range.start) {
                this.close(source, &mut at, inner);
            }
            this.copy(source, &mut at, mutant.range.start);
            let (before, after) = mutant.wrap.texts(*number);
            open.push(Open { number: *number, start: this.text.len(), end: mutant.range.end, after });
            this.text.push_str(&before);
        }
        while let Some(inner) = open.pop() {
            this.close(source, &mut at, inner);
        }
        this.copy(source, &mut at, source.len());
        this
    }

    /// The mutants around a place of the new text, the innermost first.
    pub(crate) fn around(&self, place: &Range<usize>) -> Vec<u32> {
        let holds = |outer: &Range<usize>| outer.start <= place.start && place.end <= outer.end;
        let mut found: Vec<_> = self.places.iter().filter(|(_, outer)| holds(outer)).collect();
        found.sort_by_key(|(_, outer)| outer.len());
        found.into_iter().map(|(number, _)| *number).collect()
    }

    fn close(&mut self, source: &str, at: &mut usize, inner: Open) {
        self.copy(source, at, inner.end);
        self.text.push_str(&inner.after);
        self.places.push((inner.number, inner.start..self.text.len()));
    }

    fn copy(&mut self, source: &str, at: &mut usize, end: usize) {
        self.text.push_str(&source[*at..end]);
        *at = end;
    }
}

/// A mutant whose end is still to come.
struct Open {
    number: u32,
    start: usize,
    end: usize,
    after: String,
}
