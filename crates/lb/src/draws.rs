//! Chance, once per RPC.

use mainstay_xds::Choose;

/// What chance said about an RPC, in the order in which it was asked.
///
/// An RPC that waits or is sent again is decided about more than once. If chance were asked each time, a share of 30 %
/// would become 66 % of the RPCs that are decided about three times; so what it said stands.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Draws {
    /// Inline, so that hardly any RPC needs a heap block for them.
    few: [Draw; FEW],
    more: Vec<Draw>,
}

/// One answer, and what it was asked: a number below `bound`. Not asked yet if that is zero.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Draw {
    bound: u64,
    drawn: u64,
}

/// Asks chance what it has not been asked yet.
pub(crate) struct Once<'a> {
    choose: &'a mut dyn Choose,
    draws: &'a mut Draws,
    /// Which question is next.
    next: usize,
}

impl Draws {
    /// For one decision, whose questions come in the same order as those of the decision before. One that is about
    /// something else by now, because the configuration changed, has another bound and is asked anew.
    pub(crate) fn once<'a>(&'a mut self, choose: &'a mut dyn Choose) -> Once<'a> {
        Once { choose, draws: self, next: 0 }
    }

    /// Forgets everything.
    pub(crate) fn clear(&mut self) {
        self.few = Default::default();
        self.more.clear();
    }

    fn draw_at(&mut self, at: usize) -> &mut Draw {
        if at < FEW {
            return &mut self.few[at];
        }
        if self.more.len() <= at - FEW {
            self.more.resize(at - FEW + 1, Draw::default());
        }
        &mut self.more[at - FEW]
    }
}

impl Choose for Once<'_> {
    fn choose(&mut self, bound: u64) -> u64 {
        let draw = self.draws.draw_at(self.next);
        self.next += 1;
        if draw.bound != bound {
            *draw = Draw { bound, drawn: self.choose.choose(bound) };
        }
        draw.drawn
    }
}

const FEW: usize = 2;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testbed::Script;

    #[test]
    fn what_was_drawn_stands() {
        let mut script = Script { draws: (1..).take(100).collect(), ..Default::default() };
        let mut draws = Draws::default();
        let mut ask = |bounds: &[u64]| -> Vec<u64> {
            let mut once = draws.once(&mut script);
            bounds.iter().map(|bound| once.choose(*bound)).collect()
        };
        assert_eq!(ask(&[10]), [1]);
        assert_eq!(ask(&[10, 20, 30, 40]), [1, 2, 3, 4], "what was not asked yet is asked now");
        assert_eq!(ask(&[10, 20, 30, 40]), [1, 2, 3, 4]);
        assert_eq!(ask(&[10, 21, 30]), [1, 5, 3], "another question");
        draws.clear();
        assert_eq!(draws, Draws::default());
    }
}
