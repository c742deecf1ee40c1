"""Specs and studies that nobody meant: 10,000 that began as good ones, and 1,000 good ones that nobody has seen."""

from __future__ import annotations

import itertools
import random
import signal
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
import yaml
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from paribus.assembly.build import build
from paribus.assembly.metric_names import placeholder_vocabulary
from paribus.cli.console import Session
from paribus.errors import EXIT_OK, EXIT_SPEC, SpecError
from paribus.kernels import KERNELS
from paribus.registry import Entry, Registry
from paribus.specs import resolved, spec_hash
from paribus.testing.host_models import Case, bases, example, values
from paribus.testing.option_checks import flat
from paribus.testing.small_model import Specimen

Cli = Callable[..., Any]

SECONDS = 10.0  # of processor time, in which any spec is to be judged
PRESETS = (
    "encoder-tiny", "gpt-tiny", "seq2seq-tiny", "bert-tiny", "t5-tiny", "electra-tiny", "rnnsearch-tiny", "vit-tiny",
)  # fmt: skip
SMALL = {"dims.width": 8, "dims.layers": 1}
STUDIES: tuple[dict[str, Any], ...] = (
    {
        "base": {"preset": "encoder-tiny", **SMALL}, "vary": {"attention": ["mqa", {"name": "gqa", "kv_heads": 2}]},
        "seeds": 2, "budget": {"steps": 3}, "metric": {"name": "val/mlm/loss", "better": "lower", "margin": 0.02},
    },
    {
        "base": {"preset": "gpt-tiny", **SMALL}, "design": "grid",
        "vary": {"norm": ["rmsnorm"], "optimizer.lr": [1e-3]},
        "seeds": [1, 2], "budget": {"tokens": 5000}, "match": {"on": "params", "by": "feedforward.expand"},
        "metric": "val/clm/loss", "evaluate": ["clm"], "timeout": 60, "launcher": "local",
    },
    {
        "base": "encoder-tiny", "design": "list", "variants": [{"attention": "mqa", "norm": "rmsnorm"}],
        "metric": "val/mlm/loss", "budget": {"steps": 2},
    },
    {
        "base": {"preset": "encoder-tiny", **SMALL}, "vary": {"attention": ["mqa"], "norm": ["rmsnorm"]}, "seeds": 2,
        "scales": {"s": {"dims.width": 8}, "m": {"dims.width": 16}}, "tune": {"optimizer.lr": [1e-3, 2e-3]},
        "match": [None, {"on": "flops", "by": "feedforward.expand"}], "metric": "val/mlm/loss",
        "exclude": [{"attention": "mqa", "norm": "rmsnorm"}], "loggers": ["csv"], "design": "grid",
    },
    {
        "base": {"preset": "encoder-tiny", **SMALL}, "design": "ladder", "seeds": 2, "metric": "val/mlm/loss",
        "changes": [{"norm": "rmsnorm"}, {"name": "gated", "feedforward": "glu"}],
    },
    {
        "base": {"preset": "encoder-tiny", **SMALL}, "vary": {"finetune.optimizer.lr": [1e-4]}, "seeds": 2,
        "stages": {
            "pretrain": {"objective": "mlm", "budget": {"steps": 4}},
            "finetune": {
                "from": "pretrain", "optimizer.lr": 5e-4, "budget": {"steps": 2},
                "tasks": {"sections": {"objective": {"name": "classify", "classes": 6}, "corpus": "sections"}},
            },
        },
        "metric": {"name": "val/classify/accuracy", "stage": "finetune", "task": "sections", "better": "higher"},
    },
)  # fmt: skip

WORDS = st.sampled_from(
    [
        "mha", "gqa", "restricted", "rope", "alibi", "learned", "none", "mlm", "clm", "nsp", "encoder", "decoder",
        "adamw", "text", "tokens", "???", "${dims.width}", "${seed}", "${oc.env:HOME}", "${", "", "no", "1e-3", "nan",
        "val/mlm/loss", "base", "\u202e", "a.b", "params", "0x10", "010", "é" * 70, "../x", "\x1b[0m",
    ]
)  # fmt: skip
NUMBERS = st.sampled_from([0, 1, -1, 2, 3, 7, 8, 64, 10**6, 10**9, 10**20, 0.0, -0.5, 0.5, 1.5, 1e-300, 1e300])
SCALARS = st.one_of(NUMBERS, WORDS, st.none(), st.booleans(), st.floats(), st.text(max_size=5))
VALUES = st.one_of(
    SCALARS, st.lists(SCALARS, max_size=3), st.dictionaries(st.one_of(WORDS, st.integers(0, 3)), SCALARS, max_size=3)
)
DEEDS = st.sampled_from(["put", "put", "put", "take", "move", "copy", "add", "rename"])
CHANGES = st.lists(st.tuples(st.integers(0, 10**6), DEEDS, VALUES, st.integers(0, 10**6)), min_size=1, max_size=3)
MARKS = st.sampled_from([*"{}[]:,&*!|>-?'\"#%@ \t\n\0\ufeff"])
MISTAKES = st.tuples(st.integers(0, 10**6), st.sampled_from(["cut", "twice", "in", "bit"]), MARKS)
SPOILT = st.lists(MISTAKES, max_size=2)
MANY = settings(
    database=None, deadline=None, phases=[Phase.generate], suppress_health_check=list(HealthCheck), print_blob=False
)


def places(node: Any) -> list[tuple[Any, Any]]:
    """Every container of a document with every key of it."""
    keys = list(node) if isinstance(node, dict) else list(range(len(node))) if isinstance(node, list) else []
    return [(node, key) for key in keys] + [place for key in keys for place in places(node[key])]


def changed(document: Any, where: int, deed: str, value: Any, other: int) -> None:
    """One change of a document, in its place."""
    found = places(document)
    if not found:
        return
    node, key = found[where % len(found)]
    if deed == "put":
        node[key] = value
    elif deed == "take":
        del node[key]
    elif deed in ("move", "copy"):
        there, its = found[other % len(found)]
        node[key] = yaml.safe_load(yaml.safe_dump(there[its]))
        if deed == "move" and isinstance(there, dict) and there.keys() > {its}:
            del there[its]
    elif isinstance(node, dict):
        name = str(value)[:80] if deed == "add" else f"{key}{'sx_'[other % 3]}"
        node[name] = value if deed == "add" else node.pop(key)


def shallow(document: Any) -> None:
    """Thousands of layers are valid, and take as long to build as they take."""
    for node, key in places(document):
        if str(key).endswith("layers") and isinstance(node[key], int) and 12 < node[key] <= 10_000:
            node[key] = 12


def spoilt(data: bytes, at: int, deed: str, mark: str) -> bytes:
    """Text with one mistake in it."""
    at %= len(data) + 1
    if deed == "cut":
        return data[:at]
    if deed == "twice":
        return data[:at] + data
    if deed == "bit" and at < len(data):
        return data[:at] + bytes([data[at] ^ 1 << at % 8]) + data[at + 1 :]
    return data[:at] + mark.encode() + data[at:]


class TooLongError(BaseException):
    """What ends a check that does not end."""


@contextmanager
def limited(seconds: float) -> Iterator[list[str]]:
    """Ends what takes longer, and says so in what it gives: `paribus` tells of whatever is raised in it."""
    late: list[str] = []

    def ended(number: int, frame: object) -> None:
        late.append("it takes too long")
        raise TooLongError

    before = signal.signal(signal.SIGVTALRM, ended)
    signal.setitimer(signal.ITIMER_VIRTUAL, seconds)
    try:
        yield late
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)


@pytest.fixture
def known(monkeypatch: pytest.MonkeyPatch, registry: Registry) -> None:
    """What is installed is looked up once, and not for every spec."""
    monkeypatch.setattr(Session, "index", lambda session: registry.index)
    monkeypatch.setattr(Session, "registry", lambda session: registry)


@pytest.fixture(scope="module")
def documents(registry: Registry) -> list[str]:
    """What the changes begin with: presets with all of their keys, in few words, and studies."""
    whole = [resolved({"preset": preset, **SMALL}, registry=registry) for preset in PRESETS]
    brief = [{"preset": preset, **SMALL, "attention": {"name": "mha"}, "seed": 1} for preset in PRESETS[:3]]
    return [yaml.safe_dump(each, sort_keys=False) for each in (*whole, *brief, *STUDIES)]


def fuzz(cli: Cli, documents: list[str], count: int) -> Counter[int]:
    """Judges so many specs and studies, and counts how that ended."""
    ends: Counter[int] = Counter()

    @settings(MANY, max_examples=count)
    @given(st.integers(0, len(documents) - 1), CHANGES, SPOILT)
    def judged(which: int, changes: list[Any], marks: list[Any]) -> None:
        document = yaml.safe_load(documents[which])
        for change in changes[: 1 + changes[0][-1] % 2 * 2]:  # most in one place alone: that reaches furthest
            changed(document, *change)
        shallow(document)
        data = yaml.safe_dump(document, allow_unicode=True, sort_keys=False).encode(errors="surrogatepass")
        for mark in marks if len(marks) == 2 else ():
            data = spoilt(data, *mark)
        Path("s.yaml").write_bytes(data)
        with limited(SECONDS) as late:
            said = cli("check", "s.yaml")
        assert not late, data
        ends[said.code] += 1
        lines = said.err.splitlines()
        assert said.code in (EXIT_OK, EXIT_SPEC), (said, data)
        assert said.code == EXIT_OK or (lines and not said.out), data
        assert all(line.startswith("error[") for line in lines if said.code), (said, data)

    judged()
    return ends


def test_specs_that_nobody_meant_are_told_of_or_taken(cli: Cli, known: None, documents: list[str]) -> None:
    ends = fuzz(cli, documents, 100)
    assert ends[EXIT_SPEC] > 20
    assert [path.name for path in Path().iterdir()] == ["s.yaml"]


@pytest.mark.faults
@pytest.mark.held("A1", "A3", "A13", "A22", "A25", "A26", "A27", "A29")
def test_ten_thousand_specs_that_nobody_meant_are_told_of_or_taken(
    cli: Cli, known: None, documents: list[str], record_property: Callable[[str, object], None]
) -> None:
    ends = fuzz(cli, documents, 10_000)
    assert ends.total() >= 9_000  # hypothesis draws none twice
    assert [path.name for path in Path().iterdir()] == ["s.yaml"]
    record_property("specs and studies fuzzed", ends.total())
    record_property("of these refused in words", ends[EXIT_SPEC])
    record_property("of these still valid", ends[EXIT_OK])
    record_property("tracebacks, hangs and files made by them", 0)


class Drawn(NamedTuple):
    """A spec that is valid as far as the registry's own schema can tell."""

    said: str
    given: dict[str, Any]
    spec: dict[str, Any]


def drawn(registry: Registry, luck: random.Random) -> Iterator[Drawn]:
    """Components in the models that rules let them into, with options within their limits."""
    around = bases(None, registry)
    slots = (
        "attention",
        "position",
        "norm",
        "placement",
        "feedforward",
        "embedding",
        "initialisation",
        "objective",
        "schedule",
    )
    entries: list[Entry] = [entry for slot in slots for entry in registry.index.entries[slot].values()]
    while True:
        base = luck.choice(list(around))
        changes: dict[str, Any] = {}
        for entry in luck.sample(entries, luck.choice([1, 1, 2])):
            case = Case(registry, entry, around)
            changes |= case.around(base, _with_options(entry, around[base], luck, registry))
        given = {**around[base], **changes}
        try:
            yield Drawn(f"{base} {changes}", given, resolved(given, registry=registry))
        except SpecError:
            continue  # a rule or a limit of sizes speaks against it


def _with_options(entry: Entry, base: Any, luck: random.Random, registry: Registry) -> dict[str, Any]:
    node = example(entry)
    options = list(flat(entry.options))
    for path, option in luck.sample(options, min(len(options), luck.choice([0, 1, 2, 3]))):
        choices = values(option, resolved(base, registry=registry)) if option.kind.name != "slot" else []
        inner = node
        for key in path[:-1]:
            inner = inner.setdefault(key, {})
        if choices:
            inner[path[-1]] = luck.choice(choices)
    return node


def told(each: Drawn, registry: Registry) -> bool:
    """Whether a spec that the rules let through is built, or told of by a component in words."""
    try:
        build(each.spec, registry, placeholder_vocabulary(each.spec, registry.index), KERNELS)
    except SpecError:
        return False
    return True


def test_what_is_accepted_is_accepted_again_as_it_was_written_out(registry: Registry) -> None:
    for each in itertools.islice(drawn(registry, random.Random(1)), 25):
        assert resolved(yaml.safe_load(yaml.safe_dump(each.spec)), registry=registry) == each.spec, each.said


@pytest.mark.faults
@pytest.mark.held("A4", "A5", "A6", "A7", "A8", "A10")
def test_a_thousand_valid_specs_are_accepted_built_and_run(
    cli: Cli, known: None, registry: Registry, record_property: Callable[[str, object], None]
) -> None:
    built = run = refused = 0
    seen: set[str] = set()
    for each in drawn(registry, random.Random(20_260)):
        if spec_hash(each.spec) in seen:
            continue
        seen.add(spec_hash(each.spec))
        if not told(each, registry):
            refused += 1
            assert refused < 300, "components say too often when they are built what a rule should say before"
            continue
        built += 1
        Path("s.yaml").write_text(yaml.safe_dump(each.spec))
        said = cli("check", "s.yaml")
        assert (said.code, said.err) == (EXIT_OK, ""), (said, each.said)
        assert said.out.startswith(f"# {spec_hash(each.spec)}\n"), each.said
        if built % 5 == 0:
            run += passed(each, registry)
        if built == 1_000:
            break
    assert run >= 200
    record_property("valid specs drawn from the schema and accepted", built)
    record_property("of these given values and run forward", run)


def passed(each: Drawn, registry: Registry) -> int:
    """One pass of the model, with its first values."""
    made = Specimen(each.spec, registry, shaken=False)
    with torch.no_grad():
        assert made.hidden(made.told(made.tokens(1, 8))).isfinite().all(), each.said
    return 1
