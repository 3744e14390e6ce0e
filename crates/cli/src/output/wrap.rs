//! Lines that are longer than the terminal is wide.

/// Breaks a line between words, so that what follows stands below its beginning: under the branch of a tree that it belongs to,
/// or a little further in than a line without one. A word is never broken, so that what is copied is what was written.
pub(super) fn line(text: &str, width: usize) -> String {
    let pieces = pieces(text);
    if columns(&pieces) <= width {
        return text.to_owned();
    }
    let (first, rest) = indents(text);
    let mut lines = vec![String::new()];
    let (mut at, mut start) = (0, first);
    for word in words(&pieces) {
        let wide = columns(&word);
        let is_word = |piece: &&Piece<'_>| matches!(piece, Piece::Letter(letter) if *letter != ' ');
        let before = word.iter().take_while(|piece| !is_word(piece));
        let spaces = before.filter(|piece| **piece == Piece::Letter(' ')).count();
        // Only what is behind the indentation can go on in the next line.
        if at > start && at + wide > width {
            lines.push(rest.clone());
            (at, start) = (rest.chars().count(), rest.chars().count());
            if let Some(line) = lines.last_mut() {
                // The blanks before it were between words.
                write(line, &without(&word, spaces));
            }
            at += wide - spaces;
        } else if let Some(line) = lines.last_mut() {
            write(line, &word);
            at += wide;
        }
    }
    lines.join("\n")
}

/// A letter, or a sequence that takes no room.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Piece<'t> {
    Letter(char),
    Style(&'t str),
}

fn pieces(text: &str) -> Vec<Piece<'_>> {
    let (mut rest, mut pieces) = (text, Vec::new());
    while let Some(letter) = rest.chars().next() {
        let length = match rest.strip_prefix("\x1b[") {
            Some(style) => style.find(|part: char| part.is_ascii_alphabetic()).map_or(rest.len(), |end| end + 3),
            None => 0,
        };
        match length {
            0 => {
                pieces.push(Piece::Letter(letter));
                rest = &rest[letter.len_utf8()..];
            }
            length => {
                pieces.push(Piece::Style(&rest[..length]));
                rest = &rest[length..];
            }
        }
    }
    pieces
}

fn columns(pieces: &[Piece<'_>]) -> usize {
    pieces.iter().filter(|piece| matches!(piece, Piece::Letter(_))).count()
}

/// Words, each with the blanks before it.
fn words<'t>(pieces: &[Piece<'t>]) -> Vec<Vec<Piece<'t>>> {
    let mut words: Vec<Vec<Piece<'t>>> = vec![Vec::new()];
    let mut in_word = false;
    for piece in pieces {
        let is_blank = *piece == Piece::Letter(' ');
        if is_blank && in_word {
            words.push(Vec::new());
            in_word = false;
        }
        in_word |= matches!(piece, Piece::Letter(letter) if *letter != ' ');
        if let Some(word) = words.last_mut() {
            word.push(*piece);
        }
    }
    words
}

/// A word without that many blanks.
fn without<'t>(word: &[Piece<'t>], mut blanks: usize) -> Vec<Piece<'t>> {
    let is_kept = |piece: &&Piece<'t>| {
        let is_dropped = blanks > 0 && **piece == Piece::Letter(' ');
        blanks -= usize::from(is_dropped);
        !is_dropped
    };
    word.iter().filter(is_kept).copied().collect()
}

fn write(line: &mut String, word: &[Piece<'_>]) {
    for piece in word {
        match piece {
            Piece::Letter(letter) => line.push(*letter),
            Piece::Style(style) => line.push_str(style),
        }
    }
}

/// How far in a line begins, and what its next lines begin with.
fn indents(text: &str) -> (usize, String) {
    let plain = anstream::adapter::strip_str(text).to_string();
    let branch: String = plain.chars().take_while(|letter| " │├└─".contains(*letter)).collect();
    let below = branch.chars().map(|letter| match letter {
        '│' | '├' => '│',
        _ => ' ',
    });
    let is_tree = branch.contains(['│', '├', '└']);
    let rest = below.chain(if is_tree { "  ".chars() } else { "    ".chars() }).collect();
    (branch.chars().count(), rest)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_go_on_below_their_beginning() {
        assert_eq!(line("a short one", 20), "a short one");
        assert_eq!(
            line("endpoints  round_robin over 127.0.0.1:1", 20),
            "endpoints\n    round_robin over\n    127.0.0.1:1"
        );
        let tree = "│  ├─ routes r  version 1, 3s old, from primary:443";
        assert_eq!(line(tree, 28), "│  ├─ routes r  version 1,\n│  │    3s old, from\n│  │    primary:443");
        assert_eq!(line("   └─ cluster c EDS", 14), "   └─ cluster\n        c EDS");
    }

    #[test]
    fn a_word_is_never_broken() {
        let name = "xdstp://authority/envoy.config.cluster.v3.Cluster/backends";
        assert_eq!(line(name, 10), name);
        assert_eq!(line(&format!("  {name} ready"), 10), format!("  {name}\n      ready"));
    }

    #[test]
    fn colours_take_no_room_and_go_on() {
        let (dim, end) = ("\x1b[2m", "\x1b[0m");
        assert_eq!(line(&format!("{dim}twelve three{end}"), 12), format!("{dim}twelve three{end}"));
        assert_eq!(line(&format!("{dim}twelve three{end}"), 11), format!("{dim}twelve\n    three{end}"));
    }

    #[test]
    fn no_line_is_longer_than_the_terminal_if_its_words_allow_it() {
        let text = "│  │  └─ one two three  four five, six seven eight nine ten eleven twelve";
        for width in 20..80 {
            assert!(
                line(text, width).lines().all(|line| line.chars().count() <= width),
                "{width}: {}",
                line(text, width)
            );
        }
    }
}
