"""The author's references of objectives of texts, pairs and teachers; test_mutants.py seeds faults in these."""

import math
from collections.abc import Callable, Mapping
from typing import Any

import torch
from tests.core.paribus.testing.objective_references import (
    Expected,
    below,
    cross_entropy,
    document_ids,
    documents_of,
    masked,
    places_of,
    uniform,
)

from paribus import IGNORED, Stream
from paribus.testing.data_references import Example


def next_sentence(objective: Any, example: Example) -> Expected:
    """Label 1: the second segment is from another document, chosen uniformly: "BERT" (Devlin et al. 2019)."""
    body, tokens = example.formed["body"], example.tokens
    first, second = segments_of(body)
    count = len(tokens.documents) - 1
    documents = [document_ids(tokens, number) for number in range(count)]
    is_random = uniform(example, "next", 1)[0] < 0.5
    other = below(example, "document", count - 1)
    own = [number for number in range(count) if places_of(first, documents[number])]
    sources = [other + (other >= number) for number in own] if is_random else own
    assert any(places_of(second, documents[number]) for number in sources), "the second segment is of another document"
    return {"labels": int(is_random)}


def segments_of(body: Stream) -> list[list[int]]:
    """Return the text of both segments, without special tokens and padding."""
    assert body.segments is not None
    assert body.special is not None
    segments: list[list[int]] = [[], []]
    for token, segment, is_special in zip(body.tokens, body.segments, body.special, strict=True):
        segments[int(segment)] += [] if is_special else [int(token)]
    return segments


def sentence_order(objective: Any, example: Example) -> Expected:
    """Label 1: the segments are swapped: "ALBERT" (Lan et al. 2020)."""
    is_swapped = uniform(example, "swap", 1)[0] < 0.5
    earlier, later = (
        reversed(segments_of(example.formed["body"])) if is_swapped else segments_of(example.formed["body"])
    )
    documents = [document_ids(example.tokens, number) for number in range(len(example.tokens.documents) - 1)]
    assert any(
        place + len(earlier) <= other
        for ids in documents
        for place in places_of(earlier, ids)
        for other in places_of(later, ids)
    ), "the segments are in another order"
    return {"labels": int(is_swapped)}


def pooled(example: Example, pool: str) -> Any:
    """(D,): the first or last token, or the mean without padding."""
    documents = documents_of(example.streams["body"])
    hidden = [vector for vector, number in zip(example.run.hidden()[0], documents, strict=True) if number >= 0]
    return {"first": hidden[0], "last": hidden[-1], "mean": torch.stack(hidden).mean(0)}[pool]


def classification(objective: Any, example: Example, options: Mapping[str, Any]) -> Expected:
    """`[cls] text [sep]`, and the class of the document."""
    assert example.tokens.labels is not None
    specials, length = example.vocabulary.specials, len(example.streams["body"].tokens)
    text = document_ids(example.tokens, example.index)[: length - 2]
    ids = [specials["cls"], *text, specials["sep"]]
    label = int(example.tokens.labels.values[example.index])
    return {
        "body.tokens": ids + example.streams["body"].tokens.tolist()[len(ids) :],
        "labels": label,
        "loss": cross_entropy(objective.head(pooled(example, options["pool"])).unsqueeze(0), [label]),
    }


def choice(objective: Any, example: Example) -> Expected:
    """`[cls] context [sep] choice [sep]` for each choice, and a softmax over their first tokens."""
    return _choices(objective, example, ("cls", "sep", "sep"), scored=0)


def causal_choice(objective: Any, example: Example) -> Expected:
    """`[bos] context [sep] choice [cls]` for each choice, and a softmax over their last tokens."""
    return _choices(objective, example, ("bos", "sep", "cls"), scored=-1)


def _choices(objective: Any, example: Example, marks: tuple[str, str, str], scored: int) -> Expected:
    tokens, specials = example.tokens, example.vocabulary.specials
    assert tokens.targets is not None
    assert tokens.labels is not None
    start, separator, end = (specials[mark] for mark in marks)
    context, texts = document_ids(tokens, example.index), tokens.targets
    ids: list[int] = []
    documents: list[int] = []
    places: list[int] = []
    first = int(texts.documents[example.index])
    for number, sentence in enumerate(range(first, int(texts.documents[example.index + 1]))):
        words = texts.ids[texts.sentences[sentence] : texts.sentences[sentence + 1]].tolist()
        kept = list(context)
        while len(kept) + len(words) > objective.texts.limit - 3:  # the longer is shortened
            (kept if len(kept) > len(words) else words).pop()
        sequence = [start, *kept, separator, *words, end]
        ids += sequence
        documents += [number] * len(sequence)
        places.append(len(ids) - 1 if scored else len(ids) - len(sequence))
    length, label = len(example.streams["body"].tokens), int(tokens.labels.values[example.index])
    scores = torch.stack([objective.head(example.run.hidden()[0, place])[0] for place in places])
    return {
        "body.tokens": ids + example.streams["body"].tokens.tolist()[len(ids) :],
        "body.documents": documents + [-1] * (length - len(ids)),
        "labels": label,
        "loss": cross_entropy(scores.unsqueeze(0), [label]),
    }


def regression(objective: Any, example: Example, options: Mapping[str, Any]) -> Expected:
    """The squared difference to the score of the document, which is in float32."""
    assert example.tokens.labels is not None
    score = torch.tensor(float(example.tokens.labels.values[example.index]))
    return {"scores": score, "loss": ((objective.head(pooled(example, options["pool"])) - score) ** 2).sum()}


def sequence_to_sequence(objective: Any, example: Example, options: Mapping[str, Any]) -> Expected:
    """The encoder reads the source and eos; the decoder writes the target and eos (Sutskever et al. 2014)."""
    tokens, specials = example.tokens, example.vocabulary.specials
    assert tokens.targets is not None
    eos, length = specials["eos"], len(example.streams["body"].tokens)
    pairs = [(document_ids(tokens, n), document_ids(tokens.targets, n)) for n in range(len(tokens.documents) - 1)]
    if options["overlong"] == "drop":
        pairs = [pair for pair in pairs if max(map(len, pair)) < length]
    source, target = (side[: length - 1] for side in pairs[example.index])
    source, target = [*(reversed(source) if options["reversed"] else source), eos], [*target, eos]
    pad, start = specials.get("pad", eos), specials.get("pad", specials.get("bos", eos))
    labels = target + [IGNORED] * (length - len(target))
    scores = objective.logits(example.run.hidden(), example.run.unembed)[0]
    return {
        "encoder.tokens": source + [pad] * (length - len(source)),
        "body.tokens": [start, *target[:-1]] + [pad] * (length - len(target)),
        "labels": labels,
        "loss": cross_entropy(scores, labels),
    }


def distilled_hidden(objective: Any, example: Example) -> Expected:
    """1 - cos of the hidden states of model and teacher: "DistilBERT" (Sanh et al. 2019)."""
    student, teacher = example.run.hidden()[0], example.run.teacher.hidden()[0]
    cosines = (student * teacher).sum(-1) / (student.norm(dim=-1) * teacher.norm(dim=-1))
    return {"loss": (1 - cosines)[torch.tensor(documents_of(example.streams["body"])) >= 0].sum()}


def distilled_attention(objective: Any, example: Example, options: Mapping[str, Any]) -> Expected:
    """Squared differences of the scores of each head, before the softmax: "TinyBERT" (Jiao et al. 2020)."""
    documents, total = documents_of(example.streams["body"]), torch.zeros(())
    for layer, teacher_layer in zip(options["layers"], options["teacher_layers"], strict=True):
        sides = (example.run, layer), (example.run.teacher, teacher_layer)
        heads = [[run.captured(number, name)[0] for name in "qk"] for run, number in sides]
        for place in (place for place, document in enumerate(documents) if document >= 0):
            seen = [other for other, document in enumerate(documents) if document == documents[place]]
            seen = [other for other in seen if other <= place or not objective.causal]
            student, teacher = (q[:, [place]] @ k[:, seen].mT / math.sqrt(q.shape[-1]) for q, k in heads)
            total = total + (student - teacher).square().mean()
    return {"loss": total}


def tagging(objective: Any, example: Example) -> Expected:
    """Cut documents into runs of words that fit; the first token of a word has its label."""
    tokens, length = example.tokens, len(example.streams["body"].tokens)
    assert tokens.labels is not None
    cuts: list[list[int]] = []
    for number in range(len(tokens.documents) - 1):
        cuts.append([])
        for word in range(int(tokens.documents[number]), int(tokens.documents[number + 1])):
            first = (cuts[-1] or [word])[0]
            if tokens.sentences[word + 1] - tokens.sentences[first] > length - 2 and cuts[-1]:
                cuts.append([])
            cuts[-1].append(word)
    words = cuts[example.index]
    labels = [IGNORED] * length
    for word in words:  # every word has one label, in the order of the words
        labels[1 + int(tokens.sentences[word] - tokens.sentences[words[0]])] = int(tokens.labels.values[word])
    return {"labels": labels}


def extraction(objective: Any, example: Example) -> Expected:
    """A softmax over cls and the context, without the question: "BERT" (Devlin et al. 2019), 4.2."""
    body, sep = example.streams["body"], example.vocabulary.specials["sep"]
    assert body.special is not None
    marks = [place for place in range(len(body.tokens)) if body.special[place] and body.tokens[place] == sep]
    candidates = [place == 0 or marks[0] < place < marks[1] for place in range(len(body.tokens))]
    scores = objective.logits(example.run.hidden(), example.run.unembed)[0].T
    scores = scores.masked_fill(~torch.tensor(candidates), -torch.inf)
    return {"candidates": candidates, "loss": cross_entropy(scores, example.targets["labels"].tolist())}


def scheduled_sampling(objective: Any, example: Example, options: Mapping[str, Any]) -> Expected:
    """The share of predictions grows to `rate`: "Scheduled Sampling" (Bengio et al. 2015)."""
    progress = example.draw.progress
    growth = {"constant": 1.0, "linear": progress, "sigmoid": 1 / (1 + math.exp(-12 * (progress - 0.5)))}
    draws = uniform(example, "own words", len(example.streams["body"].tokens))
    share = options["rate"] * growth[options["growth"]]
    return {"use_prediction": [place > 0 and draw < share for place, draw in enumerate(draws)]}


def completion(objective: Any, example: Example, options: Mapping[str, Any]) -> Expected:
    """A prompt, whose start is cut if it is too long, and its answer."""
    tokens, specials = example.tokens, example.vocabulary.specials
    assert tokens.targets is not None
    length = len(example.streams["body"].tokens)
    separator = [specials["sep"]] if options["separator"] else []
    pairs = [(document_ids(tokens, n), document_ids(tokens.targets, n)) for n in range(len(tokens.documents) - 1)]
    if options["overlong"] == "drop":
        pairs = [(prompt, answer) for prompt, answer in pairs if len(prompt + separator + answer) <= length]
    prompt, answer = pairs[example.index]
    answer = answer[: length - len(separator) - 1]
    prompt = prompt[-(length - len(separator) - len(answer)) :]
    sequence = [*prompt, *separator, *answer, specials["eos"]]
    padding = [specials.get("pad", specials["eos"])] * (length - len(sequence))
    return {"body.tokens": (sequence + padding)[:length]}


def translation_language_model(objective: Any, example: Example, options: Mapping[str, Any]) -> Expected:
    """`[cls] A [sep] [cls] B [sep]` in random order, or A alone; positions of B restart (Conneau & Lample 2019)."""
    tokens, specials, body = example.tokens, example.vocabulary.specials, example.formed["body"]
    assert tokens.targets is not None
    assert body.positions is not None
    is_swapped = uniform(example, "turned", 1)[0] < 0.5
    is_single = uniform(example, "alone", 1)[0] < options["monolingual"]
    sides = [document_ids(side, example.index) for side in (tokens, tokens.targets)]
    first, second = reversed(sides) if is_swapped else sides
    length = len(body.tokens)
    room = length - 2 if is_single else length - 4
    second = [] if is_single else second
    first = first[: max(room - len(second), (room + 1) // 2)]
    texts = [first, *([] if is_single else [second[: room - len(first)]])]
    ids = [token for text in texts for token in (specials["cls"], *text, specials["sep"])]
    positions = [position for text in texts for position in range(len(text) + 2)]
    assert body.tokens[: len(ids)].tolist() == ids, "the texts are others, or in another order"
    padding = body.positions[len(ids) :].tolist()
    return {"body.positions": positions + padding, **masked(objective, example, options)}


def distilled_scores(objective: Any, example: Example, options: Mapping[str, Any]) -> Expected:
    """KL(teacher || model) at a temperature, times its square: "Distilling the Knowledge" (Hinton et al. 2015)."""
    run, temperature = example.run, options["temperature"]
    scores = run.head_logits(options["objective"])[0], run.teacher.head_logits(options["objective"])[0]
    student, teacher = ((values / temperature).softmax(-1) for values in scores)
    losses = (teacher * (teacher.log() - student.log())).sum(-1) * temperature**2
    return {"loss": losses[torch.tensor(documents_of(example.streams["body"])) >= 0].sum()}


REFERENCES: dict[str, Callable[..., Any]] = {
    "objective.choose": choice,
    "objective.choose-causal": causal_choice,
    "objective.classify": classification,
    "objective.distill-attention": distilled_attention,
    "objective.distill-hidden": distilled_hidden,
    "objective.regress": regression,
    "objective.seq2seq": sequence_to_sequence,
    "objective.sop": sentence_order,
    "objective.completion": completion,
    "objective.distill-scores": distilled_scores,
    "objective.extract": extraction,
    "objective.nsp": next_sentence,
    "objective.scheduled-sampling": scheduled_sampling,
    "objective.tag": tagging,
    "objective.tlm": translation_language_model,
}
