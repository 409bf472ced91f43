//! Lines of a script as phrases: one table of patterns reads them, says what is allowed where one does not fit, and
//! writes them out again.

use super::when;
use std::fmt::Write;
use std::time::Duration;

/// A machine of the scenario, by its place in the `nodes` line.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct HostIx(pub usize);

/// A domain of the scenario, by its place among the `domain` lines.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct DomainIx(pub usize);

/// The most machines, and the most domains, of one scenario.
pub const MOST: usize = 200;

/// Everybody's name.
#[derive(Debug, Clone, Default)]
pub struct Names {
    /// Of the machines.
    pub hosts: Vec<String>,
    /// Of the domains.
    pub domains: Vec<String>,
}

/// What one kind of line can be: a verb and its pattern. Capital words stand for what varies: `HOST`, `HOSTS`, `DOMAIN`,
/// `DOMAINS`, `NAMES`, `SPAN`, `TIME`, `NUMBER`, `"TEXT"`.
pub type Table<V> = [(V, &'static str)];

/// One line's meaning.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Phrase<V> {
    /// What it says.
    pub verb: V,
    /// The machines named.
    pub hosts: Vec<HostIx>,
    /// The domains named.
    pub domains: Vec<DomainIx>,
    /// A span, or a time after T.
    pub span: Duration,
    /// A number.
    pub number: u64,
    /// Text in quotes, or new names.
    pub text: String,
}

impl<V: Copy + PartialEq> Phrase<V> {
    /// A phrase with nothing filled in.
    pub fn new(verb: V) -> Phrase<V> {
        let (hosts, domains, text) = (vec![], vec![], String::new());
        Phrase { verb, hosts, domains, span: Duration::ZERO, number: 0, text }
    }

    /// Reads a phrase.
    ///
    /// # Errors
    /// A sentence: the word that is wrong, or the phrases that begin alike.
    pub fn parse(line: &str, table: &Table<V>, names: &Names) -> Result<Phrase<V>, String> {
        let words: Vec<&str> = words(line);
        let mut best: (usize, Option<String>) = (0, None);
        for &(verb, pattern) in table {
            let mut phrase = Phrase::new(verb);
            match phrase.fit(pattern, &words, names) {
                Ok(()) => return Ok(phrase),
                Err((depth, why)) if depth > best.0 || (depth == best.0 && best.1.is_none()) => best = (depth, why),
                Err(_) => {}
            }
        }
        if let (_, Some(why)) = best {
            return Err(why);
        }
        let alike = |pattern: &&str| words.first().is_some_and(|first| pattern.split(' ').next() == Some(first));
        let patterns = || table.iter().map(|&(_, pattern)| pattern);
        let some: Vec<&str> = if patterns().any(|pattern| alike(&pattern)) {
            patterns().filter(alike).collect()
        } else {
            patterns().collect()
        };
        Err(format!("'{}' is not understood; allowed is: {}", line.trim().escape_debug(), some.join(" | ")))
    }

    /// How deep it fits, and why not deeper if that is a name or a value.
    fn fit(&mut self, pattern: &str, words: &[&str], names: &Names) -> Result<(), (usize, Option<String>)> {
        let mut rest = words;
        for (depth, part) in pattern.split(' ').enumerate() {
            let Some((&word, tail)) = rest.split_first() else { return Err((depth, None)) };
            let wrong = |why| (depth, Some(why));
            match part {
                "HOST" | "HOSTS" => {
                    let named = find(word, &names.hosts, "machine").map_err(wrong)?;
                    if part == "HOST" && named.len() > 1 {
                        return Err(wrong(format!("'{word}' is more than one machine, and one is wanted here")));
                    }
                    self.hosts.extend(named.into_iter().map(HostIx));
                }
                "DOMAINS" => {
                    let named = find(word, &names.domains, "domain").map_err(wrong)?;
                    self.domains.extend(named.into_iter().map(DomainIx));
                }
                "SPAN" => self.span = when::span(word).map_err(wrong)?,
                "TIME" => self.span = when::after_t(word).map_err(wrong)?,
                "NUMBER" => {
                    let no = |_| wrong(format!("'{}' is no whole number", word.escape_debug()));
                    self.number = word.parse().map_err(no)?;
                }
                "NAMES" | "\"TEXT\"" => self.text = word.trim_matches('"').to_owned(),
                fixed if fixed == word => {}
                _ => return Err((depth, None)),
            }
            rest = tail;
        }
        if rest.is_empty() { Ok(()) } else { Err((pattern.split(' ').count(), None)) }
    }

    /// The line that reads as this phrase.
    pub fn show(&self, table: &Table<V>, names: &Names) -> String {
        let Some((_, pattern)) = table.iter().find(|(verb, _)| *verb == self.verb) else { return String::new() };
        let hosts: Vec<&str> = self.hosts.iter().map(|&HostIx(at)| names.hosts[at].as_str()).collect();
        let domains: Vec<&str> = self.domains.iter().map(|&DomainIx(at)| names.domains[at].as_str()).collect();
        let (mut each, mut line) = (hosts.iter(), String::new());
        for part in pattern.split(' ') {
            let _ = match part {
                "HOST" => write!(line, " {}", each.next().unwrap_or(&"")),
                "HOSTS" => write!(line, " {}", gather(each.as_slice())),
                "DOMAINS" => write!(line, " {}", gather(&domains)),
                "SPAN" => write!(line, " {}", when::show(self.span)),
                "TIME" => write!(line, " T+{}", when::show(self.span)),
                "NUMBER" => write!(line, " {}", self.number),
                "NAMES" => write!(line, " {}", self.text),
                "\"TEXT\"" => write!(line, " \"{}\"", self.text),
                fixed => write!(line, " {fixed}"),
            };
        }
        line.split_off(1)
    }
}

/// Words between blanks; a text in quotes is one.
fn words(line: &str) -> Vec<&str> {
    let mut words = Vec::new();
    let mut rest = line.trim();
    while !rest.is_empty() {
        let end = match rest.strip_prefix('"').and_then(|quoted| quoted.find('"')) {
            Some(close) => close + 2,
            None => rest.find(char::is_whitespace).unwrap_or(rest.len()),
        };
        let (word, tail) = rest.split_at(end);
        words.push(word);
        rest = tail.trim_start();
    }
    words
}

fn find(word: &str, names: &[String], what: &str) -> Result<Vec<usize>, String> {
    if word == "all" {
        return Ok((0..names.len()).collect());
    }
    let place = |name: String| {
        names.iter().position(|known| *known == name).ok_or_else(|| {
            let some: Vec<&str> = names.iter().take(8).map(String::as_str).collect();
            format!("'{}' is no {what} of this scenario (there are: {})", name.escape_debug(), some.join(", "))
        })
    };
    spread(word)?.into_iter().map(place).collect()
}

/// The opposite of [`spread`]: runs of three and more become ranges.
fn gather(names: &[&str]) -> String {
    let split = |name: &str| {
        let stem = name.trim_end_matches(|c: char| c.is_ascii_digit()).len();
        Some((name[..stem].to_owned(), name[stem..].parse::<usize>().ok()?))
    };
    let follows = |one: &str, next: &str| {
        let pair = split(one).zip(split(next));
        pair.is_some_and(|((stem, number), (other, after))| stem == other && after == number + 1)
    };
    let mut parts: Vec<String> = Vec::new();
    let mut rest = names;
    while let Some(&first) = rest.first() {
        let run = 1 + rest.windows(2).take_while(|pair| follows(pair[0], pair[1])).count();
        let (taken, left) = rest.split_at(if run > 2 { run } else { 1 });
        parts.push(if run > 2 { format!("{first}..{}", taken[run - 1]) } else { first.to_owned() });
        rest = left;
    }
    parts.join(",")
}

/// `n1,n2` and `n1..n50` as single names.
///
/// # Errors
/// A range that is none, or too much at once.
pub fn spread(word: &str) -> Result<Vec<String>, String> {
    let mut all = Vec::new();
    for part in word.split(',') {
        match part.split_once("..") {
            None => all.push(part.to_owned()),
            Some((first, last)) => {
                let stem = first.trim_end_matches(|c: char| c.is_ascii_digit());
                let number = |name: &str| name.strip_prefix(stem)?.parse::<usize>().ok();
                let wrong = || format!("'{}' is no range; write it like n1..n20", part.escape_debug());
                let (from, to) = number(first).zip(number(last)).ok_or_else(wrong)?;
                if from > to {
                    return Err(wrong());
                }
                all.extend((from..=to).take(MOST + 1).map(|number| format!("{stem}{number}")));
            }
        }
        if all.len() > MOST {
            return Err(format!("'{}' is more than {MOST} names", word.escape_debug()));
        }
    }
    Ok(all)
}
