#!/usr/bin/env python3
"""Deliberate one-line faults in the pure core and the authority's book, each of which some net must catch.

    tests/mutants.py            all of them, and docs/mutants.md anew
    tests/mutants.py NAME...    those whose names contain a NAME

Each is made in a copy of the sources under target/mutants, built, and given to the unit and property tests first and to the
model (LEASEHOLD_MODEL=quick) if those pass. One that passes both is a hole in the nets: the exit status is then 1. A text to
be changed that is not there exactly once ends the run, so that the table cannot rot.
"""
import os, re, shutil, subprocess, sys, time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
TREE = ROOT / "target/mutants/tree"

# name, rule of docs/design.md, file, text, mutant
TABLE = [
    ("the ttl counts from the answer", "1", "src/lease/answer.rs", "self.policy.timing.expires(asked.sent, ttl);", "self.policy.timing.expires(now, ttl);"),
    ("drift lengthens a lease", "1", "src/lease/timing.rs", "ttl.saturating_sub(share(ttl, self.drift_ppm))", "ttl.saturating_add(share(ttl, self.drift_ppm))"),
    ("a granted ttl may be longer than L", "1", "src/lease/timing.rs", "let ttl = ttl.min(self.ttl);\n        ttl.saturating_sub", "let ttl = ttl;\n        ttl.saturating_sub"),
    ("an answer speaks of what its question did not name", "2", "src/lease/answer.rs", "if asked.named.contains(&claim.domain) {", "if true {"),
    ("a found process is adopted by any answer", "2", "src/lease/answer.rs", "copy.epoch.is_none() && copy.asked_from <= answer.question && copy.dying.is_none()", "copy.epoch.is_none() && copy.dying.is_none()"),
    ("an older question's answer counts", "3", "src/lease/answer.rs", "if answer.question <= self.folded || answer.list_wanted {", "if answer.list_wanted {"),
    ("an answer to another guard process counts", "3", "src/lease/answer.rs", " || answer.incarnation != self.incarnation {", " {"),
    ("an older epoch is renewed", "3", "src/lease/answer.rs", "if older || entry.is_sealed(claim.epoch) {", "if entry.is_sealed(claim.epoch) {"),
    ("a denial is undone under its epoch", "7", "src/lease/answer.rs", "if older || entry.is_sealed(claim.epoch) {", "if older {"),
    ("a claim that is not understood to renew still does", "3", "src/lease/answer.rs", "(ttl > Duration::ZERO).then_some(expires)", "Some(self.policy.timing.expires(asked.sent, self.policy.timing.ttl))"),
    ("fed until E", "4", "src/lease/timing.rs", "expires - self.feed()\n", "expires\n"),
    ("an open admission is not in the permit", "4", "src/lease/ladder.rs", "entry.copies.iter().map(copy).chain(admission).collect()", "entry.copies.iter().map(copy).chain(admission.take(0)).collect()"),
    ("a found process does not stop the permit", "4", "src/lease/ladder.rs", "None if copy.dying.is_none() => copy.seen,", "None if copy.dying.is_none() => BootTime::NEVER,"),
    ("a hung scan does not stop the permit", "4", "src/lease/guard.rs", "(self.scanned + timing.ttl).min(self.turned + timing.ttl)", "self.turned + timing.ttl"),
    ("a hung core does not stop the permit", "4", "src/lease/guard.rs", "(self.scanned + timing.ttl).min(self.turned + timing.ttl)", "self.scanned + timing.ttl + timing.ttl"),
    ("a lost ledger permits feeding", "State", "src/lease/guard.rs", "        if self.amnesia.is_some() {\n            return BootTime::ZERO;\n        }\n", ""),
    ("a lost ledger gives receipts", "State", "src/lease/questions.rs", "if self.amnesia.is_some() {", "if false {"),
    ("a lost ledger admits", "State", "src/lease/hooks.rs", "if self.amnesia.is_some() && call.op.admits() {", "if false {"),
    ("a lost ledger is good without a later scan", "State", "src/lease/guard.rs", "&& scan.began > told\n", "\n"),
    ("a receipt with a process alive", "7", "src/lease/ledger.rs", "let alive = self.copies.iter().any(|copy| over(copy.epoch))\n            ||", "let alive ="),
    ("a receipt with an admission open", "8", "src/lease/ledger.rs", "            || self.admission.as_ref().is_some_and(|admission| over(Some(admission.epoch)));", ";"),
    ("a receipt without a scan since the denial", "7", "src/lease/ledger.rs", "!alive && scanned > seal.at && ", "!alive && "),
    ("a receipt without a scan since the end", "7", "src/lease/ledger.rs", " && self.stirred.is_none_or(|stirred| scanned > stirred);", ";"),
    ("a denial of an older epoch takes a newer lease", "3", "src/lease/answer.rs", "if newer || entry.seal.as_ref()", "if entry.seal.as_ref()"),
    ("a denial leaves the lease", "7", "src/lease/ledger.rs", "            self.lease = None;\n        }\n        // rule 8", "        }\n        // rule 8"),
    ("a denial cancels a start that may execute", "8", "src/lease/ledger.rs", "a.stage != Stage::Started && a.epoch <= seal.epoch", "a.epoch <= seal.epoch"),
    ("`release` closes an admission at once", "8", "src/lease/hooks.rs", "(HookOp::Release, Some(open)) if own(open) => open.over = Some(now),", "(HookOp::Release, Some(open)) if own(open) => { let _ = open; entry.admission = None }"),
    ("a scan begun before libvirt's word closes an admission", "8", "src/lease/guard.rs", "open.over.is_some_and(|over| scan.began > over) || dead", "open.over.is_some() || dead"),
    ("`start` is not asked again", "8", "src/lease/admission.rs", "HookOp::Start => start(entry, call, now, policy),", "HookOp::Start => match &entry.admission {\n            Some(open) => Decision::Admit(Admission { stage: Stage::Started, since: now, ..open.clone() }),\n            None => start(entry, call, now, policy),\n        },"),
    ("a start over a process that is not gone", "8", "src/lease/admission.rs", "if let Some(copy) = entry.copies.first() {", "if let Some(copy) = entry.copies.first().filter(|_| false) {"),
    ("a start while an earlier one is open", "8", "src/lease/admission.rs", "Stage::Started => true,", "Stage::Started => false,"),
    ("a start under a lease that is over", "10", "src/lease/admission.rs", "now < policy.timing.lapse(lease.expires) && ", ""),
    ("a start of what is on hold", "Claims", "src/lease/admission.rs", "if lease.right == Right::Hold {", "if false {"),
    ("a start by an incoming lease without a migration", "Migration", "src/lease/admission.rs", "if lease.right == Right::Incoming && !migrating {", "if false {"),
    ("a hook that has given up is admitted", "8", "src/lease/hooks.rs", "Decision::Admit(_) if late =>", "Decision::Admit(_) if false =>"),
    ("a lease renews what started under another epoch", "9", "src/lease/ledger.rs", "copy.epoch == Some(epoch) && copy.dying.is_none()", "copy.dying.is_none()"),
    ("a stale process lives on", "9", "src/lease/ladder.rs", "} else if let Some(epoch) = newer {", "} else if let Some(epoch) = newer.filter(|_| false) {"),
    ("the condemned are renewed", "7", "src/lease/ledger.rs", "copy.epoch == Some(epoch) && copy.dying.is_none()", "copy.epoch == Some(epoch)"),
    ("nothing is killed at E", "4", "src/lease/ladder.rs", "&& now >= dying.kill_at", "&& now >= dying.kill_at + self.policy.timing.ttl"),
    ("held on lapse, though the authority was not told", "Bargain", "src/lease/ledger.rs", "self.held_on_lapse && self.hold_known", "self.held_on_lapse"),
    ("held domains limit the permit", "4", "src/lease/guard.rs", "let enforced = self.ledger.domains.values().filter(|entry| !entry.is_held());", "let enforced = self.ledger.domains.values();"),
    ("stolen time is not noticed", "Bargain", "src/lease/answer.rs", "if there <= allowed {", "if true {"),
    ("a drained node starts domains", "Drain", "src/lease/hooks.rs", "if self.ledger.drained.is_some() && call.op.admits() {", "if false {"),
    ("all gone while something lives", "7", "src/lease/gone.rs", "entry.copies.is_empty() && entry.admission.is_none()", "entry.copies.is_empty()"),
    ("all gone without a scan since the drain", "7", "src/lease/gone.rs", "(self.amnesia.is_none() && seen && empty)", "(self.amnesia.is_none() && empty)"),
    ("another boot's ledger is believed", "State", "src/lease/ledger.rs", "if header.boot != boot {", "if false {"),
    ("a denial is forgotten", "7", "src/lease/ledger.rs", "!idle(entry) || entry.seal.is_some()", "!idle(entry)"),
    ("the bound has no W", "Timeline", "src/lease/timing.rs", "killed + self.watchdog.saturating_sub(self.feed()) / 2", "killed"),
    ("a domain moves while its old share is leaving", "Bargain", "src/authority/leaving.rs", "if !record.leaving.is_empty() || record.owner.is_some() {", "if record.owner.is_some() {"),
    ("a held share is freed by the bound", "Bargain", "src/authority/leaving.rs", "Some(bound_ms) if !share.held =>", "Some(bound_ms) =>"),
    ("a share that was answered counts as never claimed", "Bargain", "src/authority/leaving.rs", "_ if unclaimed => Exit::Gone(Proof::NeverClaimed),", "_ if unclaimed || share.held => Exit::Gone(Proof::NeverClaimed),"),
    ("a receipt of an older epoch frees a newer share", "Bargain", "src/authority/renew.rs", "leaving.node == *id && leaving.epoch <= sealed", "leaving.node == *id"),
    ("another node's receipt frees a share", "Bargain", "src/authority/renew.rs", "leaving.node == *id && leaving.epoch <= sealed", "leaving.epoch <= sealed"),
    ("a restart of the authority forgets who was renewed", "Bargain", "src/authority/book.rs", "seen.and_then(|seen| seen.bound_ms).map(|bound| now + Duration::from_millis(bound))", "seen.and_then(|seen| seen.bound_ms).map(|_| now)"),
    ("a new boot is believed whatever its machine", "Bargain", "src/authority/boots.rs", "if !retired && settled && began_after && shown(&seen.machine, &q.machine) {", "if !retired && settled && began_after {"),
    ("a boot that began before the last was heard is believed", "Bargain", "src/authority/boots.rs", "if !retired && settled && began_after && shown", "if !retired && settled && shown"),
]


def sh(*command, **environment):
    env = {**os.environ, "CARGO_TARGET_DIR": str(ROOT / "target/mutants/build"), "CARGO_TERM_COLOR": "never", **environment}
    return subprocess.run(command, cwd=TREE, env=env, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=900)


NETS = [
    ("unit and property tests", ["cargo", "test", "-q", "--no-default-features", "--lib"], {}),
    ("model", ["cargo", "test", "-q", "--profile", "checks", "--no-default-features", "--test", "model", "no_reachable"], {"LEASEHOLD_MODEL": "quick"}),
]


def caught_by(name):
    """The first net that a mutant fails in, and how it was told there; none: it survives."""
    for net, command, environment in NETS:
        ran = sh(*command, **environment)
        if "error: could not compile" in ran.stdout or "error[E" in ran.stdout:
            sys.exit(f"'{name}' does not compile:\n{ran.stdout[-3000:]}")
        if ran.returncode != 0:
            failed = re.findall(r"^    ([a-z_:0-9]+)$", ran.stdout, re.M)
            return net, failed[0] if failed else "a panic"
    return None


def main():
    wanted = sys.argv[1:]
    if TREE.exists():
        shutil.rmtree(TREE)
    TREE.mkdir(parents=True)
    for part in ["src", "tests/model", "tests/authority", "Cargo.toml", "Cargo.lock", ".cargo", "README.md"]:
        source, target = ROOT / part, TREE / part
        target.parent.mkdir(parents=True, exist_ok=True)
        (shutil.copytree if source.is_dir() else shutil.copy)(source, target)
    manifest = (TREE / "Cargo.toml").read_text()
    # Only the model is there to be run.
    manifest = re.sub(r"\[\[(test|bench)\]\]\n(?!name = \"model\")(?:.+\n)+", "", manifest)
    (TREE / "Cargo.toml").write_text(manifest.replace("[package]\n", "[package]\nautotests = false\n", 1))
    rows, survivors = [], []
    for name, rule, file, text, mutant in TABLE:
        if wanted and not any(word in name for word in wanted):
            continue
        path = TREE / file
        original = path.read_text()
        if original.count(text) != 1:
            sys.exit(f"'{name}': its text is in {file} {original.count(text)} times, not once")
        path.write_text(original.replace(text, mutant))
        began = time.monotonic()
        caught = caught_by(name)
        path.write_text(original)
        net, test = caught or ("**nothing**", "-")
        survivors += [] if caught else [name]
        rows.append(f"| {name} | {rule} | `{file}` | {net} | `{test}` |")
        print(f"{name}: {net} {test} ({time.monotonic() - began:.0f} s)", flush=True)
    if not wanted:
        head = "# Mutants\n\nDeliberate one-line faults, and the first net that catches each. `tests/mutants.py` makes this page.\n\n"
        head += "| fault | rule | in | caught by | test |\n|---|---|---|---|---|\n"
        (ROOT / "docs/mutants.md").write_text(head + "\n".join(rows) + "\n")
    print(f"test result: {'FAILED' if survivors else 'ok'}. {len(rows) - len(survivors)} passed; {len(survivors)} failed; 0 ignored")
    sys.exit(bool(survivors))


main()
