"""Forward pass that objectives share: each output is computed once."""

import gc
import weakref
from collections.abc import Callable
from typing import Any, final

import pytest
import torch
from tests.fixtures.problems import raises_problem
from torch import Tensor, nn

from paribus import Capture, Cost, FeedForward, Load, Shape, SpecError, Stream
from paribus.assembly.cost import scored_positions
from paribus.assembly.forward_pass import BatchForward
from paribus.models.assemble import meta_model
from paribus.models.lightning_module import Model
from paribus.parts.batch import Batch
from paribus.registry import Registry
from paribus.specs import resolved

Assemble = Callable[..., Model]
TOKENS = torch.arange(24).view(2, 12) + 15


def batch(**targets: dict[str, Tensor]) -> Batch:
    return Batch({"body": Stream(TOKENS), "encoder": Stream(TOKENS + 1)}, targets, torch.arange(2))


def record_calls(module: nn.Module) -> list[object]:
    """Return a list that grows by one with each forward pass of the module."""
    calls: list[object] = []
    module.register_forward_hook(lambda *_: calls.append(object()))
    return calls


def test_several_objectives_share_one_pass(assemble: Assemble) -> None:
    model = assemble("bert-tiny")
    calls, embedded = record_calls(model.topology.get_submodule("body")), record_calls(model.topology.embedding)
    targets = {
        "mlm": {"pick": torch.tensor([[0, 3], [1, 2]]), "labels": torch.tensor([[1, 2], [3, -100]])},
        "nsp": {"labels": torch.tensor([0, 1])},
    }
    run = BatchForward(model.topology, batch(**targets))
    terms = model.terms(run, ["mlm", "nsp"])
    assert {name: int(term.count) for name, term in terms.items()} == {"mlm/loss": 3, "nsp/loss": 2}
    for name in ("mlm", "nsp"):
        model.objective(name).update_metrics(run.of(name), model.objective(name).metrics())
    assert (len(calls), len(embedded)) == (1, 1)


@pytest.mark.parametrize("preset", ["elmo-tiny", "albert-tiny"])  # two directions, and a factorised table
def test_scores_of_a_narrow_embedding_need_a_head(assemble: Assemble, components: Registry, preset: str) -> None:
    teacher = "teacher={sha256: under test}"
    with raises_problem(SpecError, "does-not-fit", "no other objective has a head that projects them"):
        assemble(preset, "objective=distill-scores", teacher)
    spec = resolved(preset, "objective=[mlm, distill-scores]", teacher, registry=components)
    assert scored_positions(meta_model(spec, components), 10) > 10  # those of mlm, and all for the teacher's scores


def test_a_memory_is_computed_once_for_all_objectives(assemble: Assemble) -> None:
    model = assemble("seq2seq-tiny")
    calls = record_calls(model.topology.get_submodule("encoder"))
    run = BatchForward(model.topology, batch())
    one = run.of("one")
    assert one.hidden("body") is one.hidden()
    assert one.hidden("encoder") is run.of("other").hidden("encoder")
    assert len(calls) == 1


def test_an_objective_may_run_a_part_on_its_own_tokens(assemble: Assemble) -> None:
    model = assemble("encoder-tiny")
    run = BatchForward(model.topology, batch())
    first_run, second_run = run.of("one"), run.of("other")
    replacement = TOKENS.flip(1)
    expected = (
        BatchForward(model.topology, Batch({"body": Stream(replacement)}, {}, torch.arange(2))).output("body").hidden
    )
    calls = record_calls(model.topology.get_submodule("body"))
    rows = first_run.hidden(tokens=replacement, key="turned")
    assert torch.equal(rows, expected)
    assert first_run.hidden(tokens=replacement, key="turned") is rows
    assert not torch.equal(first_run.hidden(), rows)
    assert not torch.equal(second_run.hidden(tokens=TOKENS + 1, key="turned"), rows)
    assert len(calls) == 3
    with pytest.raises(AssertionError, match="come together"):
        first_run.hidden(tokens=replacement)


def test_each_objective_has_its_own_targets_and_cache(assemble: Assemble) -> None:
    run = BatchForward(assemble("encoder-tiny").topology, batch(one={"labels": torch.ones(1)}))
    first_run, second_run = run.of("one"), run.of("other")
    assert (list(first_run.targets), list(second_run.targets)) == (["labels"], [])
    assert first_run.streams is run.batch.streams
    cached_logits = first_run.cached("logits", lambda: torch.zeros(1))
    assert first_run.cached("logits", lambda: torch.ones(1)) is cached_logits
    assert run.of("one").cached("logits", lambda: torch.ones(1)) is cached_logits
    assert second_run.cached("logits", lambda: torch.ones(1)) is not cached_logits


def test_cached_logits_are_freed_without_garbage_collection(assemble: Assemble) -> None:
    collects = gc.isenabled()
    gc.disable()
    try:
        run = BatchForward(assemble("encoder-tiny").topology, batch())
        logits = weakref.ref(run.of("one").cached("logits", lambda: torch.zeros(1)))
        assert logits() is not None
        del run
        assert logits() is None
    finally:
        if collects:
            gc.enable()


def test_unembed_scores_hidden_states_by_the_embedding(assemble: Assemble) -> None:
    model = assemble("encoder-tiny")
    run = BatchForward(model.topology, batch()).of("mlm")
    expected = run.hidden() @ model.get_parameter("embedding.tokens.weight").T
    torch.testing.assert_close(run.unembed(run.hidden()), expected)


def test_weights_of_every_layer_are_captured_on_request(assemble: Assemble) -> None:
    model = assemble("gpt-tiny", "attention=[gqa, mha]")
    run = BatchForward(model.topology, batch(), capture=True)
    captured = run.output("body").captured
    assert [tuple(layer["weights"].shape) for layer in captured] == [(2, 4, 12, 12)] * 2
    for layer in captured:
        torch.testing.assert_close(layer["weights"].sum(-1), torch.ones(2, 4, 12))
        assert not layer["weights"].triu(1).any()
    assert not BatchForward(model.topology, batch()).output("body").captured


def test_hidden_states_and_heads_are_captured_for_requested_layers_only(assemble: Assemble) -> None:
    model = assemble("gpt-tiny", "attention=[gqa, mha]", "position=none")
    run = BatchForward(model.topology, batch(), capture=Capture(heads=(-2,), hidden=(0, 1, -1)))
    assert [set(layer) for layer in run.output("body").captured] == [{"input", "q", "k", "v", "hidden"}, {"hidden"}]
    objective_run = run.of("clm")
    assert [objective_run.captured(1, name).shape[1] for name in "qkv"] == [
        4,
        2,
        2,
    ]  # query heads, and shared key/value heads
    norm = model.get_submodule("body.norm")
    torch.testing.assert_close(norm(objective_run.captured(-1, "hidden")), objective_run.hidden())
    torch.testing.assert_close(objective_run.captured(2, "hidden"), objective_run.captured(-1, "hidden"))
    embedded = model.get_submodule("embedding.tokens")(batch().streams["body"].tokens)
    torch.testing.assert_close(objective_run.captured(0, "hidden"), embedded)


def test_captured_queries_and_keys_give_the_captured_weights(assemble: Assemble) -> None:
    model = assemble("gpt-tiny", "position=rope").double()
    forward = BatchForward(model.topology, batch(), capture=Capture(weights=True, heads=(2,)))
    layer = forward.output("body").captured[1]
    scores = layer["q"] @ layer["k"].transpose(-1, -2) / layer["q"].shape[-1] ** 0.5
    later = torch.ones(12, 12, dtype=torch.bool).triu(1)
    torch.testing.assert_close(scores.masked_fill(later, -torch.inf).softmax(-1), layer["weights"], rtol=0, atol=1e-12)
    with_heads, plain = (
        BatchForward(model.topology, batch(), capture=Capture(heads=(1,))),
        BatchForward(model.topology, batch()),
    )
    assert torch.equal(with_heads.output("body").hidden, plain.output("body").hidden)  # on the usual kernel


def test_an_unknown_layer_and_a_layer_without_heads_are_rejected(assemble: Assemble) -> None:
    model = assemble("encoder-tiny", "attention=[mha, fourier]", "position=learned")
    with raises_problem(SpecError, "unknown-layer", "3", "0", "2", "-1", "-2"):
        BatchForward(model.topology, batch(), capture=Capture(hidden=(3,))).output("body")
    run = BatchForward(model.topology, batch(), capture=Capture(heads=(1, 2)))
    with raises_problem(SpecError, "does-not-fit", "attention", "2", "q"):
        run.captured(2, "q")


def test_the_input_of_the_last_layer_is_captured_on_request_only(assemble: Assemble) -> None:
    model = assemble("encoder-tiny")
    assert BatchForward(model.topology, batch()).output("body").last_layer_input is None
    assert (
        BatchForward(model.topology, batch(), capture=Capture(last_layer_input=True)).output("body").last_layer_input
        is not None
    )


def test_a_model_captures_what_its_objectives_need(assemble: Assemble) -> None:
    assert assemble("encoder-tiny", "objective=emd").run(batch()).capture.last_layer_input
    assert not assemble("encoder-tiny", "objective=emd").run(batch(), []).capture.last_layer_input
    assert not assemble("encoder-tiny").run(batch()).capture.last_layer_input


@final
class AuxiliaryFeedForward(FeedForward):
    """Feed-forward that returns zeros and has an auxiliary loss."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.price = nn.Parameter(torch.ones(1, 1))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor | None]:
        return torch.zeros_like(x), self.price.sum() + 2

    def cost(self, load: Load) -> Cost:
        return Cost()


@pytest.fixture
def auxiliary_model(assemble: Assemble, components: Registry) -> Model:
    classes = components.with_components(feedforward={"auxiliary": AuxiliaryFeedForward})
    overrides: list[Any] = [
        "feedforward=auxiliary",
        "parts.encoder.feedforward=[auxiliary, mlp]",
        "initialisation=xavier",
    ]
    return assemble("seq2seq-tiny", *overrides, registry=classes)


def test_auxiliary_losses_are_summed_over_the_parts_that_ran(auxiliary_model: Model) -> None:
    with torch.no_grad():
        for name, parameter in auxiliary_model.named_parameters():
            if name.endswith("price"):
                parameter.fill_(1.0)
    run = BatchForward(auxiliary_model.topology, batch())
    assert run.auxiliary() is None
    run.output("encoder")
    assert run.auxiliary() == 3.0  # one layer of the encoder has an auxiliary loss
    run.output("body")
    assert run.auxiliary() == 9.0  # and two layers of the decoder


@pytest.mark.parametrize("shares", [1, 4])
def test_auxiliary_losses_are_divided_among_micro_batches(shares: int, auxiliary_model: Model) -> None:
    labels = {"labels": torch.zeros(2, 12, dtype=torch.long)}
    whole = batch(**{"span-corruption": labels})._replace(micro_batches=shares)
    run = BatchForward(auxiliary_model.topology, whole)
    (term,) = auxiliary_model.terms(run, ["span-corruption"]).values()
    auxiliary = run.auxiliary()
    assert auxiliary is not None
    torch.testing.assert_close(auxiliary_model.loss(whole), term.total / term.count + auxiliary / shares)
