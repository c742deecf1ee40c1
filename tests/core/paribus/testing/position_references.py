"""References of the installed positions: one slow function for each, written from its paper.

Positions that are added to embeddings return the vector `x` of a token at position i. Positions that rotate or have a
bias return the score of the query q at position i and the key k at position j in one head, before the division by the
root of the head width; `shaw` also the vector that the values get. `layer` holds the attention and the position.
"""

import math
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

Options = Mapping[str, Any]


def no_position(module: Any, x: Tensor, i: int) -> Tensor:
    return x


def learned(module: Any, x: Tensor, i: int, options: Options) -> Any:
    """A table of positions (Gehring et al. 2017); an IndexError beyond it."""
    return x + module.table.weight[i + options["offset"]]


def sinusoidal(module: Any, x: Tensor, i: int, options: Options) -> Any:
    """sin(i / base^(2 pair / D)), and the cosine (Vaswani et al. 2017, section 3.5), or the layouts of later code."""
    width, position = len(x), i + options["offset"]
    pairs = width // 2 if options["closed"] else math.ceil(width / 2)
    waves: list[tuple[float, float]] = []
    for pair in range(pairs):
        exponent = pair / max(1, pairs - 1) if options["closed"] else 2 * pair / width
        angle = position / options["base"] ** exponent
        waves.append((math.sin(angle), math.cos(angle)))
    if options["layout"] == "interleaved":
        channels = [channel for wave in waves for channel in wave]
    else:
        channels = [sine for sine, _ in waves] + [cosine for _, cosine in waves]
    vector = x.new_tensor([*channels, 0.0][:width])  # an odd width ends in 0, or without the last cosine
    return x + (vector if options["scale"] == "none" else vector * module.gain / math.sqrt(width))


def alibi(module: Any, q: Tensor, k: Tensor, i: int, j: int, head: int, layer: Any) -> Any:
    """q · k - slope |i - j| (Press et al. 2022)."""
    heads = layer.attention.shape.heads
    return q @ k - alibi_slope(head, heads) * abs(i - j)


def alibi_slope(head: int, heads: int) -> Any:
    """2^(-8/H), 2^(-16/H) … for a power of two; further heads have every other slope of twice as many."""
    power = 2 ** math.floor(math.log2(heads))
    if head < power:
        return 2.0 ** (-8 * (head + 1) / power)
    return 2.0 ** (-8 * (2 * (head - power) + 1) / (2 * power))


def rope(module: Any, q: Tensor, k: Tensor, i: int, j: int, head: int, options: Options) -> Any:
    """Pairs of channels as complex numbers, rotated by angles that grow with positions (Su et al. 2021)."""
    rotated = round(len(q) * options["fraction"])
    half, score = rotated // 2, q[rotated:] @ k[rotated:]
    across = module.across if options["grid"] else 0
    for pair in range(half):
        first, second = (2 * pair, 2 * pair + 1) if options["interleaved"] else (pair, pair + half)
        angle = (i - j) * frequency(pair, rotated, options["theta"], options["scaling"])
        if across:
            (row, column), (k_row, k_column) = (divmod(max(0, place - 1), across) for place in (i, j))
            rows, columns = row - k_row, column - k_column
            steps, index = (rows, pair) if pair < half // 2 else (columns, pair - half // 2)
            angle = steps * frequency(index, half, options["theta"], options["scaling"])
        product = torch.complex(q[first], q[second]) * torch.complex(k[first], -k[second])
        turned = (product * complex(math.cos(angle), math.sin(angle))).real
        score = score + turned * temperature(options["scaling"]) ** 2  # of the query and of the key
    return score


def frequency(pair: int, width: int, theta: float, scaling: Options) -> Any:
    """Return the angle of a pair of channels from one position to the next, scaled to longer contexts."""
    plain, factor = theta ** (-2 * pair / width), scaling["factor"]
    if scaling["kind"] == "none":
        return plain
    if scaling["kind"] == "linear":  # positions are divided by the factor (Chen et al. 2023)
        return plain / factor
    if scaling["kind"] == "ntk":  # the lowest frequency is divided by the factor, the highest stays
        return plain if width == 2 else plain * factor ** (-2 * pair / (width - 2))
    # The share of the plain frequency: 1 for those that turn `fast` times over the context of training, or more.
    turns = scaling["length"] * plain / (2 * math.pi)
    fast, slow = scaling["fast"] or {"yarn": 32, "llama3": 4}[scaling["kind"]], scaling["slow"] or 1
    if scaling["kind"] == "llama3":  # linear in the number of turns (Grattafiori et al. 2024)
        share = (turns - slow) / (fast - slow)
    else:  # linear in the number of the pair (Peng et al. 2023, with the rounding of the authors' code)
        low = max(0, math.floor(pair_that_turns(fast, width, theta, scaling["length"])))
        high = min(width - 1, math.ceil(pair_that_turns(slow, width, theta, scaling["length"])))
        share = 1 - (pair - low) / (high - low or 0.001)
    share = min(1.0, max(0.0, share))
    return share * plain + (1 - share) * plain / factor


def pair_that_turns(turns: float, width: int, theta: float, length: int) -> Any:
    """Solve length * theta^(-2 pair / width) = 2 pi turns for the pair."""
    return width / 2 * math.log(length / (2 * math.pi * turns), theta)


def temperature(scaling: Options) -> Any:
    """YaRN's factor of queries and keys, 1 + ln(factor) / 10 by default."""
    if scaling["kind"] != "yarn":
        return 1.0
    return float(scaling["temperature"] or 1 + math.log(scaling["factor"]) / 10)


def xpos(module: Any, q: Tensor, k: Tensor, i: int, j: int, head: int, options: Options) -> Any:
    """Rotary pairs that decay with distance (Sun et al. 2022); the paper defines no score of later keys."""
    assert j <= i, "a key ahead of its query would be raised, not decayed"
    half, score = len(q) // 2, q.new_zeros(())
    for pair in range(half):
        angle = (i - j) * options["theta"] ** (-pair / half)
        decay = ((pair / half + options["gamma"]) / (1 + options["gamma"])) ** ((i - j) / options["span"])
        product = torch.complex(q[pair], q[pair + half]) * torch.complex(k[pair], -k[pair + half])
        score = score + (product * complex(math.cos(angle), math.sin(angle))).real * decay
    return score


def t5(module: Any, q: Tensor, k: Tensor, i: int, j: int, head: int, options: Options, layer: Any) -> Any:
    """q · k + b[bucket of i - j] (Raffel et al. 2020); later keys have the second half of the buckets."""
    is_causal = layer.attention.shape.causal
    buckets = options["buckets"] if is_causal else options["buckets"] // 2
    bucket = t5_bucket(max(0, i - j) if is_causal else abs(i - j), buckets, options["distance"])
    return q @ k + module.table.weight[bucket if j <= i or is_causal else buckets + bucket, head]


def t5_bucket(apart: int, buckets: int, limit: int) -> Any:
    """Half of the buckets hold one distance each, the others ranges that grow geometrically up to the limit."""
    exact = buckets // 2
    if apart < exact:
        return apart
    starts = [exact * (limit / exact) ** (step / (buckets - exact)) for step in range(buckets - exact)]
    return exact + sum(apart >= start - 1e-6 for start in starts) - 1


def fire(module: Any, q: Tensor, k: Tensor, i: int, j: int, head: int, options: Options) -> Any:
    """q · k + f(log(c |i - j| + 1) / log(c max(L, i, j) + 1)) (Li et al. 2023), with the sign of i - j."""
    c = options["curvature"] * abs(float(module.curvature))
    threshold = options["threshold"] * abs(float(module.threshold))
    ratio = math.log(c * abs(i - j) + 1) / (math.log(c * max(threshold, i, j) + 1) + 1e-6)
    signed = math.copysign(ratio, i - j)
    slopes, starts = module.inner.unbind(1)
    return q @ k + module.outer.weight[head] @ (slopes * signed + starts).clamp(min=0)


def kerple(module: Any, q: Tensor, k: Tensor, i: int, j: int, head: int, options: Options) -> Any:
    """q · k - a log(1 + b |i - j|), or q · k - a |i - j|^b (Chi et al. 2022)."""
    a, b = (max(0.01, float(values[head])) for values in (module.factor, module.curve))
    return q @ k - a * (math.log(1 + b * abs(i - j)) if options["form"] == "log" else abs(i - j) ** min(b, 2))


def shaw(
    module: Any, q: Tensor, k: Tensor, i: int, j: int, head: int, options: Options, layer: Any
) -> tuple[Tensor, Tensor | None]:
    """q · (k + a[j - i]), and the vector a'[j - i] for values; each layer has its own (Shaw et al. 2018)."""
    vectors, clipped = layer.position, max(-options["distance"], min(options["distance"], j - i))
    index = clipped + options["distance"]
    value = vectors.values.weight[index] if options["values"] else None
    return q @ (k + vectors.keys.weight[index]), value


def cope(
    module: Any,
    q: Tensor,
    k: Tensor,
    i: int,
    j: int,
    head: int,
    options: Options,
    layer: Any,
    keys: Tensor,
    scale: float,
) -> Any:
    """q · k + q · e[p] / scale, with p the sum of the gates of the keys from j to i (Golovneva et al. 2024)."""
    behind = next(index for index, key in enumerate(keys) if torch.equal(key, k))
    count = min(sum(1 / (1 + math.exp(-scale * float(q @ key))) for key in keys[behind:]), options["positions"] - 1)
    scores = layer.position.table.weight @ q
    whole = math.floor(count)
    return q @ k + ((1 - count + whole) * scores[whole] + (count - whole) * scores[math.ceil(count)]) / scale


def transformer_xl(
    module: Any,
    q: Tensor,
    k: Tensor,
    i: int,
    j: int,
    head: int,
    options: Options,
    layer: Any,
    segments: tuple[int, int],
) -> Any:
    """(q + u) · k + (q + v) · W r[i - j] (Dai et al. 2019); XLNet adds (q + w) · e (Yang et al. 2019)."""
    part = layer.position
    biases = part.leanings if options["untied"] else module.leanings
    width, channels = layer.attention.shape.width, slice(head * len(q), (head + 1) * len(q))
    angles = [(i - j) / options["base"] ** (2 * pair / width) for pair in range(math.ceil(width / 2))]
    waves = q.new_tensor([math.sin(angle) for angle in angles] + [math.cos(angle) for angle in angles])
    score = (q + biases.key[head]) @ k + (q + biases.distance[head]) @ (part.project.weight[channels] @ waves)
    if options["segments"]:
        same, other = part.segments[:, head]
        score = score + (q + biases.segment[head]) @ (same if segments[0] == segments[1] else other)
    return score


def disentangled(module: Any, q: Tensor, k: Tensor, i: int, j: int, head: int, options: Options, layer: Any) -> Any:
    """q · k + q · K r[i - j] + k · Q r[i - j] (He et al. 2021, section 3.1)."""
    vector = module.table.weight[distance_index(i - j, options)]
    if options["normed"]:
        centred = vector - vector.mean()
        vector = centred / (centred.square().mean() + 1e-7).sqrt() * module.norm.weight + module.norm.bias
    projections = layer.attention.heads
    query, key = projections.q, projections.k
    if options["separate_projections"]:
        query, key = layer.position.query, layer.position.key
    channels, score = slice(head * len(q), (head + 1) * len(q)), q @ k
    if options["scores"] != "p2c":
        score = score + q @ key(vector)[channels]
    if options["scores"] != "c2p":
        score = score + k @ query(vector)[channels]
    return score


def distance_index(distance: int, options: Options) -> Any:
    """Return the vector of a distance: one for each, or for ranges that grow geometrically beyond half of them."""
    size, half = options["buckets"] or options["distance"], (options["buckets"] or 0) // 2
    if options["buckets"] is not None and abs(distance) > half:
        step, ratio = 0, (options["distance"] - 1) / half
        while half * ratio ** (step / (half - 1)) < abs(distance) - 1e-6:
            step += 1
        distance = int(math.copysign(half + step, distance))
    return max(-size, min(size - 1, distance)) + size


REFERENCES: dict[str, Callable[..., Any]] = {
    "position.alibi": alibi,
    "position.cope": cope,
    "position.disentangled": disentangled,
    "position.fire": fire,
    "position.kerple": kerple,
    "position.learned": learned,
    "position.none": no_position,
    "position.rope": rope,
    "position.shaw": shaw,
    "position.sinusoidal": sinusoidal,
    "position.t5": t5,
    "position.transformer-xl": transformer_xl,
    "position.xpos": xpos,
}
