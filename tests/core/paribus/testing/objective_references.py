"""The author's references of objectives: installed ones agree with theirs; test_mutants.py seeds faults in them."""

import math
from collections.abc import Callable, Mapping, Sequence
from itertools import accumulate, pairwise
from typing import Any

import torch
from torch import Tensor

from paribus import IGNORED, Prompt, Stream, Tokens, Vocabulary
from paribus.testing.data_references import Example

Expected = Mapping[str, Any]

# -- parts -------------------------------------------------------------------------------------------------------------


def cross_entropy(scores: Tensor, labels: Sequence[int]) -> Any:
    """(N, C) scores -> the summed loss of the labels that are not IGNORED."""
    pairs = zip(scores.log_softmax(-1), labels, strict=True)
    return sum((-log_shares[label] for log_shares, label in pairs if label != IGNORED), torch.zeros(()))


def is_text(stream: Stream, vocabulary: Vocabulary) -> list[bool]:
    """Return True for each token that is neither special nor padding."""
    return [
        token not in vocabulary.reserved
        and (stream.special is None or not stream.special[place])
        and (stream.documents is None or int(stream.documents[place]) >= 0)
        for place, token in enumerate(stream.tokens.tolist())
    ]


def text_ids(vocabulary: Vocabulary) -> list[int]:
    return [token for token in range(vocabulary.size) if token not in vocabulary.reserved]


def documents_of(stream: Stream) -> list[int]:
    return [0] * len(stream.tokens) if stream.documents is None else stream.documents.tolist()


def document_ids(tokens: Tokens, number: int) -> list[int]:
    bounds = tokens.sentences
    return list(map(int, tokens.ids[bounds[tokens.documents[number]] : bounds[tokens.documents[number + 1]]]))


def uniform(example: Example, name: str, count: int) -> list[float]:
    values: list[float] = example.draw.uniform(name, count)[0].tolist()
    return values


def below(example: Example, name: str, high: int) -> int:
    """Return an integer in [0, high), from one draw."""
    return int(uniform(example, name, 1)[0] * high)


def places_of(part: Sequence[int], ids: Sequence[int]) -> list[int]:
    """Return the places at which `part` is a run of `ids`."""
    return [start for start in range(len(ids) - len(part) + 1) if ids[start : start + len(part)] == part]


# -- masks -------------------------------------------------------------------------------------------------------------


def masked(objective: Any, example: Example, options: Mapping[str, Any]) -> Expected:
    """Choose tokens, and replace each by mask, a random token or itself: "BERT" (Devlin et al. 2019)."""
    schedule, spans = options.get("mask_schedule") or {}, options.get("spans") or {}
    draw = example.draw
    rate, final_rate = options["rate"], schedule.get("final_rate") or options["rate"]
    if schedule.get("masks") and draw.epoch >= 0:
        draw = type(draw)(draw.seed, draw.epoch % schedule["masks"], draw.index, draw.progress)
    example = example._replace(draw=draw)
    stream, length = example.formed["body"], len(example.formed["body"].tokens)
    slots = min(length, max(1, math.ceil(max(rate, final_rate) * length)))
    text = is_text(stream, example.vocabulary)
    share = (rate + (final_rate - rate) * draw.progress) * sum(text) + uniform(example, "share", 1)[0]
    count = min(max(1, math.floor(share)), sum(text), slots)
    if spans.get("whole_words"):
        places = whole_words(example, spans, text, count)
    elif spans.get("max_length", 1) > 1:  # the spans are those of the example
        places = [place for place, label in picked(example) if label != IGNORED]
    else:
        keys = uniform(example, "pick", length)
        places = sorted((place for place in range(length) if text[place]), key=keys.__getitem__)[:count]
    tokens = stream.tokens.tolist()
    inputs, labels = list(tokens), [tokens[place] for place in places] + [IGNORED] * (slots - len(places))
    fates, words = uniform(example, "fate", slots), text_ids(example.vocabulary)
    others = draw.below("other", len(words), slots)[0].tolist()
    has_spans = spans.get("whole_words") or spans.get("max_length", 1) > 1
    is_joint = has_spans and spans["joint_replacement"]
    groups = runs(places, documents_of(stream)) if is_joint else range(len(places))
    for slot, (place, group) in enumerate(zip(places, groups, strict=True)):
        if fates[group] < options["mask"]:
            inputs[place] = example.vocabulary.specials["mask"]
        elif fates[group] < options["mask"] + options["random"]:
            inputs[place] = words[others[slot]]
    return {"body.tokens": inputs, "labels": labels}


def picked(example: Example) -> list[tuple[int, int]]:
    """Return the chosen positions with their labels."""
    return list(zip(example.targets["pick"].tolist(), example.targets["labels"].tolist(), strict=True))


def runs(places: Sequence[int], documents: Sequence[int]) -> list[int]:
    """Return the number of the run of adjacent places that each place is in."""
    numbers = [0] * len(places)
    for index, (previous, place) in enumerate(pairwise(places), start=1):
        is_joined = place == previous + 1 and documents[place] == documents[previous]
        numbers[index] = numbers[index - 1] + (not is_joined)
    return numbers


def whole_words(example: Example, spans: Mapping[str, Any], text: list[bool], count: int) -> list[int]:
    """Visit words in random order, each as the start of a run of words that fits the room that is left."""
    stream, starts = example.formed["body"], example.vocabulary.word_starts or ()
    documents, tokens = documents_of(stream), stream.tokens.tolist()
    words: list[list[int]] = []
    stretches: list[int] = []  # of each word: text without a special token or the end of a document in it
    for place in (place for place in range(len(tokens)) if text[place]):
        is_interrupted = place == 0 or not text[place - 1] or documents[place - 1] != documents[place]
        if is_interrupted or tokens[place] in starts:
            words.append([])
            stretches.append(place if is_interrupted else stretches[-1])
        words[-1].append(place)
    weights = [
        1 / n if spans["stop_probability"] is None else (1 - spans["stop_probability"]) ** (n - 1)
        for n in range(1, spans["max_length"] + 1)
    ]
    cumulative = [total / sum(weights) for total in accumulate(weights)][:-1]
    keys, lengths = uniform(example, "pick", len(tokens)), uniform(example, "span", len(tokens))
    order = sorted(range(len(words)), key=keys.__getitem__)
    chosen: set[int] = set()
    room = count
    for start, draw in zip(order, lengths, strict=False):
        run: list[int] = []
        for word in range(start, start + 1 + sum(draw >= share for share in cumulative)):
            size = sum(len(words[other]) for other in run)
            if word >= len(words) or stretches[word] != stretches[start] or size + len(words[word]) > room:
                break
            run.append(word)
        if room and chosen.isdisjoint(run):
            chosen.update(run)
            room -= sum(len(words[word]) for word in run)
    chosen = chosen or set(order[:1])  # every word is too long
    return [place for word in sorted(chosen) for place in words[word]][:count]


def boundaries(objective: Any, example: Example) -> Expected:
    """The tokens beside each span of masked tokens: "SpanBERT" (Joshi et al. 2020)."""
    documents, pairs = documents_of(example.formed["body"]), picked(example)
    places = [place for place, label in pairs if label != IGNORED]
    numbers = runs(places, documents)
    expected: dict[str, list[int]] = {"left": [], "right": [], "offset": [], "boundary_labels": []}
    for slot, (place, label) in enumerate(pairs):
        values = 0, 0, 0, IGNORED
        if label != IGNORED:
            span = [other for other, number in zip(places, numbers, strict=True) if number == numbers[slot]]
            left, right = span[0] - 1, span[-1] + 1
            if left >= 0 and right < len(documents) and documents[left] == documents[right] == documents[place]:
                values = left, right, place - span[0], label
        for name, value in zip(expected, values, strict=True):
            expected[name].append(value)
    return expected


def detection(objective: Any, example: Example, options: Mapping[str, Any]) -> Expected:
    """The best prediction without the input is the share of tokens that differ: a random one may be the original."""
    labels = example.targets["labels"][example.targets["labels"] != IGNORED].double()
    words = text_ids(example.vocabulary)
    share, replaced = options["rate"] * (1 - 1 / len(words)), float(labels.mean())
    return {"unigram_loss": -replaced * math.log(share) - (1 - replaced) * math.log(1 - share)}


def replaced_tokens(objective: Any, example: Example) -> Expected:
    """Detect the tokens that differ after a generator has filled the masks: "ELECTRA" (Clark et al. 2020)."""
    original = example.streams["body"].tokens
    tokens = original.clone()
    shares = objective.fill_logits(example.run)[0].softmax(-1)
    for slot, (place, label) in enumerate(picked(example)):
        if label != IGNORED:
            total = shares[slot].cumsum(-1)
            tokens[place] = int((total <= example.targets["uniform"][slot] * total[-1]).sum())
    hidden = example.run.hidden(tokens=tokens.unsqueeze(0), key="reference")
    scores = objective.logits(hidden, example.run.unembed)[0, :, 0]
    is_replaced = tokens != original
    losses = -torch.where(is_replaced, scores.sigmoid(), (-scores).sigmoid()).log()
    return {"detection": losses[torch.tensor(documents_of(example.streams["body"])) >= 0].sum()}


# -- language models ---------------------------------------------------------------------------------------------------


def causal_language_model(objective: Any, example: Example) -> Expected:
    """Each position predicts the next token of its document; a prompt is a text, or the end of one."""
    text, specials = example.formed["body"], example.vocabulary.specials
    documents, tokens = documents_of(text), text.tokens.tolist()
    labels = next_tokens(tokens, documents)
    end = specials.get("eos", specials.get("sep"))
    scores = objective.logits(example.run.hidden(), example.run.unembed)[0]
    return {
        "body.tokens": tokens[:-1],
        "labels": labels,
        "loss": cross_entropy(scores, labels),
        "prompt": Prompt(example.prompt_ids or (() if end is None else (end,)), stop=end),
    }


def prefix_language_model(objective: Any, example: Example, options: Mapping[str, Any]) -> Expected:
    """Tokens of a prefix of each document see each other; the rest is predicted: T5 (Raffel et al. 2020)."""
    text = example.formed["body"]
    documents, tokens = documents_of(text), text.tokens.tolist()
    labels = next_tokens(tokens, documents)
    if "encoder" in example.streams:
        return {}
    order, fractions = list(range(len(labels))), uniform(example, "prefix", len(labels))
    starts = [place for place in order if place == 0 or documents[place] != documents[place - 1]]
    for start, stop in zip(starts, [*starts[1:], len(labels)], strict=True):
        count = sum(label != IGNORED for label in labels[start:stop])
        length = int(fractions[start] * count)
        if options["prefix"] is not None:
            length = round((count + 1) * options["prefix"]) - 1
        end = start + min(max(length, 0), max(count - 1, 0))
        for place in range(start, end):
            order[place], labels[place] = end, IGNORED
    return {"body.tokens": tokens[:-1], "body.order": order, "labels": labels}


def next_tokens(tokens: Sequence[int], documents: Sequence[int]) -> list[int]:
    """Return the next token of the same document for each token but the last."""
    return [
        tokens[place + 1] if 0 <= documents[place] == documents[place + 1] else IGNORED
        for place in range(len(tokens) - 1)
    ]


def permutation(objective: Any, example: Example) -> Expected:
    """Predicted tokens have a random order, after all others: "XLNet" (Yang et al. 2019)."""
    body, labels = example.streams["body"], example.targets["labels"].tolist()
    assert body.query_positions is not None
    places = body.query_positions.tolist()
    ranks, order = uniform(example, "rank", len(labels)), [0] * len(body.tokens)
    used = [slot for slot, label in enumerate(labels) if label != IGNORED]
    for rank, slot in enumerate(sorted(used, key=ranks.__getitem__), start=1):
        order[places[slot]] = 2 * rank
    tokens = example.formed["body"].tokens.tolist()
    return {"body.order": order, "labels": [tokens[places[s]] if s in used else IGNORED for s in range(len(labels))]}


# -- spans -------------------------------------------------------------------------------------------------------------


def parts(total: int, count: int, keys: list[float]) -> list[int]:
    """Split a total into random parts of at least 1: the cuts with the smallest keys."""
    cuts = sorted(sorted(range(1, total), key=lambda cut: keys[cut - 1])[: count - 1])
    return [end - start for start, end in zip([0, *cuts], [*cuts, total], strict=True)]


def corrupted_spans(example: Example, rate: float, mean_span: float | None, sentinels: Sequence[int]) -> Expected:
    """Replace spans of noise by sentinels, which the decoder writes with their spans: T5 (Raffel et al. 2020).

    Each token has the document of its origin; a sentinel that of its span.
    """
    text, eos = example.formed["body"], example.vocabulary.specials["eos"]
    tokens, documents = text.tokens.tolist(), documents_of(text)
    noise = min(max(round(len(tokens) * rate), 1), len(tokens) - 1)
    count = 1 if mean_span is None else min(max(round(noise / mean_span), 1), noise, len(tokens) - noise)
    kept = parts(len(tokens) - noise, count, uniform(example, "text spans", len(tokens) - noise))
    removed = parts(noise, count, uniform(example, "noise spans", noise))
    place = 0
    encoder: list[tuple[int, int]] = []  # tokens with their documents
    decoder: list[tuple[int, int]] = []
    for sentinel, text_length, span_length in zip(sentinels, kept, removed, strict=False):
        pairs = list(zip(tokens, documents, strict=True))[place : place + text_length + span_length]
        encoder += [*pairs[:text_length], (sentinel, pairs[text_length][1])]
        decoder += [(sentinel, pairs[text_length][1]), *pairs[text_length:]]
        place += text_length + span_length
    for side in (encoder, decoder):
        side.append((eos, side[-1][1]))
    specials = example.vocabulary.specials
    start = specials.get("pad", specials.get("bos", eos))
    previous = [(start, -2), *decoder]
    return {
        "encoder.tokens": [token for token, _ in encoder],
        "encoder.documents": None if text.documents is None else [document for _, document in encoder],
        "body.tokens": [
            token if own == document else start for (token, own), (_, document) in zip(previous, decoder, strict=False)
        ],
        "body.documents": None if text.documents is None else [document for _, document in decoder],
        "labels": [token if document >= 0 else IGNORED for token, document in decoder],
    }


def span_corruption(objective: Any, example: Example, options: Mapping[str, Any]) -> Expected:
    return corrupted_spans(example, options["rate"], options["mean_span"], example.vocabulary.sentinels)


def mixture_of_denoisers(objective: Any, example: Example, options: Mapping[str, Any]) -> Expected:
    """One of the seven denoisers of table 1, after a token of its mode: "UL2" (Tay et al. 2022)."""
    modes: Mapping[str, Sequence[tuple[float, float | None]]] = {
        "regular": ((0.15, 3.0), (0.15, 8.0)),
        "sequential": ((0.25, None),),
        "extreme": ((0.5, 3.0), (0.5, 8.0), (0.15, 64.0), (0.5, 64.0)),
    }
    weights = [(options[mode] / len(kinds), mode, kind) for mode, kinds in modes.items() for kind in kinds]
    shares = accumulate(weight / sum(weight for weight, _, _ in weights) for weight, _, _ in weights)
    number = min(sum(uniform(example, "denoiser", 1)[0] >= share for share in shares), len(weights) - 1)
    _, mode, (rate, mean_span) = weights[number]
    *sentinels, regular, sequential, extreme = example.vocabulary.sentinels
    first = {"regular": regular, "sequential": sequential, "extreme": extreme}[mode]
    spans = corrupted_spans(example, rate, mean_span, sentinels)
    body, encoder = example.streams["body"].tokens, example.streams["encoder"].tokens.tolist()
    source, labels = [first, *spans["encoder.tokens"]], spans["labels"]
    return {
        "encoder.tokens": source + encoder[len(source) :],
        "labels": labels + [IGNORED] * (len(body) - len(labels)),
    }


def denoising(objective: Any, example: Example, options: Mapping[str, Any]) -> Expected:
    """The masks of infilled spans, wherever other noise moves the tokens: "BART" (Lewis et al. 2020)."""
    if options["mask"] or options["delete"]:
        return {}
    stream, mask = example.formed["body"], example.vocabulary.specials["mask"]
    text, documents = is_text(stream, example.vocabulary), documents_of(stream)
    places = [place for place, flag in enumerate(text) if flag]
    rate, mean = options["infill"]["rate"], options["infill"]["mean_span"]
    count = min(max(1, math.floor(len(places) * rate + uniform(example, "share", 1)[0])), len(places)) if rate else 0
    spans = infilled_spans(example, count, len(places), mean)
    removed = {places[start + offset] for start, size in spans for offset in range(size)}
    masks = {places[start] for start, size in spans if size}
    masks |= {  # a span that is interrupted has a mask in each text
        place for place in removed if place == 0 or not text[place - 1] or documents[place - 1] != documents[place]
    }
    empty = [places[start] for start, size in spans if not size and start < len(places)]
    masks |= set(empty[: max(0, len(removed) - len(masks))])
    pattern = [
        is_mask
        for place in range(len(text))
        for is_mask in [*([True] if place in masks else []), *([] if place in removed else [False])]
    ]
    tokens = example.streams["encoder"].tokens.tolist()
    tokens[: len(pattern)] = [
        mask if is_mask else (-1 if token == mask else token) for is_mask, token in zip(pattern, tokens, strict=False)
    ]
    tokens[len(pattern)] = example.vocabulary.specials["eos"]
    return {"encoder.tokens": tokens}


def infilled_spans(example: Example, count: int, total: int, mean: float) -> list[tuple[int, int]]:
    """Return the spans in order: the token that each starts before, and its Poisson length, until `count` tokens."""
    length = len(example.formed["body"].tokens)
    probabilities = [math.exp(-mean)]
    while sum(probabilities) < 1 - 1e-9:
        probabilities.append(probabilities[-1] * mean / len(probabilities))
    cumulative = [share / sum(probabilities) for share in accumulate(probabilities)][:-1]
    draws = uniform(example, "infilled", length + 1)
    keys = uniform(example, "gap", length + 1)
    gaps = sorted(range(total - count + 1), key=keys.__getitem__)
    sizes: list[int] = []
    while sum(sizes) < count and len(sizes) < len(gaps):
        size = sum(draws[len(sizes)] >= share for share in cumulative)
        sizes.append(min(size, count - sum(sizes)))
    spans: list[tuple[int, int]] = []
    for gap, size in sorted(zip(gaps, sizes, strict=False)):
        spans.append((gap + sum(other for _, other in spans), size))
    return spans


REFERENCES: dict[str, Callable[..., Any]] = {
    "objective.clm": causal_language_model,
    "objective.denoise": denoising,
    "objective.detection": detection,
    "objective.mlm": masked,
    "objective.permutation": permutation,
    "objective.prefix-lm": prefix_language_model,
    "objective.rtd": replaced_tokens,
    "objective.sbo": boundaries,
    "objective.span-corruption": span_corruption,
    "objective.ul2": mixture_of_denoisers,
}
