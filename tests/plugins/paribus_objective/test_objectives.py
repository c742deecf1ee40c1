"""What holds for every objective of this plugin."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from paribus import IGNORED, Draw, Formed, Load, Objective, Run, Stream, Tokens, Vocabulary
from paribus.schema import schema_of
from paribus_objective import objective

Build = Callable[..., Objective]
Passed = Callable[[Formed], Run]
Corpus = Callable[[list[list[int]]], Tokens]

NAMES = ("clm", "mlm", "nsp", "sop", "span-corruption")
OF_IMAGES = {"image-classify"}  # which has a corpus of its own, and tests
FORMING = ("nsp", "sop")
DOCUMENTS = [[3, 4, 5, 2], [6, 2, 3], [4, 4], [2, 9, 3, 1, 5], [1, 1, 1], [30, 20], [7, 8]]


def small(tokens: Tokens) -> Tokens:
    """The same corpus with words of a vocabulary of 100."""
    tokens.ids = tokens.ids % 74 + 6
    return tokens


def formed(made: Objective, corpus: Corpus, batch: int, *, length: int = 32, seed: int = 0, epoch: int = 0) -> Formed:
    """A batch as the engine makes it."""
    return examples(made, corpus, torch.arange(batch), length=length, seed=seed, epoch=epoch)


def examples(made: Objective, corpus: Corpus, index: Tensor, *, length: int, seed: int, epoch: int) -> Formed:
    draw = Draw(seed, epoch, index)
    if made.traits.get("forms"):
        formed = made.form(small(corpus(DOCUMENTS)), length, draw)
        return made.corrupt(formed.streams, formed.targets, draw)
    flow = torch.arange(1000 * made.raw(length)).reshape(1000, -1) * 7 % 74 + 6
    return made.corrupt({"body": Stream(flow[index])}, {}, draw)


def part(whole: Formed, rows: slice) -> Formed:
    """Some of the examples of a batch."""
    streams = {
        path: Stream(*(None if vector is None else vector[rows] for vector in stream))  # type: ignore[arg-type]  # a NamedTuple loses which field may be None
        for path, stream in whole.streams.items()
    }
    return Formed(streams, {name: target[rows] for name, target in whole.targets.items()})


def same(one: Formed, other: Formed) -> bool:
    vectors = [
        (mine, theirs)
        for path, stream in one.streams.items()
        for mine, theirs in zip(stream, other.streams[path], strict=True)
    ]
    vectors += [(target, other.targets[name]) for name, target in one.targets.items()]
    return all(
        (mine is None and theirs is None) or (mine is not None and theirs is not None and torch.equal(mine, theirs))
        for mine, theirs in vectors
    )


def test_the_objectives_are_offered_by_their_names() -> None:
    assert set(objective()) - OF_IMAGES == set(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_options_follow_from_the_signature(name: str) -> None:
    component = objective()[name]
    schema_of(component, component.injects)
    assert getattr(component, "__final__", False)


@pytest.mark.parametrize("name", NAMES)
def test_a_label_for_each_term_and_the_count_is_that_of_its_labels(
    name: str, build: Build, passed: Passed, corpus: Corpus, vocabulary: Vocabulary
) -> None:
    made = build(name, vocabulary)
    batch = formed(made, corpus, 3)
    terms = made(passed(batch))
    assert terms.keys() == made.terms.keys()
    for term, label in made.terms.items():
        assert terms[term].count == (batch.targets[label] != IGNORED).sum() > 0
        assert terms[term].total.isfinite()


@pytest.mark.parametrize("name", NAMES)
def test_every_parameter_of_the_head_has_a_gradient(
    name: str, build: Build, passed: Passed, corpus: Corpus, vocabulary: Vocabulary
) -> None:
    made = build(name, vocabulary)
    made(passed(formed(made, corpus, 4)))["loss"].total.backward()
    assert [path for path, each in made.named_parameters() if each.grad is None or not each.grad.any()] == []


@pytest.mark.parametrize("name", NAMES)
def test_every_matrix_of_the_head_has_a_role(name: str, build: Build, vocabulary: Vocabulary) -> None:
    made = build(name, vocabulary)
    for path, module in made.named_modules():
        roles = getattr(module, "roles", {})
        for parameter, found in module.named_parameters():
            if parameter in roles:
                assert (found.ndim < 2) == (roles[parameter] == "bias"), (path, parameter)


@pytest.mark.parametrize("name", NAMES)
def test_where_nothing_is_to_be_predicted_the_loss_is_0_and_so_are_its_gradients(
    name: str, build: Build, passed: Passed, corpus: Corpus, vocabulary: Vocabulary
) -> None:
    made = build(name, vocabulary)
    batch = formed(made, corpus, 2)
    batch = Formed(batch.streams, {**batch.targets, "labels": torch.full_like(batch.targets["labels"], IGNORED)})
    run = passed(batch)
    term = made(run)["loss"]
    assert term.total == 0
    assert term.count == 0
    term.total.backward()
    assert all(each.grad is None or not each.grad.any() for each in made.parameters())


@pytest.mark.parametrize("name", NAMES)
def test_a_row_whose_label_is_ignored_gets_no_gradient(
    name: str, build: Build, passed: Passed, corpus: Corpus, vocabulary: Vocabulary
) -> None:
    made = build(name, vocabulary)
    batch = formed(made, corpus, 4)
    labels = batch.targets["labels"].clone()
    labels[1] = IGNORED
    run = passed(Formed(batch.streams, {**batch.targets, "labels": labels}))
    hidden = run.hidden("body").detach().requires_grad_()
    run.hidden = lambda part="body": hidden  # type: ignore[method-assign]  # the fake pass, and meant
    made(run)["loss"].total.backward()
    assert hidden.grad is not None
    assert not hidden.grad[1].any()
    assert all(hidden.grad[row].any() for row in (0, 2, 3))


@pytest.mark.parametrize("name", NAMES)
def test_micro_batches_of_unequal_counts_add_up_to_the_whole(
    name: str, build: Build, passed: Passed, table: nn.Embedding, corpus: Corpus, vocabulary: Vocabulary
) -> None:
    made = build(name, vocabulary)
    parameters = [table.weight, *made.parameters()]
    whole = formed(made, corpus, 5)
    whole.targets["labels"][0] = IGNORED
    terms = [made(passed(part(whole, rows)))["loss"] for rows in (slice(0, 1), slice(1, 2), slice(2, 5))]
    full = made(passed(whole))["loss"]
    assert full.count == sum(int(term.count) for term in terms)
    total = torch.stack([term.total for term in terms]).sum()
    torch.testing.assert_close(total, full.total, rtol=0, atol=1e-12)
    summed, at_once = torch.autograd.grad(total, parameters), torch.autograd.grad(full.total, parameters)
    torch.testing.assert_close(summed, at_once, rtol=0, atol=1e-12)


@pytest.mark.parametrize("name", NAMES)
def test_an_example_is_the_same_in_any_batch(name: str, build: Build, corpus: Corpus, vocabulary: Vocabulary) -> None:
    made = build(name, vocabulary)
    whole = formed(made, corpus, 4)
    assert same(formed(made, corpus, 4), whole)
    for row in range(4):
        alone = examples(made, corpus, torch.tensor([row]), length=32, seed=0, epoch=0)
        assert same(alone, part(whole, slice(row, row + 1)))


@pytest.mark.parametrize("name", ["mlm", "nsp", "sop", "span-corruption"])
@pytest.mark.parametrize("fresh", [{"epoch": 1}, {"seed": 1}])
def test_an_example_is_drawn_afresh_in_another_epoch_and_for_another_seed(
    name: str, fresh: dict[str, int], build: Build, corpus: Corpus, vocabulary: Vocabulary
) -> None:
    made = build(name, vocabulary)
    assert not same(formed(made, corpus, 4, **fresh), formed(made, corpus, 4))


@pytest.mark.parametrize("name", NAMES)
def test_every_vector_has_as_many_rows_as_its_stream(
    name: str, build: Build, corpus: Corpus, vocabulary: Vocabulary
) -> None:
    made = build(name, vocabulary)
    for stream in formed(made, corpus, 3).streams.values():
        assert stream.tokens.dtype is torch.int64
        assert stream.tokens.shape[1] <= 32
        assert all(vector.shape == stream.tokens.shape for vector in stream if vector is not None)


@pytest.mark.parametrize("name", NAMES)
def test_the_head_runs_on_as_many_rows_as_it_says(
    name: str, build: Build, passed: Passed, corpus: Corpus, vocabulary: Vocabulary
) -> None:
    made = build(name, vocabulary)
    run = passed(formed(made, corpus, 3))
    made(run)
    logits = run.once("logits", lambda: torch.empty(0))
    assert logits.flatten(0, -2).shape[0] == 3 * made.picks(32)


@pytest.mark.parametrize("name", NAMES)
def test_the_cost_of_the_head_is_what_torch_counts(name: str, build: Build, vocabulary: Vocabulary) -> None:
    from torch.utils.flop_counter import FlopCounterMode

    made = build(name, vocabulary)
    with FlopCounterMode(display=False) as counter:
        made.logits(torch.randn(7, 8, dtype=torch.float64), lambda h, bias=None: h.new_zeros(len(h), 100))
    assert made.cost(Load(7, 7, picks=7)).flops == counter.get_total_flops()


@pytest.mark.parametrize("name", NAMES)
def test_rows_are_brought_to_the_width_at_which_they_are_scored(
    name: str, build: Build, vocabulary: Vocabulary
) -> None:
    from torch.utils.flop_counter import FlopCounterMode

    made = build(name, vocabulary, table_width=5)
    for parameter in made.parameters():
        nn.init.normal_(parameter)  # some are made without a first value
    scored: list[Tensor] = []

    def unembed(h: Tensor, bias: Tensor | None = None) -> Tensor:
        scored.append(h)
        return h.new_zeros(len(h), 100)

    with FlopCounterMode(display=False) as counter:
        made.logits(torch.randn(7, 8, dtype=torch.float64), unembed)
    assert all(h.shape == (7, 5) for h in scored)
    assert made.cost(Load(7, 7, picks=7)).flops == counter.get_total_flops()


@pytest.mark.parametrize("name", NAMES)
def test_accuracy_is_the_share_of_labels_that_are_guessed(
    name: str, build: Build, passed: Passed, corpus: Corpus, vocabulary: Vocabulary
) -> None:
    made = build(name, vocabulary)
    metrics = made.metrics()
    right = wanted = 0
    for epoch in range(3):
        run = passed(formed(made, corpus, 4, epoch=epoch))
        made(run)
        made.observe(run, metrics)
        labels = run.targets["labels"].flatten()
        guesses = run.once("logits", lambda: torch.empty(0)).flatten(0, -2).argmax(-1)
        right += int((guesses == labels)[labels != IGNORED].sum())
        wanted += int((labels != IGNORED).sum())
    assert metrics["accuracy"].compute() == pytest.approx(right / wanted)


@pytest.mark.parametrize("name", ["clm", "mlm", "span-corruption"])
def test_a_model_that_knows_nothing_is_as_wrong_as_a_guess_at_random(
    name: str, build: Build, passed: Passed, corpus: Corpus, vocabulary: Vocabulary
) -> None:
    made = build(name, vocabulary)
    run = passed(formed(made, corpus, 8))
    run.unembed = lambda h, bias=None: h.new_zeros(*h.shape[:-1], 100)  # type: ignore[method-assign]  # the fake pass, and meant
    for parameter in made.parameters():
        nn.init.zeros_(parameter)
    term = made(run)["loss"]
    assert (term.total / term.count).item() == pytest.approx(torch.tensor(100.0).log().item())
