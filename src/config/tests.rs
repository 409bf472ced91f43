//! What the file may say, and what is said to whoever gets it wrong.

use super::*;
use proptest::prelude::*;

const SMALLEST: &str = "[contact]\nendpoints = [\"https://10.0.0.5:7470\"]\n";

fn parse(text: &str) -> Result<Config, String> {
    Config::parse(text, Path::new("l.toml"), || Some("n1.example.org".to_owned())).map_err(|error| error.to_string())
}

/// The diagnosis of the smallest good file with `text` in front.
fn said(text: &str) -> String {
    parse(&format!("{text}\n{SMALLEST}")).expect_err(text)
}

#[test]
fn the_smallest_file_names_an_endpoint_and_everything_else_has_a_default() {
    let config = parse(SMALLEST).unwrap();
    assert_eq!(config.node.as_str(), "n1.example.org", "the host's name");
    assert_eq!(config.mode, Mode::Enforce);
    assert_eq!(config.timing, Timing::profile(Profile::Default));
    assert_eq!(config.watchdog.device, Device::None);
    assert_eq!(config.lapse, Lapse::Kill);
    assert_eq!(config.host_cached_disks, HostCachedDisks::Warn);
    assert_eq!(config.hook_deadline, Duration::from_secs(3));
    assert_eq!(config.libvirt.uri, "qemu:///system");
    assert_eq!(config.run_dir, Path::new("/run/leasehold"));
    assert_eq!(config.state_dir, Path::new("/var/lib/leasehold"));
}

#[test]
fn every_key_can_be_set() {
    let config = parse(
        r#"
        node = "n7"
        mode = "observe"
        profile = "fast"
        run_dir = "/tmp/run"
        state_dir = "/tmp/state"
        [lease]
        ttl = "20s"
        renew = "2s"
        polite = "500ms"
        drift_ppm = 1_000
        margin = "2s"
        [watchdog]
        device = "/dev/watchdog1"
        timeout = "15s"
        [contact]
        kind = "native"
        endpoints = ["http://10.0.0.5:7470", "https://[fd00::1]:7470"]
        allow_plain_http = true
        token_file = "/etc/leasehold/token"
        ca_file = "/etc/leasehold/ca.pem"
        [claims]
        kind = "native"
        [lapse]
        action = "hold"
        [[rule]]
        name = "web-*"
        lapse = "kill"
        [[rule]]
        uuid = "fc3be091-56d3-4c69-8adb-2fdb8b0a35d2"
        lapse = "kill"
        [admission]
        host_cached_disks = "refuse"
        [hook]
        deadline = "200ms"
        [libvirt]
        uri = "qemu+unix:///system"
        run_dir = "/tmp/libvirt/qemu"
        hooks_dir = "/tmp/hooks"
        "#,
    )
    .unwrap();
    let ms = Duration::from_millis;
    assert_eq!(config.profile, Profile::Fast);
    assert_eq!(
        config.timing,
        Timing {
            ttl: ms(20_000),
            renew: ms(2000),
            polite: ms(500),
            watchdog: ms(15_000),
            drift_ppm: 1000,
            margin: ms(2000)
        }
    );
    assert_eq!(config.watchdog.device, Device::Path("/dev/watchdog1".into()));
    assert_eq!(config.contact.endpoints.len(), 2);
    assert_eq!(config.contact.token_file.as_deref(), Some(Path::new("/etc/leasehold/token")));
    assert_eq!(config.rules.len(), 2);
    assert_eq!(config.host_cached_disks, HostCachedDisks::Refuse);
    assert_eq!(config.libvirt.hooks_dir, Path::new("/tmp/hooks"));
}

#[test]
fn the_first_rule_that_matches_wins() {
    let text = "[lapse]\naction = 'kill'\n[[rule]]\nname = 'a-1'\nlapse = 'kill'\n[[rule]]\nname = 'a-*'\nlapse = 'hold'\n\
                [[rule]]\nname = 'b'\nuuid = 'fc3be091-56d3-4c69-8adb-2fdb8b0a35d2'\nlapse = 'hold'\n";
    let policy = parse(&format!("{text}{SMALLEST}")).unwrap().policy();
    let (x, y) = (DomainId::from_bytes([1; 16]), "fc3be091-56d3-4c69-8adb-2fdb8b0a35d2".parse().unwrap());
    assert_eq!(policy.lapse_of(x, "a-1"), Lapse::Kill);
    assert_eq!(policy.lapse_of(x, "a-2"), Lapse::Hold);
    assert_eq!(policy.lapse_of(x, "b"), Lapse::Kill, "a rule with name and uuid must match both");
    assert_eq!(policy.lapse_of(y, "b"), Lapse::Hold);
    assert_eq!(policy.lapse_of(y, "c"), Lapse::Kill);
}

#[test]
fn an_unknown_key_is_refused_with_its_place_and_the_one_that_was_meant() {
    assert_eq!(
        parse("[contact]\nendpoint = [\"https://a\"]\n").unwrap_err(),
        "l.toml:2:1: unknown key 'endpoint' in [contact]; did you mean 'endpoints'?\n  |\n2 | endpoint = \
         [\"https://a\"]\n  | ^^^^^^^^"
    );
    assert!(said("ttl = '5s'").starts_with("l.toml:1:1: unknown key 'ttl'; it belongs in [lease]"));
    assert!(said("[hook]\nmode = 'observe'").contains("in [hook]; it belongs at the top of the file"));
    assert!(said("colour = 1").contains("unknown key 'colour'; known here: node, mode, profile"));
    assert!(said("[wachdog]\ndevice = 'none'").contains("did you mean 'watchdog'?"));
    assert!(said("[[rule]]\nname='a'\nlapse='hold'\n[[rule]]\nnmae='a'").starts_with("l.toml:5:1: unknown key 'nmae'"));
}

#[test]
fn a_secret_in_the_file_is_refused_and_not_repeated() {
    let text = parse("[contact]\ntoken = \"hunter2\"\n").unwrap_err();
    assert!(text.contains("l.toml:2:1") && text.contains("token_file") && !text.contains("hunter2"), "{text}");
}

#[test]
fn every_wrong_value_says_where_and_what_would_do() {
    for (text, expected) in [
        ("node = 'a b'", "l.toml:1:8: node: 'a b' is not a node id"),
        ("node = 7", "'node' is an integer and must be a string: node = \"...\""),
        ("mode = 'enforced'", "'enforced' is not \"enforce\" or \"observe\"; did you mean \"enforce\"?"),
        ("profile = 'slow'", "'slow' is not \"default\" or \"fast\""),
        ("run_dir = 'run'", "'run' is no absolute path"),
        ("[lease]\nttl = 15", "l.toml:2:7: 'ttl' has no unit; write ttl = \"15s\" or \"15ms\""),
        ("[lease]\nttl = '15 s'", "ttl: '15 s' is no span of time"),
        ("[lease]\ndrift_ppm = -1", "must be a whole number"),
        ("[lease]\nrenew = '5s'", "l.toml:2:9: renew of 5s lets one lost answer kill every domain"),
        ("[lease]\nttl = '5s'", "l.toml:2:7: polite of 2s leaves no time to renew"),
        ("[lease]\npolite = '12s'", "l.toml:2:10: polite of 12s leaves no time to renew"),
        (
            "profile = 'fast'\n[watchdog]\ntimeout = '500ms'",
            "l.toml:3:11: watchdog timeout of 500ms is no whole number",
        ),
        ("[watchdog]\ndevice = 'softdog'", "'softdog' is neither \"auto\", \"none\" nor a path under /dev"),
        ("[claims]\nkind = 'nova'", "l.toml:2:8: kind: 'nova' is not in this version, which has \"native\" only"),
        ("lapse = 'kill'", "'lapse' is a string and must be a table; write [lapse] above its keys"),
        ("rule = 1", "'rule' is no list of tables; write [[rule]] above each"),
        ("[[rule]]\nlapse = 'hold'", "no 'name' in [rule]; say which domains the rule is for"),
        ("[[rule]]\nname = 'a'", "no 'lapse' in [rule]; say what the rule does"),
        ("[[rule]]\nuuid = 'a'\nlapse = 'hold'", "'a' is not a domain's uuid"),
        ("[hook]\ndeadline = '100ms'", "l.toml:2:12: deadline of 100ms is out of range; set it between 200ms and 60s"),
        ("[libvirt]\nuri = '--help'", "no libvirt URI"),
    ] {
        let said = said(text);
        assert!(said.contains(expected), "{text}\nsaid: {said}");
    }
}

#[test]
fn contact_must_say_who_and_must_not_shout_the_token() {
    for (text, expected) in [
        ("", "no 'contact'; say who renews the leases"),
        ("[contact]\nkind = 'native'", "no 'endpoints' in [contact]"),
        ("[contact]\nkind = 'etcd'\nendpoints = ['https://a']", "'etcd' is not in this version"),
        ("[contact]\nendpoints = []", "0 endpoints; there must be 1 to 8"),
        ("[contact]\nendpoints = 'https://a'", "must be a list of strings"),
        ("[contact]\nendpoints = ['https://a', 'a']", "l.toml:2:27: 'a' is no endpoint"),
        ("[contact]\nendpoints = ['https://a', 'https://a/']", "the same endpoint twice"),
        ("[contact]\nendpoints = ['http://10.0.0.5:7470']", "use https, or say allow_plain_http = true"),
        ("[contact]\nallow_plain_http = 'yes'\nendpoints = ['https://a']", "must be true or false, without quotes"),
    ] {
        let said = parse(text).expect_err(text);
        assert!(said.contains(expected), "{text}\nsaid: {said}");
    }
    parse("[contact]\nendpoints = ['http://127.0.0.1:7470']").expect("nothing sent to loopback leaves the machine");
}

#[test]
fn a_host_name_that_will_not_do_asks_for_a_name() {
    for host in [None, Some("localhost"), Some("a b")] {
        let error = Config::parse(SMALLEST, Path::new("l.toml"), || host.map(str::to_owned)).unwrap_err().to_string();
        assert!(error.contains("no 'node'") && error.contains("name this node"), "{error}");
    }
}

#[test]
fn broken_toml_is_shown_with_its_line() {
    let text = parse("node = \"n1\n[contact]\n").unwrap_err();
    assert!(text.starts_with("l.toml:1:") && text.contains("1 | node = \"n1"), "{text}");
    assert!(parse("node = 'a'\nnode = 'b'\n").unwrap_err().starts_with("l.toml:2:"), "a key twice is refused");
}

#[test]
fn a_file_that_cannot_be_read_says_so() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("l.toml");
    let load = || Config::load(&path).unwrap_err().to_string();
    assert!(load().contains("there is no such file"));
    std::fs::write(&path, b"node = 'a'\n\xff\n").unwrap();
    assert!(load().contains("line 2 is no UTF-8"));
    std::fs::write(&path, vec![b'\n'; MAX_SIZE as usize + 1]).unwrap();
    assert!(load().contains("larger than 1048576 bytes"));
}

proptest! {
    #[test]
    fn no_text_makes_it_panic(text in "([\\[\\]a-z_=\"'0-9.\n #-]|ttl|lease|contact|rule){0,60}") {
        let _ = parse(&text);
    }
}

#[test]
fn the_operators_guide_explains_every_key() {
    let guide = include_str!("../../docs/operating.md");
    for (section, keys) in KEYS.iter().filter(|(name, _)| !name.is_empty()) {
        assert!(guide.contains(&format!("[{section}]")), "[{section}] is not explained");
        for key in *keys {
            assert!(guide.contains(&format!("| `{key}` |")), "'{key}' of [{section}] is not explained");
        }
    }
    for key in ["node", "mode", "profile", "run_dir", "state_dir"] {
        assert!(guide.contains(&format!("| `{key}` |")), "'{key}' is not explained");
    }
}

#[test]
fn the_examples_of_the_documents_are_good_files() {
    for (document, text) in
        [("README.md", include_str!("../../README.md")), ("docs/operating.md", include_str!("../../docs/operating.md"))]
    {
        let (_, rest) = text.split_once("toml\n").or(text.split_once("<<'TOML'\n")).expect(document);
        let (example, _) = rest.split_once("```").expect(document);
        let example = example.split("\nTOML\n").next().expect("split gives one part at least");
        parse(example).unwrap_or_else(|error| panic!("{document}:\n{error}"));
    }
}
