"""Recurrent encoder-decoder: padding, feeding, documents, costs and validation."""

from collections.abc import Callable
from functools import partial
from itertools import pairwise

import pytest
import torch
from tests.fixtures.problems import raises_problem
from torch import Tensor

import paribus
from paribus import Output, SpecError, StepInput, Stream, memory_of
from paribus.assembly.cost import model_cost, tokens_per_part
from paribus.complexity.counting import flop_counter
from paribus.models.assemble import meta_model
from paribus.models.lightning_module import Model
from paribus.registry import installed

SOURCES, TARGETS = [[30, 14, 41, 51, 92], [65, 35, 89]], [[79, 32, 38, 46], [26, 43, 38, 32]]
INDEX = installed(no_plugins=True).index
CROSSING = [name for name, entry in INDEX.entries["attention"].items() if entry.traits.get("cross")]
RAW = [name for name in CROSSING if INDEX.entries["attention"][name].traits.get("raw_memory")]
MANNERS: dict[str, tuple[str, ...]] = {
    "rnnsearch": ("rnnsearch-tiny",),
    "luong": ("luong-tiny", "dims.layers=2"),
    "both ways, and the state behind asks": ("rnnsearch-tiny", "topology.query=current", "topology.cell=lstm"),
    "nothing is fed": ("rnnsearch-tiny", "topology.input_feeding=false", "topology.cell=gru-after", "dims.layers=2"),
    "nothing is fed, and the state behind asks": (
        "luong-tiny",
        "topology.input_feeding=false",
        "topology.readout=maxout",
    ),
    "the first state is learned": ("rnnsearch-tiny", "topology.initial_state=learned"),
}
Recurrent = Callable[..., Model]
RunBoth = Callable[..., Output]
PaddedStream = Callable[..., Stream]
same = partial(torch.testing.assert_close, rtol=0, atol=1e-12)


def run_separately(run_both: RunBoth, model: Model, source: list[int], target: list[int]) -> Tensor:
    return run_both(model, Stream(torch.tensor([source])), Stream(torch.tensor([target]))).hidden[0]


@pytest.mark.few(2)
@pytest.mark.parametrize("options", MANNERS.values(), ids=MANNERS)
def test_padding_does_not_change_outputs(
    options: tuple[str, ...], recurrent: Recurrent, padded_stream: PaddedStream, run_both: RunBoth
) -> None:
    model = recurrent(*options)
    targets = [TARGETS[0], TARGETS[1][:2]]
    for side in ("right", "left"):
        hidden = run_both(model, padded_stream(SOURCES, side), padded_stream(targets, side)).hidden
        for row, (source, target) in enumerate(zip(SOURCES, targets, strict=True)):
            start = 4 - len(target) if side == "left" else 0
            same(hidden[row, start : start + len(target)], run_separately(run_both, model, source, target))


@pytest.mark.parametrize("options", MANNERS.values(), ids=MANNERS)
def test_input_feeding_matches_given_inputs(
    options: tuple[str, ...], recurrent: Recurrent, padded_stream: PaddedStream, run_both: RunBoth
) -> None:
    """Inputs are the own token, another token, or a mean of two tokens, which may be equal."""
    model, read = recurrent(*options), {1: torch.tensor([90, 91]), 3: torch.tensor([92, 93])}
    source, target = padded_stream(SOURCES), padded_stream(TARGETS)
    memory = memory_of(model.topology.run({"encoder": source}, "encoder"))
    outputs: dict[int, Tensor] = {}

    def feed(row: int, output: Tensor) -> StepInput | None:
        outputs[row - 1] = output
        if row not in read:
            return None
        nothing = torch.zeros(2, 300, dtype=torch.float64)
        return StepInput(read[row], nothing if row == 3 else None)

    hidden = model.topology.run_with_feedback({"body": target}, feed, memory).hidden
    tokens = target.tokens.clone()
    for row, input_token in read.items():
        tokens[:, row] = input_token
    same(hidden, run_both(model, source, target._replace(tokens=tokens)).hidden)
    assert list(outputs) == [0, 1, 2]
    same(torch.stack([*outputs.values()], dim=1), hidden[:, :-1])

    def mean(row: int, output: Tensor) -> StepInput:
        weights = torch.nn.functional.one_hot(torch.tensor([50, 51]), 300) - torch.nn.functional.one_hot(
            tokens[:, row], 300
        )
        return StepInput(tokens[:, row], weights.double())

    changed = torch.cat([tokens[:, :1], torch.tensor([[50], [51]]).expand(-1, 3)], dim=1)
    same(
        model.topology.run_with_feedback({"body": target}, mean, memory).hidden,
        run_both(model, source, target._replace(tokens=changed)).hidden,
    )


@pytest.mark.parametrize("options", MANNERS.values(), ids=MANNERS)
def test_packed_documents_start_from_their_encoder_states(
    options: tuple[str, ...], recurrent: Recurrent, run_both: RunBoth
) -> None:
    model = recurrent(*options)
    source, target = (
        Stream(torch.tensor([[*left, *right]]), torch.tensor([[0] * len(left) + [1] * len(right)]))
        for left, right in (SOURCES, TARGETS)
    )
    expected = [
        run_separately(run_both, model, source, target) for source, target in zip(SOURCES, TARGETS, strict=True)
    ]
    same(run_both(model, source, target).hidden[0], torch.cat(expected))


@pytest.mark.parametrize("options", MANNERS.values(), ids=MANNERS)
def test_batched_prompts_match_separate_ones(
    options: tuple[str, ...], recurrent: Recurrent, padded_stream: PaddedStream, run_both: RunBoth
) -> None:
    model = recurrent(*options)
    target = padded_stream([TARGETS[0], TARGETS[1][:2]], "left")
    assert target.documents is not None
    memory = memory_of(model.topology.run({"encoder": padded_stream(SOURCES)}, "encoder"))
    states, steps = model.topology.start(2, 4), []
    for a, b in pairwise([0, 2, 3, 4]):
        stream = Stream(target.tokens[:, a:b], target.documents[:, a:b])
        steps.append(model.topology.run({"body": stream}, "body", memory=memory, states=states).hidden)
    together = torch.cat(steps, dim=1)
    same(together[0], run_separately(run_both, model, SOURCES[0], TARGETS[0]))
    same(together[1, 2:], run_separately(run_both, model, SOURCES[1], TARGETS[1][:2]))


@pytest.mark.few(5)
@pytest.mark.parametrize("name", RAW)
def test_every_raw_memory_attention_works(
    name: str, recurrent: Recurrent, padded_stream: PaddedStream, run_both: RunBoth
) -> None:
    model = recurrent("luong-tiny", f"attention={name}", "dims.width=8", "dims.heads=4", "dims.layers=2")
    tokens, source = torch.tensor(TARGETS), padded_stream(SOURCES)
    memory = memory_of(model.topology.run({"encoder": source}, "encoder"))
    full_output = model.topology.run({"body": Stream(tokens)}, "body", memory=memory).hidden
    for row in range(2):
        same(full_output[row], run_separately(run_both, model, SOURCES[row], TARGETS[row]))
    states = model.topology.start(2, 4)
    steps = [
        model.topology.run({"body": Stream(tokens[:, t : t + 1])}, "body", memory=memory, states=states).hidden
        for t in range(4)
    ]
    same(torch.cat(steps, dim=1), full_output)
    named = dict(model.topology.named_parameters())
    scores = model.topology.embedding.unembed(full_output)
    grads = torch.autograd.grad(scores.cos().sum(), [*named.values()], allow_unused=True)
    assert [path for path, grad in zip(named, grads, strict=True) if grad is None] == []


def test_a_different_attention_changes_no_other_tensor() -> None:
    left, right = (
        paribus.assemble(paribus.spec("rnnsearch-tiny", f"attention={name}", "dims.vocabulary=300")).state_dict()
        for name in ("additive", "fixed")
    )
    assert {name for name in left if name not in right} == {
        f"body.cross.{name}" for name in ("heads.q.weight", "heads.k.weight", "outer")
    }
    assert all(torch.equal(left[name], right[name]) for name in right)


@pytest.mark.few(2)
@pytest.mark.parametrize("options", [*MANNERS.values(), ("rnnsearch-tiny", "attention=mha")], ids=[*MANNERS, "mha"])
def test_cost_matches_the_torch_flop_counter(options: tuple[str, ...]) -> None:
    model = meta_model(paribus.spec(*options, "dims.length=16"), installed())
    lines = {line.path: line.flops for line in model_cost(model, 16).lines}
    layout = {path: inputs.tokens for path, inputs in tokens_per_part(model, 16).items()}
    tokens = {path: Stream(torch.zeros(1, count, dtype=torch.long, device="meta")) for path, count in layout.items()}
    with flop_counter() as counter:
        memory = memory_of(model.topology.run(tokens, "encoder"))
        model.topology.run(tokens, "body", memory=memory)
    declared = sum(flops for path, flops in lines.items() if path.partition(".")[0] in ("body", "encoder"))
    assert declared == counter.get_total_flops()


def test_the_decoding_state_has_the_declared_size(recurrent: Recurrent) -> None:
    for options in (MANNERS["rnnsearch"], MANNERS["luong"]):
        model = recurrent(*options)
        declared = sum(line.state for line in model_cost(model.assembled, 16).lines)
        states = model.topology.start(1, 16)
        memory = memory_of(model.topology.run({"encoder": Stream(torch.full((1, 16), 30))}, "encoder"))
        model.topology.run({"body": Stream(torch.full((1, 1), 30))}, "body", memory=memory, states=states)
        assert declared == sum(
            saved.numel() for layer in states.layers for state in layer.values() for saved in state.values()
        )


@pytest.mark.parametrize(
    ("overrides", "code", "value"),
    [
        (["attention=mla"], "does-not-fit", "mla"),
        (["attention=restricted", "attention.window=4"], "does-not-fit", "restricted"),
        (["attention=[mha, fixed]", "dims.layers=2"], "does-not-fit", "attention.1"),
        (["dims.layers=2", "dims.groups=1"], "does-not-fit", "dims.groups"),
        (["norm=layernorm"], "unused-option", "norm"),
        (["position=rope"], "unused-option", "position"),
        (["parts.decoder.attention=mha"], "unknown-key", "parts.decoder.attention"),
        (["parts.decoder.cross.attention=mha"], "unknown-key", "parts.decoder.cross"),
        (["parts.encoder.attention=mha"], "unknown-key", "parts.encoder.attention"),
        (["objective=clm"], "does-not-fit", "clm"),
    ],
)
def test_unused_slots_are_rejected(overrides: list[str], code: str, value: str) -> None:
    with raises_problem(SpecError, code, value):
        paribus.spec("rnnsearch-tiny", *overrides)


@pytest.mark.parametrize(
    ("overrides", "values"),
    [
        (
            ["parts.encoder.dims.layers=2"],
            ("2", "1"),
        ),
        (["embedding.tie=true"], ("32",)),
        (["attention=dot"], ("attention",)),
    ],
)
def test_invalid_sizes_are_rejected(overrides: list[str], values: tuple[str, ...]) -> None:
    with raises_problem(SpecError, "component-error", *values):
        paribus.assemble(paribus.spec("rnnsearch-tiny", "dims.vocabulary=300", *overrides))


def test_a_learned_state_fits_an_encoder_of_another_depth(
    recurrent: Recurrent, padded_stream: PaddedStream, run_both: RunBoth
) -> None:
    model = recurrent("rnnsearch-tiny", "topology.initial_state=learned", "parts.encoder.dims.layers=2")
    assert model.get_parameter("body.first.states").shape == (1, 1, 5)
    assert run_both(model, padded_stream(SOURCES), padded_stream(TARGETS)).hidden.shape == (2, 4, 32)


@pytest.mark.thorough
def test_a_tied_table_scores_its_own_width(recurrent: Recurrent) -> None:
    tied = (
        "embedding.tie=true",
        "topology.readout_width=null",
        "topology.shared_embedding=true",
        "topology.embedding_width=7",
    )
    model = recurrent("rnnsearch-tiny", *tied)
    names = {name for name, parameter in model.named_parameters() if parameter.shape[0] == 300}
    assert names == {"embedding.tokens.weight"}
    scores, _ = model(torch.tensor(TARGETS), source=torch.tensor([SOURCES[0], SOURCES[0]]))
    assert scores.shape == (2, 4, 300)
