"""Training module: loss, gradients, modes and optimizer."""

import math
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import pytest
import torch
from tests.fixtures.problems import raises_problem
from torch import Tensor, nn
from torch.nn import functional

from paribus import IGNORED, PADDING, SpecError, Stream
from paribus.assembly.build import as_list
from paribus.assembly.forward_pass import BatchForward
from paribus.datamodule.data import Data
from paribus.models.lightning_module import Model
from paribus.models.optimizer_schedule import trained_tensors
from paribus.parts.batch import Batch
from paribus.registry import Registry, installed

Assemble = Callable[..., Model]
Shake = Callable[[Model], Model]
Feed = Callable[..., Data]

TINY = ("gpt-tiny", "encoder-tiny", "seq2seq-tiny", "bert-tiny")
PRESETS = sorted(name for name in installed().index.presets if name.endswith("-tiny"))
LAYERS = {  # a layer of each kind, a row of each patch, and neither codes nor languages, which these texts have not
    "ctrl-tiny": ("objective={name: clm, bias: true}",),
    "m2m100-tiny": ("objective.languages=null",),
    "modernbert-tiny": ("dims.layers=3",),
    "bytenet-tiny": ("dims.layers=5",),
    "kimi-linear-tiny": ("dims.layers=4",),
    "qwen3-next-tiny": ("dims.layers=4", "position.fraction=0.5"),
    "olmo3-tiny": ("dims.layers=4",),
    "gpt-j-tiny": ("position.fraction=0.5",),
    "vit-tiny": ("dims.length=17",),
}
INNER = "body.layers.1.feedforward.inner"
same = partial(torch.testing.assert_close, rtol=0, atol=1e-12)


def gradients(model: Model, *batches: Batch) -> dict[str, Tensor]:
    """Return the gradients of the sum of the batches' losses."""
    model.zero_grad()
    for batch in batches:
        model.loss(batch).backward()
    named = model.named_parameters()
    return {name: parameter.grad.clone() for name, parameter in named if parameter.grad is not None}


@pytest.mark.few(17)
@pytest.mark.parametrize("preset", PRESETS)
def test_every_parameter_of_every_preset_learns_from_its_objective(
    preset: str, assemble: Assemble, shake: Shake, feed: Feed, components: Registry
) -> None:
    layers = LAYERS.get(preset, ())
    model = shake(assemble(preset, "dropout=0", *layers))
    actual = gradients(model, feed(preset, *layers).step(0))
    assert actual.keys() == dict(model.named_parameters()).keys()
    dead = {name for name, grad in actual.items() if grad.abs().max() < 1e-9}
    moved = all(moves_keys(components, node) for node in as_list(model.spec.get("position", [])))
    # Else what is added to all keys moves no weight; and what leans to segments has none to lean to in plain text.
    still = {name for name in actual if name.endswith("heads.k.bias") and (not moved or ".cross." in name)}
    assert dead == still | {name for name in actual if "position" in name and "segment" in name}


def moves_keys(components: Registry, node: Mapping[str, Any]) -> bool:
    """Return True if a position changes or reads keys, so that a bias of all keys has an effect."""
    traits = components.index.entries["position"][node["name"]].traits
    return "rotate" in traits["hooks"] or traits["bias"] == "content"


@pytest.mark.few(4)
@pytest.mark.parametrize("preset", TINY)
@pytest.mark.parametrize("accumulate", [2, 3, 8])
def test_unequal_micro_batches_have_the_gradient_of_one_batch(
    preset: str, accumulate: int, assemble: Assemble, shake: Shake, feed: Feed
) -> None:
    model = shake(assemble(preset))
    data, cut = (feed(preset, f"trainer.accumulate_grad_batches={shares}") for shares in (1, accumulate))
    whole, shares = data.step(3), [cut.micro_batch(3 * accumulate + share) for share in range(accumulate)]
    expected, actual = gradients(model, whole), gradients(model, *shares)
    assert actual.keys() == expected.keys()
    for name, grad in expected.items():
        same(actual[name], grad, msg=f"{name} differs")
    same(sum(model.loss(share).detach() for share in shares), model.loss(whole).detach())


def test_averaging_unequal_micro_batches_gives_another_loss(assemble: Assemble, shake: Shake, feed: Feed) -> None:
    model = shake(assemble("gpt-tiny"))
    data = feed("gpt-tiny", "data.documents=apart", "trainer.accumulate_grad_batches=8")
    alone = [model.loss(data.micro_batch(share)._replace(counts=None)).detach() for share in range(8)]
    assert abs(sum(alone) / 8 - model.loss(data.step(0)).detach()) > 1e-4


def padded(batch: Batch, rows: int) -> Batch:
    """Return a batch with padding on the right of every stream."""

    def filled(stream: Stream) -> Stream:
        size = (len(stream.tokens), rows)
        documents = torch.zeros_like(stream.tokens) if stream.documents is None else stream.documents
        return Stream(
            torch.cat([stream.tokens, torch.full(size, 39)], dim=1),
            torch.cat([documents, torch.full(size, PADDING)], dim=1),
            segments=None if stream.segments is None else torch.cat([stream.segments, torch.ones(size).long()], dim=1),
        )

    def more(targets: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        if "pick" in targets or targets["labels"].ndim == 1:
            return targets
        labels = targets["labels"]
        return {"labels": torch.cat([labels, torch.full((len(labels), rows), IGNORED)], dim=1)}

    streams = {name: filled(stream) for name, stream in batch.streams.items()}
    return Batch(
        streams, {name: more(label_tensors) for name, label_tensors in batch.targets.items()}, batch.index, batch.counts
    )


@pytest.mark.parametrize("preset", TINY)
def test_a_loss_does_not_depend_on_padding(preset: str, assemble: Assemble, shake: Shake, feed: Feed) -> None:
    model = shake(assemble(preset, "position=sinusoidal"))
    batch = feed(preset).step(0)
    expected, actual = gradients(model, batch), gradients(model, padded(batch, 3))
    same(model.loss(padded(batch, 3)), model.loss(batch))
    for name, grad in expected.items():
        same(actual[name], grad)


@pytest.mark.parametrize("preset", TINY)
def test_a_batch_without_labels_has_zero_loss_and_gradient(
    preset: str, assemble: Assemble, shake: Shake, feed: Feed
) -> None:
    model, batch = shake(assemble(preset)), feed(preset).step(0)
    targets = {
        name: {key: torch.full_like(value, IGNORED) if key == "labels" else value for key, value in labels.items()}
        for name, labels in batch.targets.items()
    }
    empty = batch._replace(targets=targets, counts=None)
    assert model.loss(empty) == 0
    assert all(not grad.any() for grad in gradients(model, empty).values())


@pytest.mark.parametrize("preset", TINY)
def test_an_untrained_model_has_the_loss_of_guessing(preset: str, assemble: Assemble, feed: Feed) -> None:
    model = assemble(preset, "initialisation=normal")
    terms = model.terms(BatchForward(model.topology, feed(preset).step(0)), model.trained)
    for name, term in terms.items():
        classes = 2 if name == "nsp/loss" else 40
        assert float((term.total / term.count).detach()) == pytest.approx(math.log(classes), rel=0.02)


def test_weights_of_objectives_scale_their_losses(
    assemble: Assemble, feed: Feed, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, batch = assemble("bert-tiny"), feed("bert-tiny").step(0)
    terms = model.terms(BatchForward(model.topology, batch), model.trained)
    heavy = {name: term._replace(weight=3.0) if name == "nsp/loss" else term for name, term in terms.items()}
    monkeypatch.setattr(type(model), "terms", lambda *_: heavy)
    parts = {name: term.total / term.count for name, term in terms.items()}
    torch.testing.assert_close(model.loss(batch), parts["mlm/loss"] + 3 * parts["nsp/loss"])


@pytest.mark.parametrize("preset", ["encoder-tiny", "bert-tiny"])
def test_a_bidirectional_model_rejects_decoding(preset: str, assemble: Assemble) -> None:
    with raises_problem(SpecError, "does-not-fit", "objective", "clm", "encoder"):
        assemble(preset, "objective=clm")


# -- modes -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("preset", TINY)
def test_dropout_is_active_in_training_only(preset: str, assemble: Assemble, feed: Feed) -> None:
    model, without, batch = assemble(preset, "dropout=0.2"), assemble(preset), feed(preset).step(0)
    quiet = model.eval().loss(batch)
    assert torch.equal(quiet, model.loss(batch))
    assert torch.equal(quiet, without.eval().loss(batch))
    assert torch.equal(quiet, without.train().loss(batch))
    model.train()
    assert len({float(model.loss(batch).detach()) for _ in range(3)} | {float(quiet.detach())}) == 4


def test_dropout_applies_to_embeddings_weights_and_branches(
    assemble: Assemble, monkeypatch: pytest.MonkeyPatch
) -> None:
    dropped: list[tuple[int, ...]] = []
    drop, attend = functional.dropout, functional.scaled_dot_product_attention

    def dropping(x: Tensor, p: float = 0.5, *rest: Any, **named: Any) -> Tensor:
        dropped.append(tuple(x.shape) if p == 0.25 else ())
        return drop(x, p, *rest, **named)

    def attending(q: Tensor, k: Tensor, v: Tensor, mask: Any, dropout: float, **named: Any) -> Tensor:
        dropped.append((*q.shape[:3], k.shape[2]) if dropout == 0.25 else ())
        return attend(q, k, v, mask, dropout, **named)

    monkeypatch.setattr(functional, "dropout", dropping)
    monkeypatch.setattr(functional, "scaled_dot_product_attention", attending)
    rows, weights = (1, 12, 16), (1, 4, 12, 12)
    for kernel in ("attention.scores.soft_cap=null", "attention.scores.soft_cap=5"):
        dropped.clear()
        assemble("gpt-tiny", "dropout=0.25", kernel).train()(torch.arange(12).view(1, 12))
        assert dropped == [rows, *[weights, rows, rows] * 2]


AUTOCAST = [(preset, position) for preset in TINY for position in ("learned", "rope", "alibi")]


@pytest.mark.few(4)
@pytest.mark.parametrize(("preset", "position"), AUTOCAST)
def test_bfloat16_loss_is_close_to_float32(preset: str, position: str, assemble: Assemble, feed: Feed) -> None:
    overrides = [f"position={position}", "initialisation=xavier", "attention=gqa"]
    model, exact, batch = assemble(preset, *overrides), assemble(preset, *overrides).double(), feed(preset).step(0)
    expected = body(exact, batch).detach()
    with torch.autocast("cpu", torch.bfloat16):
        output, loss = body(model, batch), model.loss(batch)
    assert float((output.double() - expected).detach().norm() / expected.norm()) < 2**-6
    assert float(loss.detach()) == pytest.approx(float(exact.loss(batch).detach()), rel=2**-6)
    loss.backward()
    assert all(parameter.grad is not None and parameter.grad.isfinite().all() for parameter in model.parameters())


@pytest.mark.few(4)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("preset", TINY)
def test_a_cast_model_computes_in_its_dtype(preset: str, dtype: torch.dtype, assemble: Assemble, feed: Feed) -> None:
    dtypes: set[torch.dtype] = set()
    for position in ("sinusoidal", "rope", "alibi"):
        model, batch = assemble(preset, f"position={position}").to(dtype), feed(preset).step(0)
        for module in model.modules():
            module.register_forward_hook(lambda m, i, o: dtypes.add(o.dtype) if isinstance(o, Tensor) else None)
        assert model.loss(batch).dtype == torch.promote_types(dtype, torch.float32)
        assert dtypes == {dtype}


def body(model: Model, batch: Batch) -> Tensor:
    return BatchForward(model.topology, batch).output("body").hidden


# -- what is optimised -------------------------------------------------------------------------------------------


def test_only_trained_matrices_have_weight_decay(assemble: Assemble) -> None:
    model = assemble("bert-tiny", "trainer.max_steps=10", "schedule.warmup=0.2")
    frozen = model.get_parameter("body.layers.0.attention.heads.q.weight").requires_grad_(False)
    configured: Any = model.configure_optimizers()
    matrices, vectors = configured["optimizer"].param_groups
    assert {parameter.ndim >= 2 for parameter in matrices["params"]} == {True}
    assert {parameter.ndim >= 2 for parameter in vectors["params"]} == {False}
    assert (matrices["weight_decay"], vectors["weight_decay"]) == (0.01, 0.0)
    optimized = {id(parameter) for parameter in (*matrices["params"], *vectors["params"])}
    assert optimized == {id(parameter) for parameter in model.parameters()} - {id(frozen)}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_groups_are_split_by_the_factors_of_the_initialisation(assemble: Assemble, dtype: torch.dtype) -> None:
    words = ("embedding.tie=false", "optimizer.lr=0.5", "trainer.max_steps=10", "schedule.warmup=0.2")
    model = assemble("gpt-tiny", "initialisation={name: mup, base_width: 4}", *words).to(dtype)
    names, wide = {id(each): path for path, each in model.named_parameters()}, model.spec["dims"]["width"] / 4
    configured: Any = model.configure_optimizers()
    optimizer = configured["optimizer"]
    groups = {names[id(each)]: group for group in optimizer.param_groups for each in group["params"]}
    assert groups.keys() == set(names.values())
    inner, table, head = (groups[f"{path}.weight"] for path in (INNER, "embedding.tokens", "embedding.head"))
    assert (table["lr"], inner["lr"], head["lr"]) == (0.25, 0.25 / wide, 0.25 / wide)  # the warmup halves them
    assert inner["weight_decay"] == head["weight_decay"] == wide * table["weight_decay"] > 0
    assert (table["eps"], inner["eps"], head["eps"]) == (1e-8 / wide, 1e-8 / wide, 1e-8)
    if dtype == torch.bfloat16:  # the optimizer of copies in float32 has the same groups
        rates = [group["initial_lr"] for group in optimizer.param_groups]
        assert [group["lr"] for group in optimizer.updates.param_groups] == rates


def test_hidden_matrices_are_those_of_stacks_without_tables_and_heads(assemble: Assemble) -> None:
    model = assemble("bert-tiny", "embedding.tie=false", "position=learned")
    hidden = {tensor.about.path for tensor in trained_tensors(model) if tensor.is_hidden_matrix}
    expected = {path for path, parameter in model.named_parameters() if ".layers." in path and parameter.ndim == 2}
    assert hidden == expected
    tables = {tensor.about.path: tensor.about.role for tensor in trained_tensors(model) if tensor.is_matrix}
    assert tables["embedding.tokens.weight"] == "embedding"
    assert tables["embedding.head.weight"] == "head"


def test_layers_that_share_parameters_are_trained_once(assemble: Assemble) -> None:
    model = assemble("gpt-tiny", "dims.groups=1")
    assert [tensor.parameter for tensor in trained_tensors(model)] == list(model.parameters())


def test_a_tied_table_is_one_tensor_and_a_table() -> None:
    table, head = nn.Embedding(4, 3), nn.Linear(3, 4, bias=False)
    head.weight = table.weight
    (tensor,) = trained_tensors(nn.ModuleDict({"head": head, "table": table}))
    assert tensor.parameter is table.weight
    assert (tensor.about.path, tensor.about.role) == ("table.weight", "embedding")


def test_the_learning_rate_of_a_resumed_run_continues(assemble: Assemble) -> None:
    def rates(done: int) -> list[float]:
        model = assemble("gpt-tiny", "trainer.max_steps=10")
        model.completed_steps = done
        configured: Any = model.configure_optimizers()
        rate_list = []
        for _ in range(10 - done):
            rate_list.append(configured["optimizer"].param_groups[0]["lr"])
            configured["optimizer"].step()
            configured["lr_scheduler"]["scheduler"].step()
        return rate_list

    assert rates(4) == rates(0)[4:]
    configured: Any = assemble("gpt-tiny", "trainer.max_steps=3").configure_optimizers()
    assert configured["lr_scheduler"]["interval"] == "step"
