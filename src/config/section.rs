//! One table of the file, read key by key, every refusal with its place.

use super::diagnosis::{ConfigError, Source, nearest};
use super::span;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::time::Duration;
use toml::Spanned;
use toml::de::{DeTable, DeValue};

/// Every table of the file and its keys. The reader, the suggestions and the reference in docs/operating.md (by a
/// test) follow this list.
pub const KEYS: &[(&str, &[&str])] = &[
    (
        "",
        &[
            "node",
            "mode",
            "profile",
            "run_dir",
            "state_dir",
            "lease",
            "unkillable",
            "watchdog",
            "contact",
            "claims",
            "lapse",
            "admission",
            "rule",
            "hook",
            "libvirt",
        ],
    ),
    ("lease", &["ttl", "renew", "polite", "drift_ppm", "margin"]),
    ("unkillable", &["action"]),
    ("watchdog", &["device", "identity", "timeout", "allow_softdog", "last_resort", "bound"]),
    ("contact", &["kind", "endpoints", "allow_plain_http", "token_file", "ca_file"]),
    ("claims", &["kind"]),
    ("lapse", &["action"]),
    ("admission", &["host_cached_disks"]),
    ("rule", &["name", "uuid", "lapse"]),
    ("hook", &["deadline"]),
    ("libvirt", &["uri", "run_dir", "hooks_dir"]),
];

/// A value and where it stands in the file.
pub(super) struct Placed<T> {
    pub value: T,
    pub at: Range<usize>,
}

/// A table whose keys are all known.
pub(super) struct Section<'a> {
    source: Source<'a>,
    name: &'static str,
    table: Option<&'a DeTable<'a>>,
    /// Where the table begins, for what is missing from it.
    at: Range<usize>,
}

type Read<T> = Result<T, ConfigError>;

impl<'a> Section<'a> {
    /// The file itself.
    pub fn root(source: Source<'a>, table: &'a DeTable<'a>) -> Read<Section<'a>> {
        Section { source, name: "", table: Some(table), at: 0..0 }.checked()
    }

    /// The table under `key`; one without any key if the file has none.
    pub fn table(&self, key: &'static str) -> Read<Section<'a>> {
        match self.get(key) {
            None => Ok(Section { source: self.source, name: key, table: None, at: 0..0 }),
            Some(found) => self.inner(key, found),
        }
    }

    /// The tables under `[[key]]`, at most `most`.
    pub fn tables(&self, key: &'static str, most: usize) -> Read<Vec<Section<'a>>> {
        let Some(found) = self.get(key) else { return Ok(Vec::new()) };
        let DeValue::Array(array) = found.get_ref() else {
            return Err(self
                .source
                .at(found.span(), format_args!("'{key}' is no list of tables; write [[{key}]] above each")));
        };
        if array.len() > most {
            return Err(self.source.at(found.span(), format_args!("more than {most} [[{key}]] tables")));
        }
        array.iter().map(|element| self.inner(key, element)).collect()
    }

    fn inner(&self, key: &'static str, found: &'a Spanned<DeValue<'a>>) -> Read<Section<'a>> {
        match found.get_ref() {
            DeValue::Table(table) => {
                Section { source: self.source, name: key, table: Some(table), at: found.span() }.checked()
            }
            other => Err(self.source.at(
                found.span(),
                format_args!("'{key}' is {} and must be a table; write [{key}] above its keys", kind(other)),
            )),
        }
    }

    /// Refuses the first unknown key: a misspelt safety setting must not look like one that is in force.
    fn checked(self) -> Read<Section<'a>> {
        let known = keys_of(self.name);
        let unknown = self.table.into_iter().flat_map(|table| table.keys());
        let first = unknown.filter(|key| !known.contains(&key.get_ref().as_ref())).min_by_key(|key| key.span().start);
        let Some(key) = first else { return Ok(self) };
        let word = key.get_ref().as_ref();
        let place = if self.name.is_empty() { String::new() } else { format!(" in [{}]", self.name) };
        let said = format!("unknown key '{}'{place}", word.escape_debug());
        if ["token", "password", "secret"].contains(&word) {
            let remedy = "keep the token in a file of mode 0600 and name it in [contact] token_file";
            return Err(self.source.at_hidden(key.span(), format_args!("{said}; {remedy}")));
        }
        let elsewhere = KEYS.iter().find(|(name, keys)| *name != self.name && keys.contains(&word));
        let remedy = match (nearest(word, known.iter().copied()), elsewhere) {
            (Some(meant), _) => format!("did you mean '{meant}'?"),
            (None, Some(("", _))) => "it belongs at the top of the file, before any [table]".to_owned(),
            (None, Some((name, _))) => format!("it belongs in [{name}]"),
            (None, None) => format!("known here: {}", known.join(", ")),
        };
        Err(self.source.at(key.span(), format_args!("{said}; {remedy}")))
    }

    fn get(&self, key: &'static str) -> Option<&'a Spanned<DeValue<'a>>> {
        debug_assert!(keys_of(self.name).contains(&key), "{key} is missing from KEYS");
        self.table?.get(key)
    }

    /// Whether the file has this table at all.
    pub fn is_present(&self) -> bool {
        self.table.is_some()
    }

    /// Where `key` stands, or the table's beginning.
    pub fn place(&self, key: &'static str) -> Option<Range<usize>> {
        self.get(key).map(Spanned::span)
    }

    /// A refusal of something in the file.
    pub fn refuse(&self, at: Range<usize>, sentence: impl std::fmt::Display) -> ConfigError {
        self.source.at(at, sentence)
    }

    /// A refusal for a key that must be there.
    pub fn missing(&self, key: &'static str, remedy: &str) -> ConfigError {
        let place = if self.name.is_empty() { String::new() } else { format!(" in [{}]", self.name) };
        self.source.at(self.at.clone(), format_args!("no '{key}'{place}; {remedy}"))
    }

    fn wrong<T>(&self, key: &str, found: &Spanned<DeValue<'_>>, wanted: &str) -> Read<T> {
        let kind = kind(found.get_ref());
        Err(self.source.at(found.span(), format_args!("'{key}' is {kind} and must be {wanted}")))
    }

    /// A string.
    pub fn string(&self, key: &'static str) -> Read<Option<Placed<String>>> {
        let Some(found) = self.get(key) else { return Ok(None) };
        match found.get_ref().as_str() {
            Some(text) => Ok(Some(Placed { value: text.to_owned(), at: found.span() })),
            None => self.wrong(key, found, &format!("a string: {key} = \"...\"")),
        }
    }

    /// A string that `parse` understands; its clause of refusal is shown at the value.
    pub fn parsed<T, E: std::fmt::Display>(
        &self,
        key: &'static str,
        parse: impl FnOnce(&str) -> Result<T, E>,
    ) -> Read<Option<Placed<T>>> {
        let Some(Placed { value, at }) = self.string(key)? else { return Ok(None) };
        match parse(&value) {
            Ok(value) => Ok(Some(Placed { value, at })),
            Err(why) => Err(self.refuse(at, format_args!("{key}: {why}"))),
        }
    }

    /// One of a few words.
    pub fn choice<T: Copy>(&self, key: &'static str, words: &[(&'static str, T)]) -> Read<Option<Placed<T>>> {
        self.parsed(key, |text| match words.iter().find(|(word, _)| *word == text) {
            Some((_, value)) => Ok(*value),
            None => {
                let list = words.iter().map(|(word, _)| format!("\"{word}\"")).collect::<Vec<_>>().join(" or ");
                Err(match nearest(text, words.iter().map(|(word, _)| *word)) {
                    Some(meant) => format!("'{}' is not {list}; did you mean \"{meant}\"?", text.escape_debug()),
                    None => format!("'{}' is not {list}", text.escape_debug()),
                })
            }
        })
    }

    /// A span of time.
    pub fn span(&self, key: &'static str) -> Read<Option<Duration>> {
        if let Some(found) = self.get(key)
            && let DeValue::Integer(number) = found.get_ref()
        {
            let remedy = format!("'{key}' has no unit; write {key} = \"{number}s\" or \"{number}ms\"");
            return Err(self.refuse(found.span(), remedy));
        }
        Ok(self.parsed(key, span::parse)?.map(|placed| placed.value))
    }

    /// An absolute path: a daemon's working directory is no place to look for files.
    pub fn path(&self, key: &'static str) -> Read<Option<PathBuf>> {
        let parse = |text: &str| {
            let good = Path::new(text).is_absolute() && !text.contains('\0') && text.len() < 4096;
            if good { Ok(PathBuf::from(text)) } else { Err(format!("'{}' is no absolute path", text.escape_debug())) }
        };
        Ok(self.parsed(key, parse)?.map(|placed| placed.value))
    }

    /// True or false.
    pub fn flag(&self, key: &'static str) -> Read<Option<bool>> {
        let Some(found) = self.get(key) else { return Ok(None) };
        match found.get_ref().as_bool() {
            Some(flag) => Ok(Some(flag)),
            None => self.wrong(key, found, "true or false, without quotes"),
        }
    }

    /// A whole number that fits.
    pub fn number(&self, key: &'static str) -> Read<Option<u32>> {
        let Some(found) = self.get(key) else { return Ok(None) };
        let number = found.get_ref().as_integer().and_then(|n| u32::from_str_radix(n.as_str(), n.radix()).ok());
        match number {
            Some(number) => Ok(Some(number)),
            None => self.wrong(key, found, "a whole number from 0 to 4294967295"),
        }
    }

    /// A list of strings.
    pub fn strings(&self, key: &'static str) -> Read<Option<Placed<Vec<Placed<String>>>>> {
        let Some(found) = self.get(key) else { return Ok(None) };
        let wanted = format!("a list of strings: {key} = [\"...\", \"...\"]");
        let DeValue::Array(array) = found.get_ref() else { return self.wrong(key, found, &wanted) };
        let mut value = Vec::new();
        for element in array.iter() {
            match element.get_ref().as_str() {
                Some(text) => value.push(Placed { value: text.to_owned(), at: element.span() }),
                None => return self.wrong(key, element, &wanted),
            }
        }
        Ok(Some(Placed { value, at: found.span() }))
    }
}

fn kind(value: &DeValue<'_>) -> String {
    let kind = value.type_str();
    format!("{} {kind}", if kind.starts_with(['a', 'i']) { "an" } else { "a" })
}

fn keys_of(section: &str) -> &'static [&'static str] {
    KEYS.iter().find(|(name, _)| *name == section).map_or(&[], |(_, keys)| keys)
}
