"""Whatever is registered, swapped into a small model that takes it, and trained: the certificate finds it fair."""

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

ELSEWHERE: Final = ("launcher", "measure")  # no part of what is trained
TEXT: Final = "\n\n".join(f"The {n}th paragraph says {n * n} words of its own. And it ends." for n in range(200))
DIMS: Final = {"width": 16, "layers": 2, "heads": 4, "length": 16}
SHORT: Final = {"data": {"batch": 4, "validation": 8}, "trainer": {"max_steps": 3}}
BASES: Final = ("encoder-tiny", "gpt-tiny", "t5-tiny", "transformer-tiny", "rnnsearch-tiny")

Node = dict[str, Any]
Trained = Callable[[Node], TrialEntry]


def components() -> Iterator[Any]:
    index = installed(no_plugins=True).index
    for slot, entries in index.entries.items():
        for name, entry in entries.items():
            if slot not in ELSEWHERE:
                given = {option.name: option.sample for option in entry.options if option.required}
                yield pytest.param(slot, {"name": name, **given}, id=f"{slot}.{name}")


@pytest.fixture(scope="module")
def bases(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Node]:
    path = tmp_path_factory.mktemp("corpus") / "corpus.txt"
    path.write_text(TEXT, encoding="utf-8")
    text = {"name": "text", "path": [str(path)], "documents": "paragraph"}
    more: dict[str, Node] = {
        "encoder-tiny": {"corpus": text, "dims": DIMS},
        "gpt-tiny": {"corpus": text, "dims": DIMS},
        "t5-tiny": {"corpus": text, "dims": {**DIMS, "vocabulary": None}, "tokenizer": "bytes"},
        "transformer-tiny": {"dims": DIMS},
        "rnnsearch-tiny": {},
    }
    return {name: {"preset": name, **SHORT, **more[name]} for name in BASES}


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Trained:
    folder, registry = tmp_path_factory.mktemp("trials"), installed()
    numbers, known = count(), dict[str, TrialEntry]()

    def train(given: Node, varied: Node | None = None) -> TrialEntry:
        key, varied = json.dumps([given, varied], sort_keys=True), varied or {}
        if key not in known:
            place = folder / f"{next(numbers)}"
            place.mkdir()
            spec = resolved(copy.deepcopy(given), registry=registry)
            found = run_trial(spec, registry, TrialContext(identity=place.name, folder=place, changes=varied))
            record = json.loads(json.dumps(found))
            trial = {"identity": place.name, "spec": spec, "changes": varied, "code": "", "corpus": ""}
            variant = "variant" if varied else "baseline"
            known[key] = TrialEntry(
                variant=variant, seed=0, trial=trial, record=record, state=record["result"]["state"]
            )
        return known[key]

    return train


@pytest.mark.parametrize(("slot", "node"), list(components()))
def test_a_swap_of_one_component_is_fair(
    slot: str, node: Node, bases: Mapping[str, Node], trained: Callable[..., TrialEntry]
) -> None:
    refusals: list[str] = []
    for base, given in bases.items():
        try:
            variant = trained({**given, slot: node}, {slot: node})
        except (ParibusError, ImportError) as error:
            refusals.append(f"{base}: {str(error).splitlines()[0]}")
            continue
        baseline = trained(given)
        found: Certificate = certify(baseline, variant)
        own = baseline.trial["spec"][slot] == variant.trial["spec"][slot]
        assert found.ok != own, found.text
        if own:
            assert "changed nothing" in found.text
        return
    pytest.skip("; ".join(refusals))


def test_the_sweep_reaches_most_of_what_is_registered(
    bases: Mapping[str, Node], trained: Callable[..., TrialEntry]
) -> None:
    """A sweep that skipped all would find nothing: these must not be refused by every base."""
    for slot, name in (("attention", "gqa"), ("norm", "rmsnorm"), ("objective", "clm"), ("placement", "post")):
        node = {"name": name}
        assert any(_takes(trained, {**given, slot: node}, {slot: node}) for given in bases.values())


def _takes(trained: Callable[..., TrialEntry], given: Node, varied: Node) -> bool:
    try:
        trained(given, varied)
    except ParibusError:
        return False
    return True
