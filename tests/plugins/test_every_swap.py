"""Fairness of every registered component, swapped into a small model that accepts it, and trained."""

import copy
import json
from collections.abc import Callable, Iterator, Mapping
from itertools import count
from typing import Any, Final

import pytest

from paribus.analysis.certificates import Certificate, certify
from paribus.analysis.trials import TrialEntry
from paribus.errors import ParibusError
from paribus.registry import installed
from paribus.specs.resolve import resolved
from paribus.train.trial import TrialContext, run_trial

pytestmark = pytest.mark.slow

UNTRAINED_SLOTS: Final = ("launcher", "measure")  # not part of training
TEXT: Final = "\n\n".join(f"The {n}th paragraph says {n * n} words of its own. And it ends." for n in range(200))
DIMS: Final = {"width": 16, "layers": 2, "heads": 4, "length": 16}
SHORT: Final = {"data": {"batch": 4, "validation": 8}, "trainer": {"max_steps": 3}}
BASES: Final = ("encoder-tiny", "gpt-tiny", "t5-tiny", "transformer-tiny", "rnnsearch-tiny")

Node = dict[str, Any]
Train = Callable[[Node], TrialEntry]


def components() -> Iterator[Any]:
    index = installed(no_plugins=True).index
    for slot, entries in index.entries.items():
        for name, entry in entries.items():
            if slot not in UNTRAINED_SLOTS:
                options = {option.name: option.sample for option in entry.options if option.required}
                yield pytest.param(slot, {"name": name, **options}, id=f"{slot}.{name}")


@pytest.fixture(scope="module")
def bases(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Node]:
    path = tmp_path_factory.mktemp("corpus") / "corpus.txt"
    path.write_text(TEXT, encoding="utf-8")
    text = {"name": "text", "path": [str(path)], "documents": "paragraph"}
    overrides: dict[str, Node] = {
        "encoder-tiny": {"corpus": text, "dims": DIMS},
        "gpt-tiny": {"corpus": text, "dims": DIMS},
        "t5-tiny": {"corpus": text, "dims": {**DIMS, "vocabulary": None}, "tokenizer": "bytes"},
        "transformer-tiny": {"dims": DIMS},
        "rnnsearch-tiny": {},
    }
    return {name: {"preset": name, **SHORT, **overrides[name]} for name in BASES}


@pytest.fixture(scope="module")
def train(tmp_path_factory: pytest.TempPathFactory) -> Train:
    folder, registry = tmp_path_factory.mktemp("trials"), installed()
    numbers, cache = count(), dict[str, TrialEntry]()

    def train(node: Node, changes: Node | None = None) -> TrialEntry:
        key, changes = json.dumps([node, changes], sort_keys=True), changes or {}
        if key not in cache:
            trial_folder = folder / f"{next(numbers)}"
            trial_folder.mkdir()
            spec = resolved(copy.deepcopy(node), registry=registry)
            result = run_trial(
                spec, registry, TrialContext(identity=trial_folder.name, folder=trial_folder, changes=changes)
            )
            record = json.loads(json.dumps(result))
            trial = {"identity": trial_folder.name, "spec": spec, "changes": changes, "code": "", "corpus": ""}
            variant = "variant" if changes else "baseline"
            cache[key] = TrialEntry(
                variant=variant, seed=0, trial=trial, record=record, state=record["result"]["state"]
            )
        return cache[key]

    return train


@pytest.mark.parametrize(("slot", "node"), list(components()))
def test_a_swap_of_one_component_is_fair(
    slot: str, node: Node, bases: Mapping[str, Node], train: Callable[..., TrialEntry]
) -> None:
    refusals: list[str] = []
    for base, base_node in bases.items():
        try:
            variant = train({**base_node, slot: node}, {slot: node})
        except (ParibusError, ImportError) as error:
            refusals.append(f"{base}: {str(error).splitlines()[0]}")
            continue
        baseline = train(base_node)
        certificate: Certificate = certify(baseline, variant)
        is_same = baseline.trial["spec"][slot] == variant.trial["spec"][slot]
        assert certificate.ok != is_same, certificate.text
        if is_same:
            assert "changed nothing" in certificate.text
        return
    pytest.skip("; ".join(refusals))


def test_common_components_are_not_skipped(bases: Mapping[str, Node], train: Callable[..., TrialEntry]) -> None:
    """A sweep that skips everything would pass: these must be accepted by a base."""
    for slot, name in (("attention", "gqa"), ("norm", "rmsnorm"), ("objective", "clm"), ("placement", "post")):
        node = {"name": name}
        assert any(_accepts(train, {**base_node, slot: node}, {slot: node}) for base_node in bases.values())


def _accepts(train: Callable[..., TrialEntry], node: Node, changes: Node) -> bool:
    try:
        train(node, changes)
    except ParibusError:
        return False
    return True
