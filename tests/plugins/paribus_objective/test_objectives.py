"""Tests of every objective of this plugin."""

from collections.abc import Callable, Mapping

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from paribus import (
    IGNORED,
    Draw,
    ForwardPass,
    Labels,
    Load,
    LossTerm,
    Objective,
    Stream,
    Tokens,
    TrainingExamples,
    Unembed,
    Vocabulary,
)
from paribus.registry.class_reader import schema_of
from paribus_objective import objective

Build = Callable[..., Objective]
Passed = Callable[[TrainingExamples], ForwardPass]
Corpus = Callable[[list[list[int]]], Tokens]

OF_IMAGES = {"image-classify"}  # tested in its own file with its own corpus
# Objectives that need pairs, choices or two directions, score rows without classes, or learn from a teacher have their
# own tests.
APART = (
    "bilm",
    "choose",
    "choose-causal",
    "completion",
    "detection",
    "distill-attention",
    "distill-hidden",
    "distill-relations",
    "distill-scores",
    "extract",
    "regress",
    "rtd",
)
NAMES = tuple(sorted(set(objective()) - OF_IMAGES - set(APART)))
DOCUMENTS = [[3, 4, 5, 2], [6, 2, 3], [4, 4], [2, 9, 3, 1, 5], [1, 1, 1], [30, 20], [7, 8]]


def small_vocabulary(tokens: Tokens) -> Tokens:
    """The corpus mapped to a vocabulary of 100 ids."""
    tokens.ids = tokens.ids % 74 + 6
    return tokens


def label_documents(tokens: Tokens) -> Tokens:
    """The corpus with a class for each sentence, and a label for each document."""
    tokens.labels = Labels(np.arange(float(len(tokens.sentences) - 1)) % 2, np.asarray(tokens.documents))
    return tokens


def formed(
    instance: Objective, corpus: Corpus, batch: int, *, length: int = 32, seed: int = 0, epoch: int = 0
) -> TrainingExamples:
    """Form a batch like the engine."""
    return examples(instance, corpus, torch.arange(batch), length=length, seed=seed, epoch=epoch)


def examples(
    instance: Objective, corpus: Corpus, index: Tensor, *, length: int, seed: int, epoch: int
) -> TrainingExamples:
    draw = Draw(seed, epoch, index)
    if instance.traits.get("example_kind"):
        documents = DOCUMENTS * (3 if "labels" in instance.traits.get("needs", []) else 1)
        tokens = label_documents(small_vocabulary(corpus(documents)))
        tokens.targets = small_vocabulary(corpus(documents[::-1]))
        formed = instance.form(tokens, length, draw)
        return instance.corrupt(formed.streams, formed.targets, draw)
    flow = torch.arange(1000 * instance.text_length(length)).reshape(1000, -1) * 7 % 74 + 6
    return instance.corrupt({"body": Stream(flow[index])}, {}, draw)


def total_loss(terms: Mapping[str, LossTerm]) -> Tensor:
    """Sum of the totals of all terms."""
    return torch.stack([term.total for term in terms.values()]).sum()


def are_equal(left: TrainingExamples, right: TrainingExamples) -> bool:
    vectors = [
        (mine, theirs)
        for path, stream in left.streams.items()
        for mine, theirs in zip(stream, right.streams[path], strict=True)
    ]
    vectors += [(target, right.targets[name]) for name, target in left.targets.items()]
    return all(
        (mine is None and theirs is None) or (mine is not None and theirs is not None and torch.equal(mine, theirs))
        for mine, theirs in vectors
    )


def test_the_objectives_are_registered_by_name() -> None:
    assert {"clm", "emd", "mlm", "nsp", "permutation", "sop", "span-corruption"} < set(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_every_objective_has_a_schema_and_is_final(name: str) -> None:
    component = objective()[name]
    schema_of(component, component.injects)
    assert getattr(component, "__final__", False)


@pytest.mark.parametrize("name", NAMES)
def test_every_parameter_of_the_head_has_a_gradient(
    name: str, build: Build, passed: Passed, corpus: Corpus, vocabulary: Vocabulary
) -> None:
    instance = build(name, vocabulary)
    total_loss(instance(passed(formed(instance, corpus, 4)))).backward()
    assert [path for path, each in instance.named_parameters() if each.grad is None or not each.grad.any()] == []


@pytest.mark.parametrize("name", NAMES)
def test_every_matrix_of_the_head_has_a_role(name: str, build: Build, vocabulary: Vocabulary) -> None:
    instance = build(name, vocabulary)
    for path, module in instance.named_modules():
        roles = getattr(module, "roles", {})
        for parameter, value in module.named_parameters():
            if parameter in roles:
                assert (value.ndim < 2) == (roles[parameter] == "bias"), (path, parameter)


@pytest.mark.parametrize("name", NAMES)
def test_without_labels_loss_and_gradients_are_0(
    name: str, build: Build, passed: Passed, corpus: Corpus, vocabulary: Vocabulary
) -> None:
    instance = build(name, vocabulary)
    batch = formed(instance, corpus, 2)
    none = {label: torch.full_like(batch.targets[label], IGNORED) for label in instance.terms.values()}
    terms = instance(passed(TrainingExamples(batch.streams, {**batch.targets, **none})))
    for term in terms.values():
        assert term.total == 0
        assert term.count == 0
    total_loss(terms).backward()
    assert all(each.grad is None or not each.grad.any() for each in instance.parameters())


@pytest.mark.parametrize("name", NAMES)
def test_a_token_with_an_ignored_label_has_no_gradient(
    name: str, build: Build, passed: Passed, corpus: Corpus, vocabulary: Vocabulary
) -> None:
    instance = build(name, vocabulary)
    batch = formed(instance, corpus, 4)
    labels = {label: batch.targets[label].clone() for label in instance.terms.values()}
    for label in labels.values():
        label[1] = IGNORED
    run = passed(TrainingExamples(batch.streams, {**batch.targets, **labels}))
    hidden = run.hidden("body").detach().requires_grad_()
    run.hidden = lambda part="body", **_: hidden  # type: ignore[method-assign]  # fake forward pass
    total_loss(instance(run)).backward()
    assert hidden.grad is not None
    assert not hidden.grad[1].any()
    assert all(hidden.grad[row].any() for row in (0, 2, 3))


@pytest.mark.parametrize("name", ["mlm", "nsp", "sbo", "sop", "span-corruption"])
@pytest.mark.parametrize("fresh", [{"epoch": 1}, {"seed": 1}])
def test_an_example_is_drawn_anew_for_each_epoch_and_seed(
    name: str, fresh: dict[str, int], build: Build, corpus: Corpus, vocabulary: Vocabulary
) -> None:
    instance = build(name, vocabulary)
    assert not are_equal(formed(instance, corpus, 4, **fresh), formed(instance, corpus, 4))


@pytest.mark.parametrize("name", NAMES)
def test_every_vector_is_as_long_as_its_stream(name: str, build: Build, corpus: Corpus, vocabulary: Vocabulary) -> None:
    instance = build(name, vocabulary)
    for stream in formed(instance, corpus, 3).streams.values():
        assert stream.tokens.dtype is torch.int64
        assert stream.tokens.shape[1] <= (64 if instance.traits.get("copies_tokens") else 32)
        vectors = stream._replace(query_positions=None)  # fewer than the rows
        assert all(vector.shape == stream.tokens.shape for vector in vectors if vector is not None)


@pytest.mark.parametrize("name", NAMES)
def test_the_head_runs_on_the_declared_number_of_positions(
    name: str, build: Build, passed: Passed, corpus: Corpus, vocabulary: Vocabulary
) -> None:
    instance = build(name, vocabulary)
    run = passed(formed(instance, corpus, 3))
    scored: list[int] = []
    logits = instance.logits

    def recorded(hidden: Tensor, unembed: Unembed) -> Tensor:
        scored.append(hidden.shape[:-1].numel())
        return logits(hidden, unembed)

    instance.logits = recorded  # type: ignore[method-assign]  # the same, recorded
    with torch.no_grad():
        instance(run)
    assert scored[-1] == 3 * instance.head_positions(32)  # after those of predictions that are fed back


@pytest.mark.parametrize("name", NAMES)
def test_losses_in_half_precision_are_summed_in_float32(
    name: str, build: Build, passed: Passed, table: nn.Embedding, corpus: Corpus, vocabulary: Vocabulary
) -> None:
    instance = build(name, vocabulary).eval()
    examples = formed(instance, corpus, 3)
    expected = instance(passed(examples))
    instance.bfloat16()
    table.bfloat16()
    for term, value in instance(passed(examples)).items():
        assert value.total.dtype == torch.float32
        assert float(value.total.detach()) == pytest.approx(float(expected[term].total.detach()), rel=0.02)


@pytest.mark.covering(strength=1)
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("table_width", [None, 5])
def test_hidden_states_are_projected_to_the_embedding_width_at_the_counted_cost(
    table_width: int | None, name: str, build: Build, passed: Passed, corpus: Corpus, vocabulary: Vocabulary
) -> None:
    from torch.utils.flop_counter import FlopCounterMode

    instance = build(name, vocabulary, table_width=table_width).eval()  # evaluation: no fed predictions
    run = passed(formed(instance, corpus, 3))
    scored: list[Tensor] = []

    def unembed(h: Tensor, bias: Tensor | None = None) -> Tensor:
        scored.append(h)
        return h.new_zeros(*h.shape[:-1], 100)

    run.unembed = unembed  # type: ignore[method-assign]  # fake forward pass
    with FlopCounterMode(display=False) as counter:
        instance(run)
    assert (
        instance.cost(Load(32, 32, head_positions=3 * instance.head_positions(32))).flops == counter.get_total_flops()
    )
    assert all(h.shape[-1] == (table_width or 8) for h in scored)
    positions = instance.unembed_positions(32)
    if positions is not None:
        assert sum(h.shape[:-1].numel() for h in scored) == 3 * positions


@pytest.mark.parametrize("name", ["clm", "mlm", "sbo", "span-corruption"])
def test_an_untrained_model_has_the_loss_of_a_uniform_guess(
    name: str, build: Build, passed: Passed, corpus: Corpus, vocabulary: Vocabulary
) -> None:
    instance = build(name, vocabulary)
    run = passed(formed(instance, corpus, 8))
    run.unembed = lambda h, bias=None: h.new_zeros(*h.shape[:-1], 100)  # type: ignore[method-assign]  # fake forward pass
    for parameter in instance.parameters():
        nn.init.zeros_(parameter)
    for term in instance(run).values():
        assert (term.total / term.count).item() == pytest.approx(torch.tensor(100.0).log().item())
