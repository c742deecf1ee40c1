"""Few-shot accuracy: classification by the likelihood of labels after a prompt with examples."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Annotated, ClassVar, Literal, final

from torch import Tensor

from paribus import (
    Corpus,
    DataError,
    EvaluatedModel,
    FewShotFormat,
    Measure,
    MeasureTraits,
    ParibusError,
    Problem,
    Range,
    Slot,
    SpecError,
    TrialInfo,
    encode_labels,
    label_problem,
    label_scores,
)
from paribus_measure.few_shot_task import (
    Example,
    FewShotTask,
    Prompts,
    draw_prompts,
    fitting,
    format_of,
    read_task,
    spread,
)


@final
class FewShot(Measure):
    """Few-shot accuracy of a language model that was not trained for the task: "Language Models are Few-Shot Learners"
    (Brown et al. 2020), scored as by the lm-evaluation-harness.

    A prompt has k examples of the training split of `corpus` and a text of its validation split; the label with the
    highest log-likelihood after it is the answer. `accuracy.k4` is the share of right answers after 4 examples, and
    `loss.k4` the cross-entropy of a softmax over the scores of the labels. `chance` is the accuracy of guesses, and
    `majority` that of the most frequent label. The examples of each text are drawn by the seed of the trial, equally
    many of each class; those of fewer shots are among those of more.

    No prompt is cut: a text or example of more than `dims.length` / (k + 1) tokens, for the largest k, is left out for
    every k. `texts` is the number of evaluated texts, and `too-long` the share that is left out. Above one half, this k
    has no value, and the record has the reason.
    """

    traits: ClassVar[MeasureTraits] = {"visibility": "past", "own_tokens": True}

    def __init__(
        self,
        *,
        corpus: Annotated[
            Callable[[], Corpus], "corpus of texts or pairs with classes or choices", Slot("corpus")
        ] = "groups",  # type: ignore[assignment]  # a name in the spec, its factory here
        shots: Annotated[tuple[int, ...], "numbers of examples in a prompt", Range(0, 4096)] = (0, 4, 16),
        examples: Annotated[int, "maximum number of texts of the validation split", Range(1)] = 256,
        template: Annotated[
            str | None,
            "format with {text}, {label}, and {pair} of pairs; null: `{text} : {label}`, or `{text} {label}`",
        ] = None,
        separator: Annotated[str, "text between two examples"] = "\n",
        labels: Annotated[tuple[str, ...], "words for the classes in order; empty: their names"] = (),
        normalize: Annotated[
            Literal["none", "tokens", "bytes"], "number of a label by which its log-likelihood is divided"
        ] = "none",
    ) -> None:
        self.corpus = corpus()
        provides = self.corpus.traits.get("provides", [])
        if not {"labels", "choices"} & {*provides} or self.corpus.traits.get("modality", "text") != "text":
            raise ValueError("expected as `corpus` a corpus of texts with labels or choices")
        if not shots or len(set(labels)) < len(labels):
            path, values = ("labels", labels) if shots else ("shots", shots)
            message = f"got {list(values)}"
            raise SpecError(
                Problem(code="few-shot", path=f"measure.{path}", message=message, valid="one or more, none twice")
            )
        if template is not None:
            FewShotFormat(template, separator, "measure.template")  # an error now, not at the end of the training
        self.shots = sorted(set(shots))
        self.examples = examples
        self.labels = tuple(labels)
        self.normalize = normalize
        self.find_format = partial(format_of, template, separator)

    def names(self, trial: TrialInfo) -> Sequence[str]:
        metrics = [f"{name}.k{shots}" for shots in self.shots for name in ("accuracy", "loss")]
        return [*metrics, "chance", "majority", "texts", "too-long"]

    def measure(self, model: EvaluatedModel) -> Mapping[str, float | str]:
        try:
            task = read_task(self.corpus, self.labels)
            layout = self.find_format(task)
            return dict.fromkeys(self.names(model.trial), "no text fits") | self._values(model, task, layout)
        except ParibusError as error:  # the trained model is worth more than these numbers
            return dict.fromkeys(self.names(model.trial), error.problems[0].message)

    def _values(self, model: EvaluatedModel, task: FewShotTask, layout: FewShotFormat) -> dict[str, float | str]:
        values: dict[str, float | str] = {}
        prompts: Prompts | None = None
        for shots in reversed(self.shots):
            if prompts is None:
                fits = _fitting_task(task, shots, layout, model)
                if isinstance(fits, str):
                    values |= {f"accuracy.k{shots}": fits, f"loss.k{shots}": fits}
                    continue
                queries = [fits.val[number] for number in spread(len(fits.val), self.examples)]
                prompts = draw_prompts(model, fits, queries, shots)
                values |= _baselines(queries) | {"too-long": 1 - len(fits.val) / len(task.val)}
            values |= self._scores(model, prompts, shots, layout)
        return values

    def _scores(
        self, model: EvaluatedModel, prompts: Prompts, shots: int, layout: FewShotFormat
    ) -> dict[str, float | str]:
        """Return the accuracy and the loss after some examples."""
        names = f"accuracy.k{shots}", f"loss.k{shots}"
        texts = [prompts.text(number, shots, layout) for number in range(len(prompts.queries))]
        choices = [query.choices for query in prompts.queries]
        scored = encode_labels(model.encode, texts, choices)
        unknown = model.vocabulary.specials.get("unk")
        problems = (label_problem(*pair, unknown, self.normalize) for pair in zip(scored, choices, strict=True))
        longest = max(len(text.ids) for row in scored for text in row)
        reason = next(filter(None, problems), "")
        if longest > model.trial.length:
            reason = (
                f"a prompt of {shots} examples has {longest:,} tokens, more than dims.length ({model.trial.length:,})"
            )
        if reason:
            return dict.fromkeys(names, reason)
        right = [query.right for query in prompts.queries]
        scores = label_scores(partial(_logits, model), scored, choices, model.vocabulary.size, self.normalize)
        hits = [float(int(row.argmax()) == number) for row, number in zip(scores, right, strict=True)]
        losses = [-float(row.log_softmax(-1)[number]) for row, number in zip(scores, right, strict=True)]
        return dict(zip(names, (math.fsum(hits) / len(hits), math.fsum(losses) / len(losses)), strict=True))


def _fitting_task(task: FewShotTask, shots: int, layout: FewShotFormat, model: EvaluatedModel) -> FewShotTask | str:
    """Return the task without texts that may not fit; the reason if these are more than half, or too few are left."""
    limit = model.trial.length // (shots + 1)
    train = fitting(task.train, layout, model.encode, limit) if shots else []
    val = fitting(task.val, layout, model.encode, limit)
    for examples, rest, name in ((task.train, train, "training"), (task.val, val, "validation")):
        if 2 * len(rest) < len(examples) and (shots or name == "validation"):
            start = f"{len(rest):,} of {len(examples):,} texts of the {name} split have at most {limit:,} tokens"
            return f"{start}, which is dims.length ({model.trial.length:,}) / {shots + 1}; expected half of them"
    if len(train) < shots:
        return f"the training split has {len(train):,} texts that fit, fewer than {shots:,}"
    return task._replace(train=train, val=val)


def _baselines(queries: Sequence[Example]) -> dict[str, float | str]:
    counts = Counter(query.right for query in queries)
    guesses = math.fsum(1 / len(query.choices) for query in queries)
    majority = max(counts.values()) / len(queries)
    return {"chance": guesses / len(queries), "majority": majority, "texts": float(len(queries))}


def _logits(model: EvaluatedModel, tokens: Tensor) -> Tensor:
    """(B, T) -> (B, T, V): scores of the next token at each position."""
    scores = model.logits(model.token_batch(tokens))
    if scores.shape[:2] != tokens.shape or scores.shape[-1] < model.vocabulary.size:
        message = "the first objective does not score the tokens of the body"
        raise DataError(Problem(code="no-scores", path="measure", message=message, valid="a language model"))
    return scores
