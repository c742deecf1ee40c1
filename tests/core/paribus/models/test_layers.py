"""Compiled layers: equal losses and gradients, one graph for all batches, clear errors. Activation checkpointing."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from tests.fixtures.problems import raises_problem
from torch import Tensor, nn

import paribus
from paribus import Cost, FeedForward, Load, Shape, Traits
from paribus.datamodule.data import Data
from paribus.errors import SpecError
from paribus.models.evaluate import evaluate
from paribus.models.layers import configure_layers, is_compiled, is_compiled_in_part, report_compile_errors
from paribus.models.lightning_module import Model
from paribus.parts import chunked_loss
from paribus.parts.batch import Batch
from paribus.parts.stack import Layer, call_layer
from paribus.registry import Index, Registry, installed
from paribus.specs import resolved
from paribus.train.timed_steps import TimedSteps
from paribus.train.trial import TrialContext, run_trial
from paribus.train.trial_callback import InterruptedTrialError

pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning:torch"),  # dynamo's own
    pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf:UserWarning"),  # the same
]

Assemble = Callable[..., Model]
Feed = Callable[..., Data]
CPU = torch.device("cpu")
AOT = {"compile": {"backend": "aot_eager"}}  # graphs of forward and backward without generated code
INDUCTOR = {"compile": True}
TINY_PRESETS = sorted(name for name in installed().index.presets if name.endswith("-tiny"))
LARGER = {
    "kimi-linear-tiny": ("dims.layers=4",),
    "qwen3-next-tiny": ("dims.layers=4",),
    "olmo3-tiny": ("dims.layers=4",),
    "vit-tiny": ("dims.length=17",),
    "modernbert-tiny": ("dims.layers=3",),
    "bytenet-tiny": ("attention=[{name: bottleneck-conv}, {name: bottleneck-conv, dilation: 2}]",),
}
RECURRENT = ("elmo-tiny", "gnmt-tiny", "lstm-lm-tiny", "luong-tiny", "rnnsearch-tiny")  # not stacks, or do not compile
LABELLED = ("ctrl-tiny", "m2m100-tiny")
MOST_GRAPHS = 5  # of one preset: stacks, layers with other components, losses


@pytest.fixture(autouse=True)
def new_compiler() -> Iterator[None]:
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    torch._dynamo.utils.compilation_time_metrics.clear()
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


def assert_equal_steps(
    model: Model, data: Data, trainer: dict[str, Any], *, rtol: float, atol: float, steps: int = 3
) -> None:
    """Assert that losses and gradients of some steps are those of the model that is not compiled."""
    model.train()
    expected = [loss_and_gradients(model, data.step(step)) for step in range(steps)]
    configure_layers(model, trainer, CPU)
    assert is_compiled_in_part(model)
    for step, (loss, gradients) in enumerate(expected):
        compiled_loss, compiled_gradients = loss_and_gradients(model, data.step(step))
        torch.testing.assert_close(compiled_loss, loss, rtol=rtol, atol=atol)
        torch.testing.assert_close(compiled_gradients, gradients, rtol=rtol, atol=atol)


@pytest.mark.thorough
@pytest.mark.parametrize("preset", ["gpt-tiny", "bert-tiny"])
def test_the_loss_of_a_large_vocabulary_is_compiled_in_chunks(
    preset: str, assemble: Assemble, feed: Feed, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(chunked_loss, "MIN_CLASSES", 2)
    monkeypatch.setattr(chunked_loss, "CHUNK_LOGITS", {"cpu": 400})
    assert_equal_steps(assemble(preset).double(), feed(preset), AOT, rtol=0, atol=1e-10)
    assert graphs() <= 3  # of layers, of a chunk, and of the rest


@pytest.mark.thorough
@pytest.mark.parametrize("preset", ["gpt-tiny", "seq2seq-tiny"])
def test_compiled_layers_share_a_graph(preset: str, assemble: Assemble, feed: Feed) -> None:
    overrides = (preset, "dims.layers=6")
    assert_equal_steps(assemble(*overrides).double(), feed(*overrides), AOT, rtol=0, atol=1e-10)
    assert graphs() == (3 if preset == "seq2seq-tiny" else 2)  # one for each stack, and one for the loss


@pytest.mark.thorough
def test_evaluation_and_decoding_are_not_compiled(assemble: Assemble, feed: Feed) -> None:
    model, data = assemble("gpt-tiny"), feed("gpt-tiny")
    configure_layers(model, AOT, CPU)
    evaluate(model, data)
    with torch.no_grad():
        states = model.eval().start(1)
        for token in (15, 16, 17):
            model(torch.tensor([[token]]), states)
    assert not graphs()
    model.train().loss(data.step(0)).backward()
    assert graphs() == 2


@pytest.mark.parametrize(
    ("trainer", "device", "expected"),
    [
        ({}, "cpu", False),
        ({}, "cuda", True),
        ({"strategy": "fsdp"}, "cuda", False),
        ({"compile": True}, "cpu", True),
        ({"compile": False}, "cuda", False),
        ({"compile": {"mode": "max-autotune"}}, "cpu", True),
    ],
)
def test_layers_are_compiled_by_default_on_cuda_only(trainer: dict[str, Any], device: str, expected: bool) -> None:
    assert is_compiled(trainer, torch.device(device)) is expected


@pytest.mark.parametrize(
    ("trainer", "layer_mode", "head_mode"),
    [
        ({"compile": {"mode": "reduce-overhead"}}, "reduce-overhead", None),
        ({"compile": {"mode": "max-autotune"}}, "max-autotune", None),
        ({"compile": {"mode": "reduce-overhead"}, "accumulate_grad_batches": 2}, None, None),
        (
            {"compile": {"mode": "max-autotune-no-cudagraphs"}},
            "max-autotune-no-cudagraphs",
            "max-autotune-no-cudagraphs",
        ),
        ({"compile": True}, None, None),
    ],
    ids=str,
)
def test_cuda_graphs_hold_no_tensor_that_a_chunk_or_a_micro_batch_needs(
    trainer: dict[str, Any],
    layer_mode: str | None,
    head_mode: str | None,
    assemble: Assemble,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    modes: dict[Any, Any] = {}

    def record(function: Any, **options: Any) -> Any:
        modes[function] = options.get("mode")
        return function

    monkeypatch.setattr(torch, "compile", record)
    configure_layers(assemble("gpt-tiny"), trainer, torch.device("cuda"))
    assert modes == {call_layer: layer_mode, chunked_loss.head_loss: head_mode}


def test_sharded_layers_are_not_compiled(plugin_index: Index) -> None:
    with raises_problem(SpecError, "trainer-error", "trainer.compile") as caught:
        resolved("gpt-tiny", "trainer.strategy=fsdp", "trainer.compile=true", registry=plugin_index)
    assert [problem.path for problem in caught.value.problems] == ["trainer.compile"]


@pytest.mark.thorough
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
    assert [record["provenance"]["compiled_losses"] for record in records] == [0, 1]
    assert graphs() == 2
    seconds = [record["provenance"]["training_seconds"] for record in records]
    assert seconds[1] < seconds[0] + sum(torch._dynamo.utils.compilation_time_metrics["_compile.compile_inner"]) / 2


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


@pytest.mark.thorough
def test_a_graph_break_is_an_error_where_compilation_is_demanded(
    assemble: Assemble, feed: Feed, branching: Registry
) -> None:
    model, data = assemble("gpt-tiny", "feedforward=branching", registry=branching), feed("gpt-tiny")
    configure_layers(model, AOT, CPU)
    with raises_problem(SpecError, "cannot-compile", "trainer.compile") as caught, report_compile_errors():
        model.train().loss(data.step(0))
    (problem,) = caught.value.problems
    assert (problem.code, problem.path) == ("cannot-compile", "trainer.compile")
    assert f"{Path(__file__).name}:" in problem.message
    assert "\n" not in str(problem)


@pytest.mark.thorough
def test_a_graph_break_is_the_same_error_where_steps_are_timed(
    tiny: Callable[..., dict[str, Any]], branching: Registry
) -> None:
    spec = tiny(trainer={"max_steps": 1, **AOT}, feedforward={"name": "branching"})
    with raises_problem(SpecError, "cannot-compile", "trainer.compile"):
        TimedSteps(spec, branching, CPU).take(1)


def test_other_errors_are_not_reported_as_those_of_compilation() -> None:
    with pytest.raises(RuntimeError, match="out of range"), report_compile_errors():
        raise RuntimeError("out of range")


@pytest.mark.thorough
def test_layers_with_a_component_that_does_not_compile_stay_eager(
    assemble: Assemble, feed: Feed, branching: Registry
) -> None:
    model = assemble("gpt-tiny", "feedforward=[declared, mlp]", registry=branching)
    layers = configure_layers(model, AOT, CPU)
    assert layers.compiled == 1
    assert "1 of 2 layers" in layers.note
    assert [layer.compiled is None for layer in model.modules() if isinstance(layer, Layer)] == [True, False]
    model.train().loss(feed("gpt-tiny").step(0)).backward()
    assert graphs() == 2


def test_a_model_without_layers_says_that_none_is_compiled(assemble: Assemble) -> None:
    layers = configure_layers(assemble("rnnsearch-tiny"), AOT, CPU)
    assert (layers.compiled, layers.losses) == (0, 1)
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
    with raises_problem(SpecError, code, path) as caught:
        resolved("gpt-tiny", f"trainer.compile={value}", registry=plugin_index)
    assert [(problem.code, problem.path) for problem in caught.value.problems] == [(code, path)]


@pytest.mark.slow
def test_an_interrupted_compiled_trial_resumes_bitwise(
    tiny: Callable[..., dict[str, Any]], registry: Registry, tmp_path: Path
) -> None:
    spec = tiny(seed=1, trainer={"max_steps": 6, **INDUCTOR})
    folders = [tmp_path / "whole", tmp_path / "cut"]
    for folder in folders:
        folder.mkdir()
    whole = run_trial(spec, registry, TrialContext("trial", folders[0]))
    steps = iter(range(10))
    with pytest.raises(InterruptedTrialError, match="asked to stop"):
        run_trial(spec, registry, TrialContext("trial", folders[1], should_stop=lambda: next(steps) == 2))
    torch.compiler.reset()
    resumed = run_trial(spec, registry, TrialContext("trial", folders[1]))
    assert resumed["result"] == whole["result"]


@pytest.mark.slow
@pytest.mark.usefixtures("one_thread")
def test_a_compiled_trial_runs_in_two_processes(
    tiny: Callable[..., dict[str, Any]], registry: Registry, tmp_path: Path
) -> None:
    records = []
    both = {"accelerator": "cpu", "devices": 2, "strategy": "ddp"}
    for name, trainer in {"one": {}, "two": {**both, **AOT}}.items():
        (tmp_path / name).mkdir()
        spec = tiny(seed=1, trainer={"max_steps": 3, **trainer}, dropout=0.0)
        records.append(run_trial(spec, registry, TrialContext(name, tmp_path / name)))
    one, two = (record["result"]["losses"] for record in records)
    assert two == pytest.approx(one, rel=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("preset", TINY_PRESETS)
def test_every_preset_compiles_to_the_same_function(preset: str, assemble: Assemble, feed: Feed) -> None:
    overrides = (preset, *LARGER.get(preset, ()))
    if preset in LABELLED:  # by their own corpora
        spec = paribus.spec(*overrides)
        model, data = paribus.assemble(spec).double(), paribus.data(spec)
    else:
        model, data = assemble(*overrides).double(), feed(*overrides)
    assert (configure_layers(model, AOT, CPU).compiled == 0) is (preset in RECURRENT)
    if not is_compiled_in_part(model):
        return
    assert_equal_steps(model, data, AOT, steps=2, rtol=0, atol=1e-9)
    assert graphs() <= MOST_GRAPHS


@pytest.mark.slow
@pytest.mark.parametrize("preset", ["bert-tiny", "gpt2-tiny", "llama-tiny", "t5-tiny"])
def test_generated_code_computes_the_same_function(preset: str, assemble: Assemble, feed: Feed) -> None:
    overrides = (preset, "dropout=0", *LARGER.get(preset, ()))
    assert_equal_steps(assemble(*overrides), feed(*overrides), INDUCTOR, rtol=1e-3, atol=1e-5)


@pytest.mark.slow
def test_lengths_of_buckets_need_few_graphs(assemble: Assemble, feed: Feed) -> None:
    overrides = ("bert-tiny", "dims.length=64", "data.bucket=4", "data.batch=4")
    model, data = assemble(*overrides).train(), feed(*overrides)
    configure_layers(model, AOT, CPU)
    batches = [data.step(step) for step in range(8)]
    assert len({batch.streams["body"].tokens.shape for batch in batches}) > 2  # several lengths
    for batch in batches:
        model.loss(batch).backward()
    assert graphs() <= 4  # of layers and loss, for the first length and for any other


@pytest.mark.parametrize(
    "overrides",
    [
        ("gpt-tiny", "dropout=0.2"),
        ("gpt-tiny", "attention.scores.value_residual=true"),
        ("seq2seq-tiny",),
        ("gpt-tiny", "feedforward=moe"),
        ("deberta-tiny",),
        ("albert-tiny",),
    ],
    ids=" ".join,
)
def test_recomputed_activations_give_the_same_bits(overrides: tuple[str, ...], assemble: Assemble, feed: Feed) -> None:
    model, data = assemble(*overrides).train(), feed(*overrides)
    expected = loss_and_gradients(model, data.step(0))
    configure_layers(model, {"activation_checkpointing": True}, CPU)
    loss, gradients = loss_and_gradients(model, data.step(0))
    torch.testing.assert_close((loss, gradients), expected, rtol=0, atol=0)


def saved_bytes(model: Model, batch: Batch) -> int:
    """Return the bytes that autograd stores for the backward pass."""
    stored: dict[int, int] = {}

    def pack(tensor: Tensor) -> Tensor:
        stored[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        loss = model.loss(batch)
    del loss
    return sum(stored.values())


def test_recomputed_activations_are_not_stored(assemble: Assemble, feed: Feed) -> None:
    overrides = ("gpt-tiny", "dims.layers=8", "dims.length=128")
    model, batch = assemble(*overrides).train(), feed(*overrides).step(0)
    stored = saved_bytes(model, batch)
    configure_layers(model, {"activation_checkpointing": True}, CPU)
    assert saved_bytes(model, batch) < stored / 4


@pytest.mark.thorough
def test_checkpointed_layers_may_be_compiled(assemble: Assemble, feed: Feed) -> None:
    model, data = assemble("gpt-tiny").double(), feed("gpt-tiny")
    assert_equal_steps(model, data, {**AOT, "activation_checkpointing": True}, rtol=0, atol=1e-10)
    assert graphs() == 2


@pytest.mark.thorough
def test_a_trial_with_recomputed_activations_has_the_same_result(
    tiny: Callable[..., dict[str, Any]], registry: Registry, tmp_path: Path
) -> None:
    records = []
    for name, trainer in {"stored": {}, "recomputed": {"activation_checkpointing": True}}.items():
        (tmp_path / name).mkdir()
        spec = tiny(seed=1, trainer={"max_steps": 4, **trainer})
        records.append(run_trial(spec, registry, TrialContext(name, tmp_path / name)))
    assert records[0]["result"] == records[1]["result"]


def test_activation_checkpointing_is_a_boolean(plugin_index: Index) -> None:
    with raises_problem(SpecError, "wrong-type", "trainer.activation_checkpointing") as caught:
        resolved("gpt-tiny", "trainer.activation_checkpointing=all", registry=plugin_index)
    assert [problem.path for problem in caught.value.problems] == ["trainer.activation_checkpointing"]
    spec = resolved("gpt-tiny", "trainer.activation_checkpointing=false", registry=plugin_index)
    assert "activation_checkpointing" not in spec["trainer"]
