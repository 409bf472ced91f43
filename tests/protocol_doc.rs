//! The examples of docs/protocol.md are what the program speaks, and docs/openapi.yaml knows every field of them.

use leasehold::protocol::*;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use std::collections::BTreeSet;

const PROTOCOL: &str = include_str!("../docs/protocol.md");
const OPENAPI: &str = include_str!("../docs/openapi.yaml");

/// The type named by a fence and the JSON in it.
fn examples() -> Vec<(String, Value)> {
    let mut found = Vec::new();
    let mut lines = PROTOCOL.lines();
    while let Some(line) = lines.next() {
        if let Some(name) = line.strip_prefix("```json ") {
            let text: Vec<&str> = lines.by_ref().take_while(|line| *line != "```").collect();
            let value = serde_json::from_str(&text.join("\n")).unwrap_or_else(|e| panic!("{name}: {e}"));
            found.push((name.to_owned(), value));
        }
    }
    found
}

fn spoken<T: DeserializeOwned + Serialize>(example: &Value) -> Value {
    serde_json::to_value(serde_json::from_value::<T>(example.clone()).unwrap()).unwrap()
}

/// Every field of the example is one the program knows, with the value it has there.
fn within(example: &Value, spoken: &Value, place: &str) {
    match (example, spoken) {
        (Value::Object(fields), Value::Object(known)) => {
            for (key, value) in fields {
                let known = known.get(key).unwrap_or_else(|| panic!("{place}.{key} is not a field"));
                within(value, known, &format!("{place}.{key}"));
            }
        }
        (Value::Array(items), Value::Array(known)) => {
            assert_eq!(items.len(), known.len(), "{place}");
            items.iter().zip(known).for_each(|(item, known)| within(item, known, place));
        }
        _ => assert_eq!(example, spoken, "{place}"),
    }
}

#[test]
fn every_example_is_what_the_program_speaks() {
    let mut names = BTreeSet::new();
    for (name, example) in examples() {
        let spoken = match name.as_str() {
            "ErrorAnswer" => spoken::<ErrorAnswer>(&example),
            "RenewRequest" => spoken::<RenewRequest>(&example),
            "RenewAnswer" => spoken::<RenewAnswer>(&example),
            "WatchAnswer" => spoken::<WatchAnswer>(&example),
            "GrantRequest" => spoken::<GrantRequest>(&example),
            "MoveRequest" => spoken::<MoveRequest>(&example),
            "LeaseView" => spoken::<LeaseView>(&example),
            "LeaseList" => spoken::<LeaseList>(&example),
            "WaitAnswer" => spoken::<WaitAnswer>(&example),
            "NodeList" => spoken::<NodeList>(&example),
            other => panic!("no type is named {other}"),
        };
        within(&example, &spoken, &name);
        names.insert(name);
    }
    assert_eq!(names.len(), 10, "{names:?}");
}

#[test]
fn the_machine_readable_description_knows_every_field_and_every_endpoint() {
    fn fields(value: &Value, into: &mut BTreeSet<String>) {
        match value {
            Value::Object(object) => object.iter().for_each(|(key, value)| {
                into.insert(key.clone());
                fields(value, into);
            }),
            Value::Array(items) => items.iter().for_each(|item| fields(item, into)),
            _ => {}
        }
    }
    let mut all = BTreeSet::new();
    examples().iter().for_each(|(_, example)| fields(example, &mut all));
    for field in all {
        assert!(OPENAPI.contains(&format!(" {field}: ")) || OPENAPI.contains(&format!(" {field}:\n")), "{field}");
    }
    for line in PROTOCOL.lines().filter(|line| line.starts_with("| `") || line.starts_with("### ")) {
        for words in line.split('`').flat_map(|part| part.split("### ")) {
            let mut words = words.split(' ');
            if let (Some("GET" | "POST" | "DELETE"), Some(path)) = (words.next(), words.next()) {
                let path = path.split('?').next().unwrap();
                assert!(OPENAPI.contains(&format!("  {path}:\n")), "{path}");
            }
        }
    }
}
