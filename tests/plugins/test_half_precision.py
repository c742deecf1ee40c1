"""Every component computes in half precision on the processors that people have, also on those without AVX-512.

`make test-processors` runs these tests with variables that make torch leave out newer instructions.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import pytest
import torch

from paribus.datamodule.synthetic_corpus import encode_synthetic_corpus
from paribus.datamodule.token_store import EncodedCorpus
from paribus.models.assemble import build_data, build_model
from paribus.models.precision import PRECISIONS
from paribus.registry import Registry, installed
from paribus.testing.conformance import ARCHITECTURE, CHECKS
from paribus.testing.host_models import Case, HostModel, base_specs, host_models

pytestmark = [
    pytest.mark.processors,
    pytest.mark.filterwarnings("ignore:Mismatch dtype between input and weight"),  # norms under autocast
]

CHECK: Final = CHECKS["low precision gives the same function"]
TRAINED: Final = (*ARCHITECTURE, "objective")
PRECISIONS_TRIED: Final = ("bf16-mixed", "bf16-true", "16-mixed")
LENGTH: Final = 32
EXAMPLES: Final = 2
DOCUMENTS: Final = 12


@pytest.fixture(scope="module")
def registry() -> Registry:
    return installed(no_plugins=True)


@pytest.fixture(scope="module")
def corpora() -> dict[str, EncodedCorpus]:
    """Encoded corpora, by what they depend on."""
    return {}


def topics() -> list[str]:
    entries = installed(no_plugins=True).index.entries
    return [f"{slot}.{name}" for slot in TRAINED for name in entries[slot]]


@pytest.mark.parametrize("topic", topics())
def test_every_component_computes_and_trains_in_half_precision(
    topic: str, registry: Registry, corpora: dict[str, EncodedCorpus], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The conformance check in each preset; a step in one of them, and with each choice of the component's options."""
    monkeypatch.setattr("paribus.testing.host_models._NEIGHBOUR_SLOTS", {})  # no models with other neighbours
    case = Case(registry, registry.index.find(*topic.split(".", 1)), base_specs(None, registry))
    case.host_models.extend(host_models(case))
    failures: list[str] = []
    if case.entry.slot in CHECK.slots:
        with torch.no_grad():
            verdicts = {host.label: CHECK.run(case, host) for host in CHECK.select_models(case.host_models)}
        failures += [f"{label}: {verdict}" for label, verdict in verdicts.items() if verdict]
    choices = {option.name for option in case.entry.options if option.kind.name in ("choice", "bool")}
    variants = [host for host in case.host_models if host.label.rpartition(", ")[2].partition("=")[0] in choices]
    for host in (case.host_models[0], *variants):
        failures += [f"{host.label}, {failure}" for failure in failed_steps(case, host, corpora)]
    assert not failures


def failed_steps(case: Case, host: HostModel, corpora: dict[str, EncodedCorpus]) -> Iterator[str]:
    """Yield the precisions in which a forward and backward pass raises, or gives a gradient that is not finite."""
    dims = host.spec["dims"] if case.small_model(host).has_fixed_length else {**host.spec["dims"], "length": LENGTH}
    spec = {**host.spec, "dims": dims, "data": {**host.spec["data"], "batch": EXAMPLES}}
    key = repr([spec[name] for name in ("objective", "tokenizer", "corpus", "embedding")])
    if key not in corpora:
        corpora[key] = encode_synthetic_corpus(spec, case.registry, DOCUMENTS)
    text = corpora[key]
    batch = build_data(spec, case.registry, text).step(0)
    for name in PRECISIONS_TRIED:
        precision = PRECISIONS[name]
        model = build_model(spec, case.registry, text.vocabulary).to(precision.parameters)
        if spec.get("teacher") is not None:
            teacher_spec = {**spec, "seed": spec["seed"] + 1}
            model.set_teacher(build_model(teacher_spec, case.registry, text.vocabulary).to(precision.parameters))
        try:
            with precision.context(torch.device("cpu")):
                loss = model.loss(batch)
            loss.backward()
        except RuntimeError as error:
            yield f"{name}: {error}"
            continue
        gradients = [parameter.grad for parameter in model.parameters() if parameter.grad is not None]
        if not all(bool(tensor.isfinite().all()) for tensor in (loss, *gradients)):
            yield f"{name}: a value that is not finite"
