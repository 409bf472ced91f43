//! What is wrong with a configuration file, as finished text: where, the source line with a caret, and the remedy.

use std::fmt;
use std::ops::Range;
use std::path::Path;

/// The longest source line shown, in characters; longer ones are cut around the caret.
const SHOWN: usize = 140;

/// Why a configuration cannot be used. Its Display is the whole diagnosis, several lines for a place in the file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConfigError(String);

impl ConfigError {
    /// About the file as a whole.
    pub(super) fn whole(sentence: String) -> Self {
        ConfigError(sentence)
    }
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for ConfigError {}

/// The file being read: every diagnosis is made from it.
#[derive(Clone, Copy)]
pub(super) struct Source<'a> {
    pub path: &'a Path,
    pub text: &'a str,
}

impl Source<'_> {
    /// `PATH:LINE:COLUMN: sentence`, then the line with a caret under the bytes of `span`.
    pub fn at(&self, span: Range<usize>, sentence: impl fmt::Display) -> ConfigError {
        let place = Place::of(self.text, span);
        let number = place.line.to_string();
        let gutter = " ".repeat(number.len());
        ConfigError(format!(
            "{}:{}:{}: {sentence}\n{gutter} |\n{number} | {}\n{gutter} | {}{}",
            self.path.display(),
            place.line,
            place.column,
            place.shown,
            place.indent,
            "^".repeat(place.carets),
        ))
    }

    /// As [`Source::at`], without the source line: it holds something that belongs in no log.
    pub fn at_hidden(&self, span: Range<usize>, sentence: impl fmt::Display) -> ConfigError {
        let place = Place::of(self.text, span);
        ConfigError(format!("{}:{}:{}: {sentence}", self.path.display(), place.line, place.column))
    }
}

/// Where a span is, counted in characters from 1, and what to print of its line.
struct Place {
    line: usize,
    column: usize,
    shown: String,
    indent: String,
    carets: usize,
}

impl Place {
    fn of(text: &str, span: Range<usize>) -> Place {
        let mut start = span.start.min(text.len());
        while !text.is_char_boundary(start) {
            start -= 1;
        }
        let line_start = text[..start].rfind('\n').map_or(0, |newline| newline + 1);
        let line = text[line_start..].lines().next().unwrap_or("");
        let before = text[line_start..start].chars().count();
        let end = span.end.clamp(start, line_start + line.len().max(start - line_start));
        let width = text.get(start..end).map_or(1, |marked| marked.chars().count()).max(1);
        // A long line is shown from a little before the caret on, so that the caret is always in sight.
        let from = if before + width.min(20) > SHOWN { before - SHOWN / 2 } else { 0 };
        let shown: String = line.chars().skip(from).take(SHOWN).map(printable).collect();
        let indent = line.chars().skip(from).take(before - from).map(|c| if c == '\t' { '\t' } else { ' ' }).collect();
        Place {
            line: text[..start].matches('\n').count() + 1,
            column: before + 1,
            shown,
            indent,
            carets: width.min(SHOWN.saturating_sub(before - from)).max(1),
        }
    }
}

/// Control characters of a file never reach a terminal; a tab does, for the caret's sake.
fn printable(c: char) -> char {
    if c.is_control() && c != '\t' { '\u{fffd}' } else { c }
}

/// The known word nearest to a mistyped one, if any is near enough to be meant.
pub(super) fn nearest<'k>(word: &str, known: impl IntoIterator<Item = &'k str>) -> Option<&'k str> {
    let near_enough = 1.max(word.chars().count() / 3);
    known
        .into_iter()
        .map(|candidate| (distance(word, candidate), candidate))
        .filter(|(distance, _)| *distance <= near_enough)
        .min_by_key(|(distance, _)| *distance)
        .map(|(_, candidate)| candidate)
}

/// The number of insertions, deletions, substitutions and swaps of neighbours between two words (optimal string
/// alignment). The words are keys: a longer one is cut, which keeps the table small.
fn distance(a: &str, b: &str) -> usize {
    let (a, b): (Vec<char>, Vec<char>) = (a.chars().take(64).collect(), b.chars().take(64).collect());
    let mut rows = vec![vec![0; b.len() + 1]; a.len() + 1];
    for (i, row) in rows.iter_mut().enumerate() {
        row[0] = i;
    }
    rows[0] = (0..=b.len()).collect();
    for i in 1..=a.len() {
        for j in 1..=b.len() {
            let change = usize::from(a[i - 1] != b[j - 1]);
            let mut best = (rows[i - 1][j] + 1).min(rows[i][j - 1] + 1).min(rows[i - 1][j - 1] + change);
            if i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] {
                best = best.min(rows[i - 2][j - 2] + 1);
            }
            rows[i][j] = best;
        }
    }
    rows[a.len()][b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mistyped_key_finds_the_one_meant_and_nonsense_finds_none() {
        let known = ["endpoints", "token_file", "ttl"];
        assert_eq!(nearest("endpoint", known), Some("endpoints"));
        assert_eq!(nearest("endpionts", known), Some("endpoints"), "a swap is one mistake");
        assert_eq!(nearest("tokenfile", known), Some("token_file"));
        assert_eq!(nearest("tlt", known), Some("ttl"));
        assert_eq!(nearest("colour", known), None);
    }

    #[test]
    fn the_caret_stands_under_the_characters_meant() {
        let text = "a = 1\n\tü = \"wrong\" # x\n";
        let source = Source { path: Path::new("f.toml"), text };
        let from = text.find('"').unwrap();
        let shown = source.at(from..from + 7, "no").to_string();
        assert_eq!(shown, "f.toml:2:6: no\n  |\n2 | \tü = \"wrong\" # x\n  | \t    ^^^^^^^");
    }

    #[test]
    fn any_span_of_any_text_is_shown_without_panic() {
        let long = format!("k = \"{}\"", "ß".repeat(5000));
        for text in ["", "\n", "ab", "ü\u{7}\r\nx", &long] {
            let source = Source { path: Path::new("f"), text };
            for start in 0..text.len() + 3 {
                for width in [0, 1, 7, 9000] {
                    let shown = source.at(start..start + width, "s").to_string();
                    assert!(shown.lines().count() == 4 && shown.lines().all(|line| line.chars().count() < 160));
                }
                if text.len() > 1000 && start > 400 {
                    break;
                }
            }
        }
    }
}
