//! RE2 patterns in the syntax of the `regex` crate.
//!
//! The two languages are close relatives, and both match in linear time. Where the same text means
//! something else in `regex` it is rewritten here: `\d`, `\s`, `\w` and `\b` are ASCII in RE2; a class
//! has no set operations and no nested classes; a brace that is no repetition is a literal; `\Q…\E`
//! quotes. What only `regex` knows, such as the flag `x`, is refused. The result has balanced
//! parentheses, so a caller may put it into a group.

use super::error::RegexError;

/// Translates a pattern; syntax errors that `regex` finds as well are left to it.
pub(super) fn translate(pattern: &str) -> Result<String, RegexError> {
    let mut scanner = Scanner { rest: pattern, out: String::with_capacity(pattern.len()) };
    scanner.pattern()?;
    Ok(scanner.out)
}

struct Scanner<'a> {
    rest: &'a str,
    out: String,
}

impl Scanner<'_> {
    fn pattern(&mut self) -> Result<(), RegexError> {
        let mut open_groups = 0_usize;
        let mut is_repeated = false;
        while let Some(c) = self.next() {
            let repeats = matches!(c, '*' | '+' | '?') || (c == '{' && self.at_repetition());
            if repeats && std::mem::replace(&mut is_repeated, true) {
                return Err(RegexError::Repetition);
            }
            is_repeated = repeats;
            match c {
                '\\' => self.escape()?,
                '[' => self.class()?,
                '(' => {
                    open_groups += 1;
                    self.group()?;
                }
                ')' => {
                    open_groups = open_groups.checked_sub(1).ok_or(RegexError::Parentheses)?;
                    self.out.push(')');
                }
                '{' if !repeats => self.out.push_str("\\{"),
                '{' => self.times()?,
                c => self.out.push(c),
            }
            // One question mark after a repetition makes it lazy. A second repetition has no meaning to RE2, and another one
            // to `regex`.
            if repeats && self.eat('?') {
                self.out.push('?');
            }
        }
        if open_groups == 0 { Ok(()) } else { Err(RegexError::Parentheses) }
    }

    /// After `(`: a name or flags are checked, since `regex` allows more of both.
    fn group(&mut self) -> Result<(), RegexError> {
        self.out.push('(');
        let Some(after) = self.rest.strip_prefix('?') else { return Ok(()) };
        if let Some(named) = after.strip_prefix("P<").or_else(|| after.strip_prefix('<')) {
            let name = named.split('>').next().unwrap_or_default();
            if name.is_empty() || !name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_') {
                return Err(RegexError::GroupName);
            }
            self.out.push_str("?P<");
            self.out.push_str(name);
            // The closing bracket is left to the main loop; `regex` demands it.
            self.rest = &named[name.len()..];
            return Ok(());
        }
        let flags = after.split([':', ')']).next().unwrap_or_default();
        match flags.chars().find(|flag| !"imsU-".contains(*flag)) {
            Some(flag) => Err(RegexError::Flag(flag)),
            None => Ok(()),
        }
    }

    /// After `\`, outside a class.
    fn escape(&mut self) -> Result<(), RegexError> {
        if let Some(quoted) = self.rest.strip_prefix('Q') {
            let (literal, rest) = quoted.split_once("\\E").unwrap_or((quoted, ""));
            self.out.push_str(&regex::escape(literal));
            self.rest = rest;
            return Ok(());
        }
        match self.next() {
            Some('b') => self.out.push_str(r"(?-u:\b)"),
            Some('B') => self.out.push_str(r"(?-u:\B)"),
            Some(anchor @ ('A' | 'z')) => self.out.extend(['\\', anchor]),
            Some(c) if c.is_ascii_punctuation() => self.out.push_str(&regex::escape(c.encode_utf8(&mut [0; 4]))),
            Some(c) => self.named_escape(c)?,
            None => return Err(RegexError::Escape('\\')),
        }
        Ok(())
    }

    /// The escapes that mean the same inside and outside of a class.
    fn named_escape(&mut self, c: char) -> Result<(), RegexError> {
        if let Some(class) = perl_class(c) {
            self.out.push_str(class);
            return Ok(());
        }
        match c {
            'a' | 'f' | 't' | 'n' | 'r' | 'v' => self.out.extend(['\\', c]),
            'p' | 'P' | 'x' => {
                self.out.extend(['\\', c]);
                if self.rest.starts_with('{') {
                    let end = self.rest.find('}').ok_or(RegexError::Escape(c))?;
                    let (braces, rest) = self.rest.split_at(end + 1);
                    self.out.push_str(braces);
                    self.rest = rest;
                }
            }
            // `regex` has more escapes and RE2 has octal ones; neither is worth guessing.
            c => return Err(RegexError::Escape(c)),
        }
        Ok(())
    }

    /// After `[`: up to and with the closing bracket.
    fn class(&mut self) -> Result<(), RegexError> {
        self.out.push('[');
        if self.eat('^') {
            self.out.push('^');
        }
        // A closing bracket in the first place is a literal.
        if self.rest.starts_with(']') {
            self.class_range()?;
        }
        loop {
            if self.eat(']') {
                self.out.push(']');
                return Ok(());
            }
            if self.rest.starts_with("[:") && self.posix_class()? {
                continue;
            }
            if let Some(class) = self.rest.strip_prefix('\\').and_then(|e| e.chars().next()).and_then(perl_class) {
                self.out.push_str(class);
                self.rest = &self.rest[2..];
                continue;
            }
            self.class_range()?;
        }
    }

    /// One character of a class, or a range of them.
    fn class_range(&mut self) -> Result<(), RegexError> {
        self.class_char()?;
        if self.rest.starts_with('-') && !self.rest.starts_with("-]") {
            self.eat('-');
            self.out.push('-');
            self.class_char()?;
        }
        Ok(())
    }

    fn class_char(&mut self) -> Result<(), RegexError> {
        match self.next().ok_or(RegexError::Class)? {
            '\\' => match self.next().ok_or(RegexError::Class)? {
                c if c.is_ascii_punctuation() => self.class_literal(c),
                c => self.named_escape(c)?,
            },
            c => self.class_literal(c),
        }
        Ok(())
    }

    fn class_literal(&mut self, c: char) {
        // These mean set operations to `regex`, alone or in pairs.
        if matches!(c, '\\' | '[' | ']' | '^' | '-' | '&' | '~') {
            self.out.push('\\');
        }
        self.out.push(c);
    }

    /// At `[:`: whether there was a POSIX class; otherwise the bracket is a literal.
    fn posix_class(&mut self) -> Result<bool, RegexError> {
        let negation = if self.rest.starts_with("[:^") { "^" } else { "" };
        let after = &self.rest[2 + negation.len()..];
        let (name, after) = split_where(after, |c| !c.is_ascii_lowercase());
        let Some(rest) = after.strip_prefix(":]") else { return Ok(false) };
        // `regex` would take an unknown name for a nested class.
        if !POSIX_CLASSES.contains(&name) {
            return Err(RegexError::Class);
        }
        self.out.extend(["[:", negation, name, ":]"]);
        self.rest = rest;
        Ok(true)
    }

    /// After `{`: whether a repetition such as `2}`, `2,}` or `2,3}` follows.
    fn at_repetition(&self) -> bool {
        let (least, after) = split_where(self.rest, |c| !c.is_ascii_digit());
        let after = match after.strip_prefix(',') {
            Some(most) => split_where(most, |c| !c.is_ascii_digit()).1,
            None => after,
        };
        !least.is_empty() && after.starts_with('}')
    }

    /// After `{` of a repetition: up to and with the closing brace. RE2 repeats nothing more than a thousand times.
    fn times(&mut self) -> Result<(), RegexError> {
        let (times, rest) = self.rest.split_once('}').ok_or(RegexError::Repetition)?;
        let is_many = |bound: &str| !bound.is_empty() && !bound.parse::<u32>().is_ok_and(|bound| bound <= 1_000);
        if times.split(',').any(is_many) {
            return Err(RegexError::Repetition);
        }
        self.out.extend(["{", times, "}"]);
        self.rest = rest;
        Ok(())
    }

    fn next(&mut self) -> Option<char> {
        let c = self.rest.chars().next()?;
        self.rest = &self.rest[c.len_utf8()..];
        Some(c)
    }

    fn eat(&mut self, c: char) -> bool {
        match self.rest.strip_prefix(c) {
            Some(rest) => {
                self.rest = rest;
                true
            }
            None => false,
        }
    }
}

/// Splits before the first character that `stop` accepts. Reads no further, so that scanning stays linear.
fn split_where(text: &str, stop: impl Fn(char) -> bool) -> (&str, &str) {
    text.split_at(text.find(stop).unwrap_or(text.len()))
}

/// The Perl classes, which RE2 limits to ASCII.
fn perl_class(c: char) -> Option<&'static str> {
    Some(match c {
        'd' => "[0-9]",
        'D' => "[^0-9]",
        's' => r"[\t\n\f\r ]",
        'S' => r"[^\t\n\f\r ]",
        'w' => "[0-9A-Za-z_]",
        'W' => "[^0-9A-Za-z_]",
        _ => return None,
    })
}

/// The names of POSIX classes.
const POSIX_CLASSES: [&str; 14] = [
    "alnum", "alpha", "ascii", "blank", "cntrl", "digit", "graph", "lower", "print", "punct", "space", "upper", "word",
    "xdigit",
];
