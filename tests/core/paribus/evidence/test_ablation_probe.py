"""Ablation probe: each changed option is reset by itself, and options without effect are reported."""

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, ClassVar, final

import pytest
import torch
from torch import Tensor, nn

from paribus import Norm, Optimizer, Range, Role, TrainedTensor
from paribus.datamodule.token_store import EncodedCorpus
from paribus.evidence import ablation_probe
from paribus.evidence.ablation_probe import ProbeContext, ProbeResult, parameter_shapes, probe_variant, varied_options
from paribus.models.assemble import build_model
from paribus.registry import Registry
from paribus.specs.resolve import resolved

SMALL = {"preset": "encoder-tiny", "dims": {"width": 16, "layers": 1, "heads": 4, "length": 16}}
FEW = {"batch": 4, "validation": 8}


def spec(components: Registry, **changes: Any) -> dict[str, Any]:
    return dict(resolved({**SMALL, "data": FEW, **changes}, registry=components))


def found_of(
    components: Registry, text: EncodedCorpus, instead: dict[str, Any] | None = None, **varied: Any
) -> ProbeResult:
    return probe_variant(spec(components, **varied), varied, components, text, instead)


def test_varied_options_include_nested_and_dotted_settings(components: Registry) -> None:
    attention = {"name": "gqa", "kv_heads": 1, "scores": {"qk_norm": True}}
    whole = spec(components, attention=attention, optimizer={"name": "adamw", "lr": 0.1})
    ways: dict[str, Any] = {"attention": attention, "dims.width": 16, "optimizer.lr": 0.1}
    values_by_path = {
        setting.path: (setting.value, setting.alternatives[0])
        for setting in varied_options(whole, ways, components.index)
    }
    assert values_by_path.keys() == {"attention.kv_heads", "attention.scores.qk_norm", "optimizer.lr"}
    assert values_by_path["attention.scores.qk_norm"] == (True, False)
    dotted = {"attention": "gqa", "attention.kv_heads": 1, "norm": "rmsnorm"}
    assert [setting.path for setting in varied_options(whole, dotted, components.index)] == ["attention.kv_heads"]


def test_a_single_change_is_not_probed(components: Registry) -> None:
    unread: Any = None  # nothing is encoded, nothing is built
    assert probe_variant(spec(components, attention="mqa"), {"attention": "mqa"}, components, unread) == ProbeResult()


@pytest.mark.parametrize(
    ("attention", "ignored_paths"),
    [
        ({"name": "gqa", "kv_heads": 1}, ("attention.kv_heads",)),
        ({"name": "mha", "scores": {"qk_norm": True}}, ("attention.scores.qk_norm",)),
        ({"name": "restricted", "window": 3}, ("attention.window",)),
    ],
)
def test_effective_options_are_not_ignored_and_probing_draws_no_random_numbers(
    components: Registry, text: EncodedCorpus, attention: dict[str, Any], ignored_paths: tuple[str, ...]
) -> None:
    rng_state = torch.get_rng_state()
    assert found_of(components, text, attention=attention, norm="rmsnorm") == ProbeResult(probed=ignored_paths)
    assert torch.equal(rng_state, torch.get_rng_state())


def test_probing_does_not_read_the_generators_of_gpus(
    components: Registry, text: EncodedCorpus, monkeypatch: pytest.MonkeyPatch
) -> None:
    indices: list[int] = []

    def get_rng_state(index: int) -> Tensor:
        indices.append(index)
        return torch.tensor(0)

    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "get_rng_state", get_rng_state)
    monkeypatch.setattr(torch.cuda, "set_rng_state", lambda state, device="cuda": None)
    assert found_of(components, text, attention={"name": "gqa", "kv_heads": 1}, norm="rmsnorm").probed
    assert indices == []  # reading one opens a CUDA context on its GPU


def test_a_value_equal_to_the_default_choice_is_not_ignored(components: Registry, text: EncodedCorpus) -> None:
    """`inner: null` lets the component choose the width, which may equal the one that was set."""
    small = ProbeContext(components, text)
    glu = {"name": "glu"}
    default = parameter_shapes(spec(components, feedforward=glu), small)
    chosen = next(
        inner_width
        for inner_width in range(32, 65)
        if parameter_shapes(spec(components, feedforward={**glu, "inner": inner_width}), small) == default
    )
    findings = found_of(components, text, feedforward={**glu, "inner": chosen}, norm="rmsnorm")
    assert findings == ProbeResult(probed=("feedforward.inner",))


@final
class Idling(Norm):
    """Root mean square norm with options that matter only for short sequences, only without training, or never."""

    roles: ClassVar[Mapping[str, Role]] = {"weight": "gain"}

    def __init__(
        self,
        width: int,
        *,
        minimum: Annotated[float, "roots below it are it", Range(above=0)] = 1e-5,
        unread: Annotated[float, "read here, and nowhere else"] = 1.0,
        chosen: Annotated[int | None, "read here, and nowhere else; null: 1"] = None,
        single: Annotated[float, "what a row by itself is multiplied by"] = 1.0,
    ) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(width))
        self.minimum, self.single = minimum, single
        self.unread = (unread, chosen)

    def forward(self, x: Tensor) -> Tensor:
        root = x.square().mean(-1, keepdim=True).sqrt().clamp(min=self.minimum)
        return self.weight * x / root * (self.single if x.shape[-2] == 1 else 1.0)


@final
class Plain(Optimizer):
    """Gradient descent that ignores one of its options."""

    def __init__(
        self, *, lr: Annotated[float, "rate", Range(above=0)] = 0.1, nesterov: Annotated[bool, "unread"] = False
    ) -> None:
        self.lr, self.nesterov = lr, nesterov

    def build(self, tensors: Sequence[TrainedTensor]) -> torch.optim.Optimizer:
        return torch.optim.SGD([tensor.parameter for tensor in tensors], lr=self.lr)


@pytest.fixture(name="strange")
def _strange(components: Registry) -> Registry:
    return components.with_components(norm={"idling": Idling}, optimizer={"plain": Plain})


@pytest.mark.thorough
def test_an_option_without_an_effective_value_is_ignored(strange: Registry, text: EncodedCorpus) -> None:
    norm = {"name": "idling", "unread": 3.0, "chosen": 2}
    findings = found_of(strange, text, norm=norm, attention="mqa", optimizer={"name": "plain", "nesterov": True})
    assert findings.ignored == ("norm.unread", "norm.chosen", "optimizer.nesterov")  # a null default is no way out
    assert findings.neutral == ()


def test_options_for_short_sequences_or_inference_are_distinguished(strange: Registry, text: EncodedCorpus) -> None:
    varied: dict[str, Any] = {"norm": {"name": "idling", "minimum": 2e-5, "single": 2.0}, "position": "none"}
    whole = spec(strange, preset="gpt-tiny", **varied)
    findings = probe_variant(whole, varied, strange, text)
    assert findings == ProbeResult(probed=("norm.minimum", "norm.single"), neutral=("norm.minimum", "norm.single"))


def test_a_change_hidden_by_another_change_acts_as_baseline(components: Registry, text: EncodedCorpus) -> None:
    instead = {key: spec(components)[key] for key in ("attention", "norm")}
    wide: dict[str, Any] = {"attention": {"name": "restricted", "window": 16}, "norm": "rmsnorm"}
    assert found_of(components, text, instead, **wide).same_as_baseline == ("attention",)
    narrow: dict[str, Any] = {"attention": {"name": "restricted", "window": 2}, "norm": "rmsnorm"}
    assert found_of(components, text, instead, **narrow).same_as_baseline == ()


def test_a_baseline_component_that_does_not_fit_the_variant_is_not_tried(
    components: Registry, text: EncodedCorpus
) -> None:
    varied = {"topology": "decoder", "attention": "mha", "norm": "rmsnorm", "placement": "pre", "feedforward": "glu"}
    instead = {key: spec(components, preset="lstm-lm-tiny")[key] for key in ("topology", "attention")}
    whole = spec(components, preset="lstm-lm-tiny", **varied)
    assert probe_variant(whole, varied, components, text, instead).same_as_baseline == ()


def test_schedules_and_optimizers_are_probed_without_a_model(components: Registry, monkeypatch: Any) -> None:
    monkeypatch.setattr(ablation_probe, "build_model", None)
    varied: dict[str, Any] = {
        "optimizer": {"name": "adamw", "weight_decay": 0.5},
        "schedule": {"name": "warmup-cosine", "warmup": 0.5},
    }
    unread: Any = None
    findings = probe_variant(spec(components, **varied), varied, components, unread)
    assert findings == ProbeResult(probed=("optimizer.weight_decay", "schedule.warmup"))


def test_shape_changes_are_detected_without_running_a_model(
    components: Registry, text: EncodedCorpus, monkeypatch: Any
) -> None:
    monkeypatch.setattr(ablation_probe, "build_model", None)
    findings = found_of(components, text, attention={"name": "gqa", "kv_heads": 1}, norm="rmsnorm")
    assert findings == ProbeResult(probed=("attention.kv_heads",))


def test_a_model_that_is_too_large_to_run_has_no_findings(
    components: Registry, text: EncodedCorpus, monkeypatch: Any
) -> None:
    monkeypatch.setattr(ablation_probe, "MAX_WORK", 1)
    findings = found_of(
        components, text, attention={"name": "gqa", "kv_heads": 1}, norm={"name": "rmsnorm", "eps": 0.5}
    )
    assert findings == ProbeResult(probed=("attention.kv_heads",))


def test_most_options_are_probed_with_few_layers(components: Registry, text: EncodedCorpus, monkeypatch: Any) -> None:
    layer_counts: list[int] = []

    def counting(spec: Any, *rest: Any) -> Any:
        layer_counts.append(spec["dims"]["layers"])
        return build_model(spec, *rest)

    monkeypatch.setattr(ablation_probe, "build_model", counting)
    dims = {**SMALL["dims"], "layers": 6}  # type: ignore[dict-item]  # it is a mapping
    findings = found_of(components, text, dims=dims, attention="mqa", norm={"name": "rmsnorm", "eps": 0.5})
    assert findings == ProbeResult(probed=("norm.eps",))
    assert layer_counts == [2, 2]
