//! Name patterns of `[[rule]]`: `*` is any run of characters, `?` is any one, everything else is itself.

/// Whether the whole of `name` matches. Takes at most pattern × name steps, whatever the pattern.
pub fn matches(pattern: &str, name: &str) -> bool {
    let (pattern, name): (Vec<char>, Vec<char>) = (pattern.chars().collect(), name.chars().collect());
    let (mut p, mut n) = (0, 0);
    // The last star seen and how much of the name it has taken: on a mismatch it takes one more.
    let mut star: Option<(usize, usize)> = None;
    while n < name.len() {
        match pattern.get(p) {
            Some('*') => {
                star = Some((p, n));
                p += 1;
            }
            Some(&c) if c == '?' || c == name[n] => {
                p += 1;
                n += 1;
            }
            _ => match star {
                Some((at, taken)) => {
                    star = Some((at, taken + 1));
                    p = at + 1;
                    n = taken + 1;
                }
                None => return false,
            },
        }
    }
    pattern[p..].iter().all(|c| *c == '*')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stars_and_question_marks_mean_what_a_shell_means() {
        let yes = [
            ("*", ""),
            ("scratch-*", "scratch-7"),
            ("a?c", "abc"),
            ("*-db-*", "eu-db-1"),
            ("a*b*c", "aXbYbZc"),
            ("ü?", "üß"),
            ("[x]", "[x]"),
        ];
        let no =
            [("", "a"), ("scratch-*", "my-scratch-7"), ("a?c", "ac"), ("a*b", "abc"), ("web", "web-1"), ("Web", "web")];
        for (pattern, name) in yes {
            assert!(matches(pattern, name), "{pattern} {name}");
        }
        for (pattern, name) in no {
            assert!(!matches(pattern, name), "{pattern} {name}");
        }
    }

    #[test]
    fn a_hostile_pattern_costs_no_more_than_its_size() {
        assert!(!matches(&"*a".repeat(120), &"a".repeat(60).repeat(4).replace("aaaa", "aaab").replace('a', "b")));
    }
}
