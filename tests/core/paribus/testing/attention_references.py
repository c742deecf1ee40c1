"""References of the attentions that project values: one slow function for each mechanism, written from its paper.

A reference computes the output of one sequence, (T, D): `x` gives the queries, `source` the keys and values, and
`visible` (T, S) is True for the keys of a query's document that are not in the future. `positions` are those of the
queries and the keys, `first` is the first layer with its source. Softmax attentions return their weights, too.
Projections and gains are read from the component by name.
"""

import functools
import itertools
import math
import random
from collections.abc import Callable, Mapping
from functools import wraps
from typing import Any

import torch
from torch import Tensor

from paribus import key32

Options = Mapping[str, Any]
Positions = tuple[Tensor, Tensor]
Inputs = tuple[Tensor, Tensor]
First = tuple[Any, Tensor]
Score = Callable[[Any, int, Tensor, Tensor], Tensor]
Weigh = Callable[[Any, int, Tensor, Tensor, Options], Tensor]
Output = tuple[Tensor, Tensor]
BIASES = {"q": ("qkv_bias",), "k": ("qkv_bias", "key_bias"), "v": ("qkv_bias",), "o": ("output_bias",)}
"""Options that a bias of each projection needs."""


# ---- parts of softmax attention


def projected_heads(module: Any, x: Tensor, source: Tensor, options: Options, first: First) -> list[list[Tensor]]:
    """Return query, key and value of each query head; each key/value head serves a group of query heads."""
    q, k, v = (project(module, name, y, options) for name, y in (("q", x), ("k", source), ("v", source)))
    scores, heads, width = options.get("scores", {}), module.shape.heads, module.shape.head_width
    if scores.get("value_residual"):
        v = mixed_values(module, v, project(first[0], "v", first[1], options))
    kv_heads = k.shape[-1] // width
    queries, keys, values = q.chunk(heads, -1), k.chunk(kv_heads, -1), v.chunk(kv_heads, -1)
    if scores.get("qk_norm"):
        queries = tuple(root_mean_square_norm(query, module.attend.q_norm.weight) for query in queries)
        keys = tuple(root_mean_square_norm(key, module.attend.k_norm.weight) for key in keys)
    shared_by = heads // kv_heads
    return [[queries[head], keys[head // shared_by], values[head // shared_by]] for head in range(heads)]


def project(module: Any, name: str, x: Tensor, options: Options) -> Tensor:
    """Project tokens, with the bias that the options declare; without the projection, they stay as they are."""
    projection = getattr(module.heads, name, None)
    if projection is None:
        return x
    has_bias = options["scores"]["bias"] if "scores" in options else options["bias"]
    has_bias = has_bias and all(options.get(option, True) for option in BIASES[name])
    projected: Tensor = x @ projection.weight.T
    return projected + projection.bias if has_bias else projected


def mixed_values(module: Any, v: Tensor, first: Tensor) -> Any:
    """ResFormer (Zhou et al. 2024): values of this layer and of the first one, half and half at the start."""
    share = module.attend.own_share
    return (0.5 + share) * v + (0.5 - share) * first


def root_mean_square_norm(x: Tensor, gain: Tensor, eps: float = 1e-6) -> Tensor:
    return x / (x.square().mean(-1, keepdim=True) + eps).sqrt() * gain


def dot_product(module: Any, head: int, q: Tensor, k: Tensor) -> Tensor:
    return q @ k.T


def scale(options: Options, width: int) -> float:
    return 1 / math.sqrt(width) if options["scores"]["scaled"] else 1.0


def forgetting(reference: Callable[..., Any]) -> Callable[..., Any]:
    """Return the reference with forget gates, whose biases of each head `capped` adds (Lin et al. 2025)."""

    @functools.wraps(reference)
    def forgets(module: Any, x: Tensor, source: Tensor, visible: Tensor, **others: Any) -> Any:
        if "scores" in others["options"] and others["options"]["scores"]["forget"]:
            score = module.attend.forget.score
            logs = -torch.log(1 + torch.exp(-(source @ score.weight.T + score.bias)))  # (S, H)
            biases = torch.zeros(logs.shape[1], *visible.shape, dtype=x.dtype)
            for i, j in itertools.product(range(len(x)), range(len(source))):
                between = [t for t in range(min(i, j) + 1, max(i, j) + 1) if visible[i, t]]
                biases[:, i, j] = logs[between].sum(0)
            others["options"] = {**others["options"], "forgotten": biases}
        return reference(module, x, source, visible, **others)

    return forgets


def capped(scores: Tensor, options: Options, head: int) -> Tensor:
    scores = scores + options["forgotten"][head] if "forgotten" in options else scores
    cap = options["scores"]["soft_cap"]
    return scores if cap is None else cap * torch.tanh(scores / cap)


def softmax(module: Any, head: int, scores: Tensor, visible: Tensor, options: Options) -> Tensor:
    """Weights of one head, (T, S): a softmax over the visible keys and the sink, which has a share and no value."""
    scores = capped(scores, options, head).masked_fill(~visible, -math.inf)
    if options["scores"]["sinks"]:
        scores = torch.cat([scores, module.attend.sinks[head].expand(len(scores), 1)], -1)
    weights = scores.softmax(-1)[:, : visible.shape[1]]
    return weights.masked_fill(~visible, 0.0)  # 0/0 for a query that sees no key


def finished(module: Any, outputs: list[Tensor], values: list[Tensor], x: Tensor, options: Options) -> list[Tensor]:
    """Outputs of heads less their part along the own value, and gated; a query that is no key keeps its output."""
    return gated(module, exclusive(outputs, values, options), x, options)


def exclusive(outputs: list[Tensor], values: list[Tensor], options: Options) -> list[Tensor]:
    """y - (y · v) / (v · v) v, for the own value v of a position."""
    if not options["scores"]["exclusive"]:
        return outputs
    rows = [
        [y - (y @ v) / (v @ v) * v for y, v in zip(output, value, strict=False)] + list(output[len(value) :])
        for output, value in zip(outputs, values, strict=True)
    ]
    return [torch.stack(row) for row in rows]


def gated(module: Any, outputs: list[Tensor], x: Tensor, options: Options) -> list[Tensor]:
    """Gates of the heads, or of their channels, from the layer's input (Qiu et al. 2025)."""
    if options["scores"]["gate"] is None:
        return outputs
    channels = torch.cat(outputs, -1)
    gates = 1 / (1 + torch.exp(-x @ module.attend.gate.weight.T))
    gates = gates.repeat_interleave(channels.shape[-1] // gates.shape[-1], -1)
    return list((channels * gates).chunk(len(outputs), -1))


def merged_heads(module: Any, outputs: list[Tensor], options: Options) -> Tensor:
    """Project the outputs of all heads. Those of a raw memory are its channels, and are not projected."""
    if not module.shape.raw_memory:
        return project(module, "o", torch.cat(outputs, -1), options)
    shared_by = module.shape.heads // getattr(module.heads, "kv_heads", module.shape.heads)
    groups = [outputs[start : start + shared_by] for start in range(0, len(outputs), shared_by)]
    return torch.cat([torch.stack(group).mean(0) for group in groups], -1)


def restrict(visible: Tensor, positions: Positions, rule: Callable[[int, int], bool]) -> Tensor:
    """Return the pairs of a visible key at j and a query at i for which `rule(i, j)` is True."""
    holds = [[rule(i, j) for j in positions[1].tolist()] for i in positions[0].tolist()]
    return visible & torch.tensor(holds)


# ---- softmax attention over all visible keys


def attention(
    module: Any,
    x: Tensor,
    source: Tensor,
    visible: Tensor,
    options: Options,
    first: First,
    score: Score = dot_product,
    weigh: Weigh = softmax,
) -> Output:
    """softmax(q k / sqrt(K)) v in each head (Vaswani et al. 2017); groups of heads may share k and v."""
    outputs, values, weights = [], [], []
    for head, (q, k, v) in enumerate(projected_heads(module, x, source, options, first)):
        scores = score(module, head, q, k) * scale(options, module.shape.head_width)
        weights.append(weigh(module, head, scores, visible, options))
        outputs.append(weights[-1] @ v)
        values.append(v)
    return merged_heads(module, finished(module, outputs, values, x, options), options), torch.stack(weights)


def additive(module: Any, x: Tensor, source: Tensor, visible: Tensor, options: Options, first: First) -> Output:
    """v · tanh(W q + U k) (Bahdanau et al. 2015)."""

    def score(module: Any, head: int, q: Tensor, k: Tensor) -> Any:
        return torch.tanh(q.unsqueeze(1) + k) @ module.outer[head]

    return attention(module, x, source, visible, options, first, score)


def perceptron(module: Any, x: Tensor, source: Tensor, visible: Tensor, options: Options, first: First) -> Output:
    """v · tanh(W [q; k] + b), "concat" (Luong et al. 2015)."""

    def score(module: Any, head: int, q: Tensor, k: Tensor) -> Any:
        hidden = options["hidden"] or module.shape.head_width
        units = slice(head * hidden, (head + 1) * hidden)
        pairs = torch.cat([q.unsqueeze(1).expand(-1, len(k), -1), k.expand(len(q), -1, -1)], -1)
        bias = module.inner.bias[units] if options["scores"]["bias"] else 0.0
        return torch.tanh(pairs @ module.inner.weight[units].T + bias) @ module.outer[head]

    return attention(module, x, source, visible, options, first, score)


def multi_step(
    module: Any, x: Tensor, source: Tensor, visible: Tensor, options: Options, first: First, inputs: Inputs
) -> Output:
    """Queries W h + b + g, keys z and values z + e, times the root of the number of keys (Gehring et al. 2017)."""
    root, scores, outputs, weights = math.sqrt(0.5), options["scores"], [], []
    queries = root * (x @ module.q.weight.T + (module.q.bias if scores["bias"] else 0) + inputs[0])
    values = root * (source + inputs[1])
    if scores["value_residual"]:
        values = mixed_values(module, values, root * (first[1] + inputs[1]))
    width = module.shape.head_width
    for head in range(module.shape.heads):
        q, k, v = (vectors[:, head * width : (head + 1) * width] for vectors in (queries, source, values))
        if scores["qk_norm"]:
            q, k = (
                root_mean_square_norm(y, norm.weight)
                for y, norm in ((q, module.attend.q_norm), (k, module.attend.k_norm))
            )
        weights.append(softmax(module, head, q @ k.T * scale(options, width), visible, options))
        outputs.append(weights[-1] @ v * visible.sum(1, keepdim=True, dtype=x.dtype).sqrt())
    outputs = finished(module, outputs, list(values.split(width, -1)), x, options)
    return torch.cat(outputs, -1), torch.stack(weights)


def talking_heads(module: Any, x: Tensor, source: Tensor, visible: Tensor, options: Options, first: First) -> Output:
    """Heads are mixed before and after the softmax (Shazeer et al. 2020)."""
    heads = projected_heads(module, x, source, options, first)
    scores = [q @ k.T * scale(options, module.shape.head_width) for q, k, _ in heads]
    mixed = [sum(module.before[head, g] * scores[g] for g in range(len(heads))) for head in range(len(heads))]
    weights = [softmax(module, head, scores, visible, options) for head, scores in enumerate(mixed)]
    after = [sum(module.after[head, g] * weights[g] for g in range(len(heads))) for head in range(len(heads))]
    outputs = [after[head] @ v for head, (_, _, v) in enumerate(heads)]
    outputs = finished(module, outputs, [v for _, _, v in heads], x, options)
    return merged_heads(module, outputs, options), torch.stack(after)


def differential(module: Any, x: Tensor, source: Tensor, visible: Tensor, options: Options, first: First) -> Output:
    """(softmax(q1 k1) - lambda softmax(q2 k2)) [v1; v2], normalised in each pair of heads (Ye et al. 2024)."""
    heads = projected_heads(module, x, source, options, first)
    initial = 0.8 - 0.6 * math.exp(-0.3 * module.shape.layer)  # the paper counts layers from 1
    first_power, second_power = (math.exp(q @ k) for q, k in zip(module.lambda_q, module.lambda_k, strict=True))
    factor, pairs = first_power - second_power + initial, len(heads) // 2
    weights, outputs = [], []
    for pair in range(pairs):
        both = [
            softmax(module, head, q @ k.T * scale(options, module.shape.head_width), visible, options)
            for head, (q, k, _) in ((head, heads[head]) for head in (pair, pair + pairs))
        ]
        weights.append(both[0] - factor * both[1])
        values = torch.cat([heads[pair][2], heads[pair + pairs][2]], -1)
        (mixed,) = exclusive([weights[-1] @ values], [values], options)
        outputs.append((1 - initial) * root_mean_square_norm(mixed, module.norm.weight, eps=1e-5))
    return merged_heads(module, gated(module, outputs, x, options), options), torch.stack(weights)


def multi_head_latent(
    module: Any, x: Tensor, source: Tensor, visible: Tensor, options: Options, first: First
) -> Output:
    """Keys and values from one latent a token, with shared channels for rotation (DeepSeek-AI 2024)."""

    def latents(module: Any, source: Tensor) -> Tensor:
        return root_mean_square_norm(module.heads.kv_down(source), module.heads.kv_norm.weight)

    heads, width = module.heads, module.shape.head_width
    x_latent = x if options["q_rank"] is None else root_mean_square_norm(heads.q_down(x), heads.q_norm.weight)
    queries, keys = heads.q(x_latent).chunk(module.shape.heads, -1), heads.k(latents(module, source)).split(width, -1)
    v, turned_key = heads.v(latents(module, source)), heads.turned(source)
    if options["scores"]["value_residual"]:
        v = mixed_values(module, v, first[0].heads.v(latents(*first)))
    outputs, weights = [], []
    for head, (query, key, value) in enumerate(zip(queries, keys, v.split(width, -1), strict=True)):
        parts = {"q": query[:, :width], "k": key, "turned_q": query[:, width:], "turned_k": turned_key}
        if options["scores"]["qk_norm"]:
            parts = {name: root_mean_square_norm(part, module.norms[name].weight) for name, part in parts.items()}
        scores = parts["q"] @ parts["k"].T + parts["turned_q"] @ parts["turned_k"].T
        scores = scores * scale(options, query.shape[-1])
        weights.append(softmax(module, head, scores, visible, options))
        outputs.append(weights[-1] @ value)
    outputs = finished(module, outputs, list(v.split(width, -1)), x, options)
    return heads.o(torch.cat(outputs, -1)), torch.stack(weights)


# ---- another function than the softmax


def sigmoid(module: Any, x: Tensor, source: Tensor, visible: Tensor, options: Options, first: First) -> Output:
    """1 / (1 + n exp(-score)), the sigmoid of score - log n (Ramapuram et al. 2024), for n visible keys."""

    def weigh(module: Any, head: int, scores: Tensor, visible: Tensor, options: Options) -> Tensor:
        odds = visible.sum(1, keepdim=True) * torch.exp(-capped(scores, options, head))
        return (1 / (1 + odds)).masked_fill(~visible, 0.0)

    return attention(module, x, source, visible, options, first, weigh=weigh)


def rectified_linear_unit(
    module: Any, x: Tensor, source: Tensor, visible: Tensor, options: Options, first: First
) -> Output:
    """max(score, 0) / n (Wortsman et al. 2023), for n visible keys."""

    def weigh(module: Any, head: int, scores: Tensor, visible: Tensor, options: Options) -> Tensor:
        positive = capped(scores, options, head).clamp(min=0).masked_fill(~visible, 0.0)
        return positive / visible.sum(1, keepdim=True).clamp(min=1)

    return attention(module, x, source, visible, options, first, weigh=weigh)


def softpick(module: Any, x: Tensor, source: Tensor, visible: Tensor, options: Options, first: First) -> Output:
    """max(e^s - 1, 0) / (sum |e^s - 1| + epsilon) (Zuhri et al. 2025), with a factor e^-max(s) above and below."""

    def weigh(module: Any, head: int, scores: Tensor, visible: Tensor, options: Options) -> Tensor:
        weights = torch.zeros_like(scores)
        for row, (query_scores, keys) in enumerate(zip(capped(scores, options, head), visible, strict=True)):
            sinks = [module.attend.sinks[head]] if options["scores"]["sinks"] else []
            powers = torch.stack([*query_scores[keys], *sinks]).exp() if keys.any() else torch.ones(1)
            total = (powers - 1).abs().sum() + 1e-6 * powers.max().clamp(min=1)
            weights[row] = ((torch.exp(query_scores) - 1).clamp(min=0) / total).masked_fill(~keys, 0.0)
        return weights

    return attention(module, x, source, visible, options, first, weigh=weigh)


def sparsemax(module: Any, x: Tensor, source: Tensor, visible: Tensor, options: Options, first: First) -> Output:
    """max(score - tau, 0), which sum to 1 (Martins & Astudillo 2016): keys below tau are dropped until none is."""

    def weigh(module: Any, head: int, scores: Tensor, visible: Tensor, options: Options) -> Tensor:
        weights = torch.zeros_like(scores)
        for row, (query_scores, keys) in enumerate(zip(capped(scores, options, head), visible, strict=True)):
            sinks = [module.attend.sinks[head]] if options["scores"]["sinks"] else []
            support = [*query_scores[keys], *sinks] if keys.any() else []
            while support:
                tau = (sum(support) - 1) / len(support)
                if all(score > tau for score in support):
                    weights[row] = (query_scores - tau).clamp(min=0).masked_fill(~keys, 0.0)
                    break
                support = [score for score in support if score > tau]
        return weights

    return attention(module, x, source, visible, options, first, weigh=weigh)


def stick_breaking(module: Any, x: Tensor, source: Tensor, visible: Tensor, options: Options, first: First) -> Output:
    """Keys before the query take sigmoid(score) of what is left, from the nearest to the furthest (Tan et al. 2024)."""

    def weigh(module: Any, head: int, scores: Tensor, visible: Tensor, options: Options) -> Tensor:
        shares = (1 / (1 + torch.exp(-capped(scores, options, head)))) * (visible & torch.ones_like(visible).tril(-1))
        left, columns = torch.ones_like(shares[:, 0]), list[Tensor]()
        for share in reversed(shares.unbind(1)):
            columns.insert(0, share * left)
            left = left * (1 - share)
        weights = torch.stack(columns, 1)
        own = torch.eye(*scores.shape, dtype=scores.dtype) * visible
        return weights + left.unsqueeze(1) * own if options["remainder"] else weights

    return attention(module, x, source, visible, options, first, weigh=weigh)


# ---- softmax attention over some of the visible keys


def restricted(
    module: Any, x: Tensor, source: Tensor, visible: Tensor, options: Options, first: First, positions: Positions
) -> Output:
    """A window: |i - j| < window (Vaswani et al. 2017, section 4)."""
    seen = restrict(visible, positions, lambda i, j: abs(i - j) < options["window"])
    return attention(module, x, source, seen, options, first)


def dilated(
    module: Any, x: Tensor, source: Tensor, visible: Tensor, options: Options, first: First, positions: Positions
) -> Output:
    """i ± n dilation for n < window, and global tokens (Beltagy et al. 2020, section 3.1)."""

    def rule(i: int, j: int) -> Any:
        steps, rest = divmod(abs(i - j), options["dilation"])
        return min(i, j) < options["global_tokens"] or (rest == 0 and steps < options["window"])

    return attention(module, x, source, restrict(visible, positions, rule), options, first)


def block_sparse(
    module: Any, x: Tensor, source: Tensor, visible: Tensor, options: Options, first: First, positions: Positions
) -> Output:
    """Neighbouring, global and random blocks of tokens (Zaheer et al. 2020)."""
    size, drawn = options["block_size"], random_blocks(module.shape, options)

    def rule(i: int, j: int) -> Any:
        query, key = i // size, j // size
        is_global = min(query, key) < options["global_blocks"]
        return is_global or abs(query - key) <= options["neighbours"] or key in drawn[query]

    return attention(module, x, source, restrict(visible, positions, rule), options, first)


def random_blocks(shape: Any, options: Options) -> list[set[int]]:
    """Draw the random blocks of a layer one by one, without replacement, from those that a block does not see."""
    count = math.ceil(shape.length / options["block_size"])
    rng = random.Random(
        key32(options["seed"], "blocks", "shared" if shape.layer is None else shape.layer, shape.length)
    )
    drawn: list[set[int]] = []
    for block in range(count):
        others = [
            other
            for other in range(options["global_blocks"], count)
            if abs(other - block) > options["neighbours"] and (other < block or not shape.causal)
        ]
        if block < options["global_blocks"]:  # it sees all tokens
            others = []
        drawn.append(set())
        while others and len(drawn[-1]) < options["random_blocks"]:
            drawn[-1].add(others.pop(int(rng.random() * len(others))))
    return drawn


def mixture_of_block_attention(
    module: Any, x: Tensor, source: Tensor, visible: Tensor, options: Options, first: First, positions: Positions
) -> Output:
    """The own block, and the blocks whose mean key is most similar to the query (Lu et al. 2025, section 2.2)."""
    projected = projected_heads(module, x, source, options, first)
    documents = visible.int().argmax(1)  # first token of each token's document
    own = list(zip(documents.tolist(), (positions[1] // options["block_size"]).tolist(), strict=True))
    blocks: dict[tuple[int, int], list[int]] = {}
    for j, block in enumerate(own):
        if visible[j].any():  # no padding
            blocks.setdefault(block, []).append(j)
    is_seen = {block: visible[:, keys].all(1).tolist() for block, keys in blocks.items()}

    def weigh(module: Any, head: int, scores: Tensor, visible: Tensor, options: Options) -> Tensor:
        q, k, _ = projected[head]
        read, gates = torch.zeros_like(visible), {block: q @ k[keys].mean(0) for block, keys in blocks.items()}
        for i, block in enumerate(own):
            others = sorted((-float(gates[n][i]), n) for n in blocks if n != block and is_seen[n][i])
            chosen = [block, *(n for _, n in others[: options["top"]])]
            read[i, [j for n in chosen for j in blocks.get(n, [])]] = True
        return softmax(module, head, scores, visible & read, options)

    return attention(module, x, source, visible, options, first, weigh=weigh)


def local_monotonic(
    module: Any, x: Tensor, source: Tensor, visible: Tensor, options: Options, first: First, positions: Positions
) -> Output:
    """The keys from t - D to t + D (Luong et al. 2015, section 3.2)."""
    seen = restrict(visible, positions, lambda i, j: abs(i - j) <= options["reach"])
    return attention(module, x, source, seen, options, first)


def local_predictive(
    module: Any, x: Tensor, source: Tensor, visible: Tensor, options: Options, first: First, positions: Positions
) -> Output:
    """Keys around a predicted centre p = S sigmoid(v · tanh(W x)), with Gaussian factors (Luong et al. 2015)."""
    centres = visible.sum(1) * module.outer(torch.tanh(module.place(x))).squeeze(-1).sigmoid()
    distances, reach = positions[1] - centres.unsqueeze(1), options["reach"]
    factors = torch.exp(-(distances**2) / (2 * (reach / 2) ** 2))
    outputs, values, weights = [], [], []
    for head, (q, k, v) in enumerate(projected_heads(module, x, source, options, first)):
        scores = q @ k.T * scale(options, module.shape.head_width)
        shares = softmax(module, head, scores, visible & (distances.abs() <= reach), options)
        weights.append(shares * factors)
        outputs.append(weights[-1] @ v)
        values.append(v)
    return merged_heads(module, finished(module, outputs, values, x, options), options), torch.stack(weights)


# ---- weights without a softmax of scores


def linear(module: Any, x: Tensor, source: Tensor, visible: Tensor, options: Options, first: First) -> Tensor:
    """sum_j phi(q) · phi(k_j) v_j / sum_j phi(q) · phi(k_j) (Katharopoulos et al. 2020)."""

    def phi(y: Tensor) -> Tensor:
        return y.clamp(min=0) if options["features"] == "relu" else torch.where(y > 0, y + 1, y.exp())

    outputs = []
    for q, k, v in projected_heads(module, x, source, options, first):
        weights = phi(q) @ phi(k).T * visible
        sums = weights.sum(1, keepdim=True)
        outputs.append(torch.where(sums > 0, weights / sums, 0.0) @ v)
    return merged_heads(module, outputs, options)


def linformer(module: Any, x: Tensor, source: Tensor, visible: Tensor, options: Options, first: First) -> Tensor:
    """softmax(q (E k)' / sqrt(K)) (F v): keys and values projected along the sequence (Wang et al. 2020)."""
    tokens = visible.any(0)  # all but padding
    e, f = (projection.weight[:, : int(tokens.sum())] for projection in (module.keys, module.values or module.keys))
    outputs = []
    for q, k, v in projected_heads(module, x, source, options, first):
        scores = q @ (e @ k[tokens]).T / math.sqrt(module.shape.head_width)
        outputs.append(scores.softmax(-1) @ (f @ v[tokens]))
    return merged_heads(module, outputs, options)


def uniform(module: Any, x: Tensor, source: Tensor, visible: Tensor, options: Options) -> Tensor:
    """The mean of the visible values: all scores are 0."""
    values = project(module, "v", source, options)
    means = [values[keys].sum(0) / max(1, int(keys.sum())) for keys in visible]
    return project(module, "o", torch.stack(means), options)


def fixed(module: Any, x: Tensor, source: Tensor, visible: Tensor, options: Options) -> Tensor:
    """The value of the last visible token (Sutskever et al. 2014); 0 if there is none."""
    values = project(module, "v", source, options)
    last = [values[keys][-1] if keys.any() else torch.zeros_like(values[0]) for keys in visible]
    return project(module, "o", torch.stack(last), options)


def same_position(module: Any, x: Tensor, source: Tensor, visible: Tensor, positions: Positions) -> Tensor:
    """A map of a query and the visible token at its position, or 0 if there is none (Kalchbrenner et al. 2016)."""
    rows = []
    for i, keys in enumerate(visible):
        found = [source[j] for j in range(len(source)) if keys[j] and positions[0][i] == positions[1][j]]
        rows.append(module.outer(torch.cat([x[i], found[0] if found else torch.zeros_like(source[0])])))
    return torch.stack(rows)


def _without_new_inputs(reference: Callable[..., Any]) -> Callable[..., Any]:
    """Return the reference, for no short convolution and no table of values: `test_attend` has their formulas.

    `test_shared_keys` has that of layers which read the keys and values of another one.
    """

    @wraps(reference)
    def call(*arguments: Any, **named: Any) -> Any:
        scores = named["options"].get("scores", {}) if "options" in named else {}
        shares = named.get("options", {}).get("share_kv") is not None
        if scores.get("kernel") is not None or scores.get("value_embedding") or shares:
            return NotImplemented
        return reference(*arguments, **named)

    return call


_REFERENCES: dict[str, Callable[..., Any]] = {
    "attention.additive": forgetting(additive),
    "attention.bilinear": forgetting(attention),
    "attention.block-sparse": forgetting(block_sparse),
    "attention.differential": forgetting(differential),
    "attention.dilated": forgetting(dilated),
    "attention.dot": forgetting(attention),
    "attention.fixed": fixed,
    "attention.gqa": forgetting(attention),
    "attention.linear": linear,
    "attention.linformer": linformer,
    "attention.local-m": forgetting(local_monotonic),
    "attention.local-p": forgetting(local_predictive),
    "attention.mha": forgetting(attention),
    "attention.mla": forgetting(multi_head_latent),
    "attention.mlp-score": forgetting(perceptron),
    "attention.moba": forgetting(mixture_of_block_attention),
    "attention.mqa": forgetting(attention),
    "attention.multi-step": forgetting(multi_step),
    "attention.same-position": same_position,
    "attention.relu": forgetting(rectified_linear_unit),
    "attention.restricted": forgetting(restricted),
    "attention.sigmoid": forgetting(sigmoid),
    "attention.softpick": forgetting(softpick),
    "attention.sparsemax": forgetting(sparsemax),
    "attention.stick-breaking": forgetting(stick_breaking),
    "attention.talking-heads": forgetting(talking_heads),
    "attention.uniform": uniform,
}

REFERENCES = {name: _without_new_inputs(reference) for name, reference in _REFERENCES.items()}
