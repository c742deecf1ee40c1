"""Classification by a language model: the label with the highest likelihood after a prompt with examples."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import get_args

from torch import Tensor

from paribus.errors import DataError, Problem, SpecError, join_names
from paribus.inference.prompts import build_prompts, require_text
from paribus.models.lightning_module import Model
from paribus.parts.batch import Stream
from paribus.parts.few_shot_prompt import FewShotFormat, LabelledText
from paribus.parts.label_scores import Normalize, ScoredText, encode_labels, label_problem, label_scores
from paribus.slots.objective import GenerationTarget

Example = tuple[str, str] | tuple[str, str, str]


def as_examples(examples: Sequence[Example]) -> list[LabelledText]:
    """Return (text, label) and (text, label, second text) as examples of a prompt."""
    for number, example in enumerate(examples, start=1):
        if len(example) not in (2, 3) or not all(isinstance(part, str) and part.strip() for part in example):
            message, valid = f"got {example!r}", "(text, label), or (text, label, second text)"
            raise DataError(Problem(code="invalid-example", path=f"example {number}", message=message, valid=valid))
    return [LabelledText(*example) for example in examples]


def label_likelihoods(
    model: Model,
    queries: Sequence[LabelledText],
    labels: Sequence[Sequence[str]],
    examples: Sequence[LabelledText],
    *,
    template: str | None,
    normalize: str,
    batch: int,
) -> list[Tensor]:
    """Return the scores of the labels of each query after the same examples, (C,) float64, in nats.

    Without examples, labels are endings of the text, so that the default template only joins them.
    """
    if normalize not in get_args(Normalize):
        valid = join_names(get_args(Normalize))
        raise SpecError(Problem(code="out-of-range", path="normalize", message=f"got {normalize!r}", valid=valid))
    layout = _format(template, [*examples, *queries], endings=not examples)
    prompts = [layout.prompt(examples, query) for query in queries]
    encode = require_text(model).tokenizer.encode_batch
    scored = encode_labels(encode, prompts, labels)
    _check(model, scored, labels, len(examples), normalize)
    logits, size = _next_token_logits(model, scored[0][0]), require_text(model).vocabulary.size
    return [
        scores
        for start in range(0, len(scored), batch)
        for scores in label_scores(
            logits, scored[start : start + batch], labels[start : start + batch], size, normalize
        )
    ]


def _format(template: str | None, texts: Sequence[LabelledText], *, endings: bool) -> FewShotFormat:
    pairs = [bool(text.pair) for text in texts]
    if any(pairs) and not all(pairs):
        message = f"{sum(pairs)} of {len(pairs)} examples and texts have a second text"
        raise DataError(Problem(code="no-pairs", path="pair", message=message, valid="all of them, or none"))
    return FewShotFormat.of(template, pairs=any(pairs), endings=endings)


def _check(
    model: Model, scored: Sequence[Sequence[ScoredText]], labels: Sequence[Sequence[str]], shots: int, normalize: str
) -> None:
    """Raise an error for each prompt that does not fit, or whose labels cannot be compared."""
    length = int(model.spec["dims"]["length"])
    unknown = require_text(model).vocabulary.specials.get("unk")
    problems = []
    for number, (texts, names) in enumerate(zip(scored, labels, strict=True), start=1):
        path, size = f"text {number}", max(len(text.ids) for text in texts)
        reason = label_problem(texts, names, unknown, normalize)
        if size > length:
            message = f"its prompt of {shots} examples has {size:,} tokens, but dims.length is {length:,}"
            problems.append(Problem(code="too-long", path=path, message=message, valid="fewer or shorter examples"))
        elif reason:
            valid = "labels that the tokenizer tells apart"
            problems.append(Problem(code="labels", path=path, message=reason, valid=valid))
    if problems:
        raise DataError(*problems)


def _next_token_logits(model: Model, text: ScoredText) -> Callable[[Tensor], Tensor]:
    """Return the scores of the next tokens, (B, T) -> (B, T, V), of a model that continues a text as it is."""
    objective, (prompt,) = build_prompts(model, [text.ids], GenerationTarget())
    if tuple(prompt.body) != text.ids or prompt.source is not None or prompt.bidirectional or prompt.mask is not None:
        message = f"a model that was trained for {join_names(model.trained)} does not continue a text as it is"
        valid = "a model that was trained for clm"
        raise SpecError(Problem(code="cannot-predict", path="examples", message=message, valid=valid))

    def logits(tokens: Tensor) -> Tensor:
        stream = Stream(tokens.to(model.device))
        hidden = model.topology.run({"body": stream}, "body").hidden
        return objective.logits(hidden, model.topology.embedding.unembed)

    return logits
