#!/usr/bin/env python3
"""Deliberate one-line faults (tests/mutants_table.py), each of which some net must catch.

    tests/mutants.py [NAME...]        until the first net that catches it; those whose names contain a NAME
    tests/mutants.py --all [NAME...]  every net is asked, the model of what the others let through; of the whole table,
                                      docs/mutants.md is made anew

All faults are compiled into one copy of the sources, under target/mutants/tree: there a function with faults chooses its
body by LEASEHOLD_MUTANT when it is called. So the nets are built once, and are shown to pass without a fault first.

A fault is caught when a named test fails. What fails otherwise (no build, a signal, a time-out), a text to be changed that
is not there exactly once, and a page that does not list the table, are errors of the run. A fault that no net catches is
a hole in the nets: the exit status is 1.
"""
import json, os, re, shutil, subprocess, sys, time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Lock

sys.dont_write_bytecode = True
from mutants_table import TABLE

ROOT = Path(__file__).resolve().parent.parent
# Under the root, whose .cargo/config.toml then holds for it too: what it depends on is built already.
TREE = ROOT / "target/mutants/tree"
PACKAGE = "leasehold-faults"
PAGE = ROOT / "docs/mutants.md"
PATIENCE = 120  # seconds for one net

SWITCH = """//! Which of the deliberate faults this process has; zero: none.
use std::sync::OnceLock;
pub fn active() -> u32 {
    static ACTIVE: OnceLock<u32> = OnceLock::new();
    *ACTIVE.get_or_init(|| std::env::var("LEASEHOLD_MUTANT").map_or(0, |number| number.parse().expect("a number")))
}
"""

NODE = ["test", "--all-features", "--lib", "--test", "simulate"]
CORE = ["test", "--profile", "checks", "--no-default-features", "--test", "model"]
# The library's modules whose tests can see a fault in a file that begins so.
SEEN = {
    "src/lease/": ["lease::", "guard::feed::"],
    "src/authority/": ["authority::", "--skip", "authority::oracle"],
    "src/guard/": ["guard::"],
    "src/node/watchdog.rs": ["node::watchdog::"],
    "src/hook.rs": ["hook::"],
    "src/disks.rs": ["disks::"],
}
UNITS = [word for words in SEEN.values() for word in words]
PURE = ("src/lease/", "src/authority/")
# name, build, target, arguments, environment, files whose faults it can see; the quickest first
NETS = [
    ("unit tests", NODE, "leasehold", UNITS, {"PROPTEST_RNG_SEED": "1"}, "src/"),
    ("simulator", NODE, "simulate", ["scenarios", "schedules"], {"LEASEHOLD_SCHEDULES": "200"}, (*PURE, "src/guard/")),
    ("histories", NODE, "leasehold", ["oracle::no_history"], {"PROPTEST_RNG_SEED": "1"}, "src/authority/"),
    ("model", CORE, "model", ["no_reachable"], {"LEASEHOLD_MODEL": "quick"}, PURE),
]

CODE = re.compile(
    r'//[^\n]*|b?r(#*)".*?"\1|b?"(?:[^"\\]|\\.)*"|b?\'(?:[^\'\\\n]|\\x..|\\u\{[^}]*\}|\\.)\'|/\*.*?\*/', re.S
)


def functions(source):
    """Where each function's body begins and ends, braces included, inner functions after the outer ones."""
    # Comments, strings and characters blanked, so that every brace is one of the code's.
    code = CODE.sub(lambda text: " " * len(text[0]), source)
    for at in re.finditer(r"\bfn\s+\w+", code):
        depth, begin = 0, None
        for i in range(at.end(), len(code)):
            if code[i] in "([{":
                if code[i] == "{" and depth == 0:
                    begin = i
                depth += 1
            elif code[i] in ")]}":
                depth -= 1
                if begin is not None and depth == 0:
                    yield begin, i + 1
                    break
            elif code[i] == ";" and depth == 0:
                break  # a declaration


def infect(file, faults):
    """The file's text, with a choice between bodies in each function that holds one of the faults' texts."""
    source = (TREE / file).read_text()
    bodies, items = {}, {}
    for number, (name, text, mutant) in faults.items():
        if source.count(text) != 1:
            sys.exit(f"'{name}': its text is in {file} {source.count(text)} times, not once")
        # What both have is there to find the place, and may begin before the body.
        same = len(os.path.commonprefix([text, mutant]))
        at, text, mutant = source.index(text) + same, text[same:], mutant[same:]
        around = [body for body in functions(source) if body[0] < at and at + len(text) < body[1]]
        if not around and "ACTIVE" in mutant:
            # A whole item, which looks itself.
            items[at, at + len(text)] = mutant.replace("ACTIVE", f"crate::mutant::active() == {number}")
            continue
        if not around:
            sys.exit(f"'{name}': its text in {file} is in no function's body")
        begin, end = around[-1]
        arm = source[begin:at] + mutant + source[at + len(text) : end]
        bodies.setdefault((begin, end), []).append(f"{number} => {arm}")
    for (begin, end), arms in bodies.items():
        arms = " ".join([*arms, "_ => " + source[begin:end]])
        items[begin, end] = f"{{ match crate::mutant::active() {{ {arms} }} }}"
    for (begin, end), new in sorted(items.items(), reverse=True):
        source = source[:begin] + new + source[end:]
    return source


def copy_sources(table):
    shutil.rmtree(TREE, ignore_errors=True)
    for part in ["src", "docs", "tests/model", "tests/simulate", "tests/scenarios", "Cargo.toml", "Cargo.lock", "README.md"]:
        source, target = ROOT / part, TREE / part
        target.parent.mkdir(parents=True, exist_ok=True)
        (shutil.copytree if source.is_dir() else shutil.copy)(source, target)
    # The nets alone, and no binary that could be taken for the real one.
    manifest = (TREE / "Cargo.toml").read_text()
    manifest = re.sub(r"\[\[(bin|test|bench)\]\]\n(?!name = \"(?:model|simulate)\")(?:.+\n)+", "", manifest)
    manifest = re.sub(r"default-run = .*\n", "", manifest)
    # A name of its own: cargo would take what it built of one for the other, whose sources are no newer.
    manifest = manifest.replace('[package]\nname = "leasehold"\n', f'[package]\nname = "{PACKAGE}"\nautotests = false\nautobins = false\n', 1)
    manifest += f"\n[profile.dev.package.{PACKAGE}]\ndebug = false\n"
    (TREE / "Cargo.toml").write_text(manifest)
    files = {}
    for number, (name, _, file, text, mutant) in enumerate(table, 1):
        files.setdefault(file, {})[number] = (name, text, mutant)
    for file, faults in files.items():
        (TREE / file).write_text(infect(file, faults))
    (TREE / "src/mutant.rs").write_text(SWITCH)
    root = TREE / "src/lib.rs"
    root.write_text(root.read_text() + "#[allow(missing_docs)]\npub mod mutant;\n")


class Nets:
    """Builds what a net needs when it is first asked, and shows that it passes without a fault."""

    def __init__(self):
        self.lock, self.made, self.shown = Lock(), {}, set()

    def executable(self, net):
        name, command, target, *_ = net
        with self.lock:
            if target not in self.made:
                since = time.monotonic()
                self.build(command)
                print(f"what the net '{name}' needs is built ({time.monotonic() - since:.0f} s)", flush=True)
            if name not in self.shown:
                since = time.monotonic()
                if failed := ask(net, self.made[target], 0):
                    raise Broken(f"without a fault, {failed} fail")
                print(f"the net '{name}' passes without a fault ({time.monotonic() - since:.1f} s)", flush=True)
                self.shown.add(name)
            return self.made[target]

    def build(self, command):
        environment = {"CARGO_TARGET_DIR": str(ROOT / "target"), **os.environ}
        command = ["cargo", *command, "--no-run", "-q", "--message-format", "json-render-diagnostics"]
        built = subprocess.run(command, cwd=TREE, env=environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        if built.returncode != 0:
            raise Broken(f"the faults do not compile:\n{built.stderr}")
        for message in map(json.loads, built.stdout.splitlines()):
            if message.get("executable"):
                self.made[message["target"]["name"]] = message["executable"]


class Broken(Exception):
    """An error of the run."""


def ask(net, executable, number):
    """What fails in a net with a fault: the tests' names, and the promise that is broken; none: it does not see the fault."""
    name, _, _, arguments, environment, _ = net
    if arguments is UNITS and number:
        file = TABLE[number - 1][2]
        arguments = next(words for begin, words in SEEN.items() if file.startswith(begin))
    environment = {**os.environ, **environment, "LEASEHOLD_MUTANT": str(number), "RUST_BACKTRACE": "0"}
    command = [executable, *arguments]
    try:
        ran = subprocess.run(command, cwd=TREE, env=environment, text=True, errors="replace", stdin=subprocess.DEVNULL,
                             stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=PATIENCE)
    except subprocess.TimeoutExpired:
        raise Broken(f"the net '{name}' does not end within {PATIENCE} s")
    if ran.returncode == 0:
        return None
    failed = re.findall(r"^    ([a-z]\w*(?:::\w+)*)$", ran.stdout, re.M)
    if ran.returncode < 0 or not failed:
        raise Broken(f"the net '{name}' ends with {ran.returncode} and names no test:\n{ran.stdout[-3000:]}")
    return sorted(set(failed))


def try_fault(nets, number, file, every):
    """The nets that catch a fault, with what failed there."""
    caught = {}
    for net in NETS:
        # A minute of both processors for each fault: the model has the last word alone.
        if (not caught or every and net[0] != "model") and file.startswith(net[-1]):
            if failed := ask(net, nets.executable(net), number):
                caught[net[0]] = failed
    return caught


HEAD = """# Deliberate faults

A net that nothing is thrown into proves nothing. Each line below is a fault of one line, made on purpose in a copy of the
sources, and the first test (and how many more) that fails for it in each net; a cell is empty where a net lets the fault
through or cannot see its file. `tests/mutants.py` makes them all in every run of tests/run.sh: one that no net catches is a
hole, and fails it. The nets are the library's unit and property tests, the simulator's scenarios and 200 random schedules,
the authority's random histories, and the model's reachable states; the model is asked only about what the others let
through. What a fault would cost is in docs/design.md under the rule's number. `tests/mutants.py --all` makes this page.

"""


def page(rows):
    nets = [net[0] for net in NETS]
    lines = [HEAD + "| fault | rule | in | " + " | ".join(nets) + " |", "|---" * (3 + len(nets)) + "|"]
    for (name, rule, file, *_), caught in rows:
        cells = [f"`{caught[net][0]}`" + (f" +{len(caught[net]) - 1}" if len(caught[net]) > 1 else "") if net in caught else "" for net in nets]
        lines.append(f"| {name} | {rule} | `{file}` | " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def main():
    words = [word for word in sys.argv[1:] if word != "--all"]
    every = "--all" in sys.argv
    began = time.monotonic()
    names = [row[0] for row in TABLE]
    if len(set(names)) != len(names):
        sys.exit("two faults have one name")
    copy_sources(TABLE)
    nets = Nets()
    wanted = [(number, row) for number, row in enumerate(TABLE, 1) if not words or any(word in row[0] for word in words)]
    def one(numbered):
        number, (name, _, file, *_) = numbered
        since = time.monotonic()
        try:
            caught, error = try_fault(nets, number, file, every), None
        except Broken as why:
            caught, error = {}, str(why)
        by = error or "; ".join(f"{net}: {failed[0]}" for net, failed in caught.items()) or "NOTHING CATCHES IT"
        print(f"{name}: {by} ({time.monotonic() - since:.1f} s)", flush=True)
        return caught, error

    with ThreadPoolExecutor(2) as pool:
        results = list(pool.map(one, wanted))
    bad = sum(1 for caught, error in results if error or not caught)
    if every and not words and not any(error for _, error in results):
        PAGE.write_text(page([(row, caught) for (_, row), (caught, _) in zip(wanted, results)]))
    listed = re.findall(r"^\| (.+?) \| .+ \| `src/", PAGE.read_text() if PAGE.exists() else "", re.M)
    if listed != names:
        odd = [name for name in [*names, *listed] if names.count(name) != listed.count(name)]
        print(f"docs/mutants.md lists other faults than the table, or in another order: {odd[:3]}; run tests/mutants.py --all")
        bad += 1
    print(f"{len(wanted)} faults in {time.monotonic() - began:.0f} s")
    print(f"test result: {'FAILED' if bad else 'ok'}. {len(wanted) - sum(not c for c, _ in results)} passed; {bad} failed; 0 ignored; 0 measured; 0 filtered out")
    sys.exit(bool(bad))


main()
