"""Compiled layers: equal losses and gradients, one graph for all batches, and clear errors."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor, nn

from paribus import Cost, FeedForward, Load, Shape, Traits
from paribus.errors import SpecError
from paribus.parts.batch import Batch
from paribus.parts.stack import Layer
from paribus.registry import Index, Registry
from paribus.specs import resolved
from paribus.train.compile import compile_layers, is_compiled, report_compile_errors
from paribus.train.data import Data
from paribus.train.evaluate import evaluate
from paribus.train.lightning_module import Model
from paribus.train.trial import TrialContext, run_trial

pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning:torch"),  # dynamo's own
    pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf:UserWarning"),  # the same
]

Assemble = Callable[..., Model]
Feed = Callable[..., Data]
CPU = torch.device("cpu")
AOT = {"compile": {"backend": "aot_eager"}}  # graphs of forward and backward without generated code


@pytest.fixture(autouse=True)
def new_compiler() -> Iterator[None]:
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    yield
    torch._dynamo.reset()


def graphs() -> int:
    return int(torch._dynamo.utils.counters["stats"]["unique_graphs"])


def loss_and_gradients(model: Model, batch: Batch) -> tuple[Tensor, dict[str, Tensor]]:
    torch.manual_seed(0)
    model.zero_grad()
    loss = model.loss(batch)
    loss.backward()
    return loss.detach(), {
        name: parameter.grad.clone() for name, parameter in model.named_parameters() if parameter.grad is not None
    }


def assert_equal_steps(model: Model, data: Data, trainer: dict[str, Any], *, steps: int = 3, **near: float) -> None:
    """Assert that losses and gradients of some steps are those of the model that is not compiled."""
    model.train()
    expected = [loss_and_gradients(model, data.step(step)) for step in range(steps)]
    assert compile_layers(model, trainer, CPU).compiled
    for step, (loss, gradients) in enumerate(expected):
        compiled_loss, compiled_gradients = loss_and_gradients(model, data.step(step))
        torch.testing.assert_close(compiled_loss, loss, **near)
        torch.testing.assert_close(compiled_gradients, gradients, **near)


@pytest.mark.parametrize("preset", ["gpt-tiny", "seq2seq-tiny"])
def test_compiled_layers_share_a_graph(preset: str, assemble: Assemble, feed: Feed) -> None:
    overrides = (preset, "dims.layers=6")
    assert_equal_steps(assemble(*overrides).double(), feed(*overrides), AOT, rtol=0, atol=1e-10)
    assert graphs() == (2 if preset == "seq2seq-tiny" else 1)  # one for each stack


def test_evaluation_and_decoding_are_not_compiled(assemble: Assemble, feed: Feed) -> None:
    model, data = assemble("gpt-tiny"), feed("gpt-tiny")
    compile_layers(model, AOT, CPU)
    evaluate(model, data)
    with torch.no_grad():
        states = model.eval().start(1)
        for token in (15, 16, 17):
            model(torch.tensor([[token]]), states)
    assert not graphs()
    model.train().loss(data.step(0)).backward()
    assert graphs() == 1


@pytest.mark.parametrize(("given", "device", "expected"), [
    (None, "cpu", False),
    (None, "cuda", True),
    (True, "cpu", True),
    (False, "cuda", False),
    ({"mode": "max-autotune"}, "cpu", True),
])  # fmt: skip
def test_layers_are_compiled_by_default_on_cuda_only(given: Any, device: str, expected: bool) -> None:
    trainer = {} if given is None else {"compile": given}
    assert is_compiled(trainer, torch.device(device)) is expected


def test_a_compiled_trial_has_the_result_of_an_eager_one(
    tiny: Callable[..., dict[str, Any]], registry: Registry, tmp_path: Path
) -> None:
    records = []
    for name, trainer in {"eager": {}, "compiled": AOT}.items():
        (tmp_path / name).mkdir()
        spec = tiny(seed=1, trainer={"max_steps": 4, **trainer}, dropout=0.0)
        records.append(run_trial(spec, registry, TrialContext(name, tmp_path / name)))
    eager, compiled = records
    assert compiled["result"]["losses"] == pytest.approx(eager["result"]["losses"], rel=1e-5)
    assert compiled["result"]["metrics"] == pytest.approx(eager["result"]["metrics"], rel=1e-4)
    assert compiled["result"]["certificate"]["first_step"] == eager["result"]["certificate"]["first_step"]
    assert compiled["result"]["certificate"]["hooks"] == []
    layers = [record["provenance"]["compiled_layers"] for record in records]
    assert layers == [0, spec["dims"]["layers"]]
    assert graphs() == 1


class DataDependent(FeedForward):
    """Feed-forward with a branch on a value, which breaks the graph."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.linear = nn.Linear(shape.width, shape.width)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor | None]:
        y: Tensor = self.linear(x)
        return (y if y.sum().item() > 0 else -y), None

    def cost(self, load: Load) -> Cost:
        return Cost(flops=2 * load.queries * self.linear.weight.numel())


class DeclaredDataDependent(DataDependent):
    """The same, declared."""

    traits: ClassVar[Traits] = {"compiles": False}


@pytest.fixture
def branching(components: Registry) -> Registry:
    return components.with_components(feedforward={"branching": DataDependent, "declared": DeclaredDataDependent})


def test_a_graph_break_is_an_error_where_compilation_is_demanded(
    assemble: Assemble, feed: Feed, branching: Registry
) -> None:
    model, data = assemble("gpt-tiny", "feedforward=branching", registry=branching), feed("gpt-tiny")
    compile_layers(model, AOT, CPU)
    with pytest.raises(SpecError, match="cannot-compile") as caught, report_compile_errors():
        model.train().loss(data.step(0))
    (problem,) = caught.value.problems
    assert (problem.code, problem.path) == ("cannot-compile", "trainer.compile")
    assert f"{Path(__file__).name}:" in problem.message
    assert "\n" not in str(problem)


def test_other_errors_are_not_reported_as_those_of_compilation() -> None:
    with pytest.raises(RuntimeError, match="out of range"), report_compile_errors():
        raise RuntimeError("out of range")


def test_layers_with_a_component_that_does_not_compile_stay_eager(
    assemble: Assemble, feed: Feed, branching: Registry
) -> None:
    model = assemble("gpt-tiny", "feedforward=[declared, mlp]", registry=branching)
    layers = compile_layers(model, AOT, CPU)
    assert layers.compiled == 1
    assert "1 of 2 layers" in layers.note
    assert [layer.compiled is None for layer in model.modules() if isinstance(layer, Layer)] == [True, False]
    model.train().loss(feed("gpt-tiny").step(0)).backward()
    assert graphs() == 1


def test_a_model_without_layers_says_that_nothing_is_compiled(assemble: Assemble) -> None:
    layers = compile_layers(assemble("rnnsearch-tiny"), AOT, CPU)
    assert layers.compiled == 0
    assert "no stack of layers" in layers.note


@pytest.mark.parametrize(
    ("value", "resolved_value"),
    [
        ("true", True),
        ("false", False),
        ("{}", True),
        ("{mode: default}", True),
        ("{mode: max-autotune}", {"mode": "max-autotune"}),
        ("{backend: aot_eager}", {"backend": "aot_eager"}),
    ],
)
def test_values_of_compile(value: str, resolved_value: Any, plugin_index: Index) -> None:
    spec = resolved("gpt-tiny", f"trainer.compile={value}", registry=plugin_index)
    assert spec["trainer"]["compile"] == resolved_value


def test_null_is_the_default(plugin_index: Index) -> None:
    assert "compile" not in resolved("gpt-tiny", "trainer.compile=null", registry=plugin_index)["trainer"]


@pytest.mark.parametrize(
    ("value", "code", "path"),
    [
        ("max-autotune", "wrong-type", "trainer.compile"),
        ("3", "wrong-type", "trainer.compile"),
        ("{mode: fast}", "wrong-type", "trainer.compile.mode"),
        ("{modes: default}", "unknown-key", "trainer.compile.modes"),
        ("{mode: max-autotune, backend: eager}", "does-not-fit", "trainer.compile.mode"),
    ],
)
def test_invalid_values_of_compile(value: str, code: str, path: str, plugin_index: Index) -> None:
    with pytest.raises(SpecError, match=code) as caught:
        resolved("gpt-tiny", f"trainer.compile={value}", registry=plugin_index)
    assert [(problem.code, problem.path) for problem in caught.value.problems] == [(code, path)]
