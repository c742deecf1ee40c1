"""Few-shot accuracy, against a forward pass over each prompt with each of its labels."""

import math
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, ClassVar, final

import pytest
import torch
from tests.fixtures.problems import raises_problem

import paribus
from paribus import Corpus, CorpusTraits, Document, SpecError, Split
from paribus.models.evaluate import evaluation_mode
from paribus.models.lightning_module import Model
from paribus.planning.api import fingerprint
from paribus.registry import index
from paribus.train.measures import MeasuredModel, measured_model
from paribus_measure.few_shot import FewShot
from paribus_measure.few_shot_task import draw_prompts, read_task

WORDS = ("cat", "dog", "oak", "elm", "red", "tan")
NAMES = ("beast", "tree", "hue")
CORPUS = "corpus={name: groups, examples: 400, held_out: 200}"
TINY = ("dims.width=16", "dims.layers=1", "dims.heads=2", "data.batch=8", "tokenizer=bytes")
Values = dict[str, Any]


def corpus_of(
    train: Sequence[Document], val: Sequence[Document], names: Sequence[str] = NAMES, provides: str = "labels"
) -> Any:
    @final
    class ListCorpus(Corpus):
        traits: ClassVar[CorpusTraits] = {"provides": ["documents", provides]}

        def documents(self, split: Split) -> Iterator[Document]:
            yield from train if split == "train" else val

        def classes(self) -> tuple[str, ...]:
            return tuple(names)

        def fingerprint(self) -> str:
            return repr((train, val))

    return ListCorpus


def labelled(words: Sequence[str]) -> list[Document]:
    return [Document(word, (word,), labels=(WORDS.index(word[:3]) // 2,)) for word in words]


TRAIN = labelled([f"{word}{number}" for number in range(3) for word in WORDS])
VAL = labelled(["cat9", "elm8", "tan7", "dog6"])
Animals = corpus_of(TRAIN, VAL)


@pytest.fixture(scope="module")
def model() -> Model:
    spec = paribus.spec("gpt-tiny", "position=rope", "dims.length=90", CORPUS, *TINY)
    model = paribus.assemble(spec).double()
    with torch.no_grad():
        for path, parameter in model.named_parameters():
            generator = torch.Generator().manual_seed(len(path))
            parameter.add_(torch.randn(parameter.shape, generator=generator, dtype=torch.float64), alpha=0.3)
    return model.eval()


@pytest.fixture(scope="module")
def evaluated(model: Model) -> MeasuredModel:
    return measured_model(model.spec, paribus.installed(), model, paribus.data(model.spec))


@pytest.fixture
def measure(evaluated: MeasuredModel) -> Callable[..., Values]:
    def measure(corpus: Any = Animals, **options: Any) -> Values:
        with evaluation_mode(evaluated.model):
            return dict(FewShot(corpus=corpus, **options).measure(evaluated))

    return measure


def log_likelihood(model: Model, prompt: str, label: str) -> float:
    """Sum the logarithms of the bytes of a label, one position after the other."""
    ids, total = [*prompt.encode()], 0.0
    first = len(ids)
    ids += label.encode()
    with torch.inference_mode():
        for position in range(first, len(ids)):
            tokens = torch.tensor([ids[:position]])
            hidden = model.topology.run({"body": paribus.Stream(tokens)}, "body").hidden
            scores = model.objective("clm").logits(hidden, model.topology.embedding.unembed)[0, -1]
            total += float(scores.log_softmax(-1)[ids[position]])
    return total


@pytest.mark.parametrize("normalize", ["none", "tokens", "bytes"])
@pytest.mark.parametrize("shots", [0, 1, 3])
def test_the_answer_is_the_label_with_the_highest_likelihood(
    shots: int, normalize: str, measure: Callable[..., Values], model: Model, evaluated: MeasuredModel
) -> None:
    values = measure(shots=(shots,), normalize=normalize)
    prompts = draw_prompts(evaluated, read_task(Animals(), ()), read_task(Animals(), ()).val, shots)
    hits, losses = 0, []
    for number, document in enumerate(VAL):
        keys = prompts.order[number, :shots].tolist()
        lines = [f"{example.text.text} : {example.text.label}" for example in prompts.drawn[number]]
        lines = [line for _, line in sorted(zip(keys, lines, strict=True))]
        prompt = "\n".join([*lines, f"{document.text} :"])
        size = {"none": lambda name: 1, "tokens": lambda name: len(name) + 1, "bytes": len}[normalize]
        scores = [log_likelihood(model, prompt, f" {name}") / size(name) for name in NAMES]
        right = int(document.labels[0])
        hits += scores.index(max(scores)) == right
        losses.append(-scores[right] + math.log(math.fsum(map(math.exp, scores))))
    assert values[f"accuracy.k{shots}"] == hits / 4
    assert values[f"loss.k{shots}"] == pytest.approx(math.fsum(losses) / 4, abs=1e-9)
    assert values["chance"] == pytest.approx(1 / 3)
    assert (values["majority"], values["texts"], values["too-long"]) == (0.5, 4, 0)


def test_examples_are_balanced_distinct_and_from_the_training_split(evaluated: MeasuredModel) -> None:
    task = read_task(Animals(), ())
    prompts = draw_prompts(evaluated, task, [*task.val] * 30, 7)
    for drawn in prompts.drawn:
        assert len({example.text for example in drawn}) == 7
        assert {example.text.text for example in drawn} <= {document.text for document in TRAIN}
        for shots in range(1, 8):
            counts = Counter(example.right for example in drawn[:shots])
            assert max(counts.values()) - min(counts[number] for number in range(3)) <= 1
    firsts = Counter(drawn[0].text.text for drawn in prompts.drawn)
    assert len(firsts) == len(TRAIN)  # all have a chance


def test_a_class_with_few_examples_gives_all_of_them(evaluated: MeasuredModel) -> None:
    train = [*labelled(["cat1"]), *labelled([f"oak{number}" for number in range(9)])]
    task = read_task(corpus_of(train, VAL)(), ())
    for drawn in draw_prompts(evaluated, task, task.val, 6).drawn:
        assert Counter(example.right for example in drawn) == {0: 1, 1: 5}


def test_prompts_depend_on_the_seed_of_the_trial_only(evaluated: MeasuredModel) -> None:
    task = read_task(Animals(), ())
    layout = FewShot(corpus=Animals).find_format(task)

    def texts(seed: int, shots: int) -> list[str]:
        class Seeded:
            trial = evaluated.trial._replace(seed=seed)
            draw = staticmethod(evaluated.draw)

        model: Any = Seeded()
        prompts = draw_prompts(model, task, task.val, shots)
        return [prompts.text(number, min(shots, 3), layout) for number in range(4)]

    assert evaluated.trial.seed == 0
    assert texts(0, 3) == texts(0, 3) != texts(1, 3)
    assert texts(0, 6) == texts(0, 3)  # fewer shots are among more
    orders = {tuple(line.partition(" : ")[2] for line in text.split("\n")[:3]) for text in texts(0, 3)}
    assert len(orders) > 1


def test_a_text_that_is_in_both_splits_is_never_an_example() -> None:
    task = read_task(corpus_of([*TRAIN, *VAL], VAL)(), ())
    assert [example.text.text for example in task.train] == [document.text for document in TRAIN]


def test_long_texts_are_left_out_and_counted(measure: Callable[..., Values]) -> None:
    val = [*VAL, *labelled([f"oak{'k' * 60}"])]
    assert measure(corpus_of(TRAIN, val), shots=(0, 1))["too-long"] == pytest.approx(0.2)
    values = measure(corpus_of(TRAIN, val), shots=(0,))
    assert (values["too-long"], values["texts"]) == (0, 5)


def test_prompts_that_do_not_fit_have_a_reason_and_others_a_value(measure: Callable[..., Values]) -> None:
    values = measure(shots=(0, 2, 16))
    assert "at most 5 tokens" in values["accuracy.k16"]
    assert "90" in values["loss.k16"]
    assert isinstance(values["accuracy.k2"], float)
    values = measure(corpus_of(TRAIN[:2], VAL), shots=(3,))
    assert values["accuracy.k3"] == "the training split has 2 texts that fit, fewer than 3"
    assert values["chance"] == "no text fits"


def test_choices_of_a_question_are_its_labels(measure: Callable[..., Values], model: Model) -> None:
    questions = [
        Document("1", ("The sun",), (" is hot.", "runs."), labels=(0,)),
        Document("2", ("My cat",), (" is blue.", "sleeps."), labels=(1,)),
    ]
    values = measure(corpus_of(questions, questions, provides="choices"), shots=(0,))
    hits = 0
    for question in questions:
        scores = [log_likelihood(model, question.text, f" {choice.strip()}") for choice in question.target]
        hits += scores.index(max(scores)) == question.labels[0]
    assert (values["accuracy.k0"], values["chance"]) == (hits / 2, 0.5)


def test_pairs_have_a_place_in_the_template(measure: Callable[..., Values], model: Model) -> None:
    pairs = [Document("1", ("a",), ("b",), labels=(0,)), Document("2", ("c",), ("d",), labels=(1,))]
    corpus = corpus_of(pairs, pairs, ("yes", "not"))
    expected = [
        [log_likelihood(model, f"{' '.join((a, b))} :", f" {name}") for name in ("yes", "not")]
        for a, b in (("a", "b"), ("c", "d"))
    ]
    hits = [row.index(max(row)) == number for number, row in enumerate(expected)]
    assert measure(corpus, shots=(0,))["accuracy.k0"] == sum(hits) / 2
    assert "pairs" in measure(corpus, shots=(0,), template="{text} {label}")["accuracy.k0"]
    assert "single texts" in measure(shots=(0,), template="{text} {pair} {label}")["accuracy.k0"]


def test_labels_are_words_of_the_user_names_or_numbers(measure: Callable[..., Values]) -> None:
    assert [example.text.label for example in read_task(Animals(), ("x", "y", "z")).val] == ["x", "y", "z", "x"]
    assert {example.choices for example in read_task(corpus_of(TRAIN, VAL, ())(), ()).val} == {("0", "1", "2")}
    assert "label is 2" in measure(labels=("x", "y"))["accuracy.k0"]
    assert "begins" in measure(labels=("x", "xy", "z"))["accuracy.k0"]


@pytest.mark.parametrize(
    ("options", "code", "path"),
    [
        ({"shots": ()}, "few-shot", "measure.shots"),
        ({"labels": ("a", "a")}, "few-shot", "measure.labels"),
        ({"template": "{text}"}, "invalid-template", "measure.template"),
    ],
)
def test_options_that_make_no_sense_are_refused(options: Values, code: str, path: str) -> None:
    with raises_problem(SpecError, code, path):
        FewShot(corpus=Animals, **options)


def test_only_corpora_of_texts_with_labels_or_choices_are_accepted() -> None:
    with pytest.raises(ValueError, match="labels or choices"):
        FewShot(corpus=corpus_of(TRAIN, VAL, provides="pairs"))


@pytest.mark.parametrize(("preset", "words"), [("bert-tiny", ["causal"]), ("seq2seq-tiny", ["encoder"])])
def test_other_models_than_decoders_are_refused(preset: str, words: list[str]) -> None:
    with raises_problem(SpecError, "does-not-fit", "few-shot", *words):
        paribus.spec(preset, *TINY, "measure=[few-shot]")


def test_a_head_that_scores_no_tokens_gives_a_reason() -> None:
    head = "objective={name: classify-causal, classes: 4}"
    spec = paribus.spec("gpt-tiny", *TINY, CORPUS, head, "measure=[{name: few-shot, shots: [0]}]")
    values = paribus.measure(paribus.assemble(spec), paribus.data(spec))
    assert "does not score" in values.unmeasured["val/few-shot/accuracy.k0"]


def test_the_identity_of_a_trial_covers_the_files_of_a_measured_corpus(tmp_path: Path) -> None:
    path = tmp_path / "films.csv"
    corpus = f"{{name: table, path: [{path}], label: label, names: [bad, good]}}"
    spec = paribus.spec("gpt-tiny", *TINY, CORPUS, f"measure=[{{name: few-shot, corpus: {corpus}}}]")
    digests = []
    for label in ("good", "bad", "good"):
        path.write_text("text,label\n" + "".join(f"film {number},{label}\n" for number in range(40)))
        digests.append(fingerprint(spec, index()))
    assert digests[0] == digests[2] != digests[1]
    other = paribus.spec("gpt-tiny", *TINY, CORPUS)
    assert fingerprint(other, index()) not in digests
