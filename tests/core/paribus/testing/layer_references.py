"""References of norms, feed-forwards, placements, embeddings and initialisations, from the formulas of their papers."""

import math
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

Options = Mapping[str, Any]
Sublayers = Mapping[str, Callable[[Tensor], Tensor]]
ACTIVATIONS: Mapping[str, Callable[[Tensor], Tensor]] = {
    "relu": lambda y: y.clamp(min=0),
    "gelu": lambda y: y * 0.5 * (1 + torch.erf(y / math.sqrt(2))),
    "gelu-tanh": lambda y: y * 0.5 * (1 + torch.tanh(math.sqrt(2 / math.pi) * (y + 0.044715 * y**3))),
    "silu": lambda y: y / (1 + torch.exp(-y)),
    "sigmoid": lambda y: 1 / (1 + torch.exp(-y)),
    "tanh": torch.tanh,
    "relu2": lambda x: torch.where(x > 0, x * x, 0),
    "leaky-relu2": lambda x: torch.where(x > 0, x * x, x * x / 4),
}


# Norms: one vector. Gains start at 1, biases at 0.
def layer_norm(module: Any, x: Tensor, options: Options, initial: bool) -> Any:
    """Ba et al. 2016, equation 4: the variance is divided by D."""
    centred = x - x.sum() / len(x)
    variance = float((centred**2).sum()) / len(x)
    normalized = centred / math.sqrt(variance + options["eps"])
    if initial:
        return normalized
    return normalized * module.weight + (module.bias if options["bias"] else 0)


def root_mean_square_norm(module: Any, x: Tensor, options: Options, initial: bool) -> Any:
    """Zhang & Sennrich 2019, equation 4."""
    normalized = x / math.sqrt(float((x**2).sum()) / len(x) + options["eps"])
    if initial:
        return normalized
    return normalized * (1 + module.offset if options["zero_centred"] else module.weight)


def gated_norm(module: Any, x: Tensor, options: Options, initial: bool) -> Any:
    """Qwen team 2026: y sigmoid(W2 silu(W1 y)) of a normalised y."""
    y = x / math.sqrt(float((x**2).sum()) / len(x) + options["eps"]) * (1 if initial else module.weight)
    inner = affine(module.down, y, options["rank"], bias=False)
    gate = affine(module.up, ACTIVATIONS["silu"](inner), len(x), bias=False)
    return y * ACTIVATIONS["sigmoid"](gate)


def scale_norm(module: Any, x: Tensor, options: Options, initial: bool) -> Any:
    """Nguyen & Salazar 2019, equation 5: g starts at the root of the width."""
    g = math.sqrt(len(x)) + (0 if initial else float(module.length))
    return g * x / max(math.sqrt(float((x**2).sum())), options["eps"])


def dynamic_tanh(module: Any, x: Tensor, options: Options, initial: bool) -> Any:
    """Zhu et al. 2025, equation 1."""
    if initial:
        return torch.tanh(options["alpha"] * x)
    return module.weight * torch.tanh((options["alpha"] + float(module.alpha)) * x) + module.bias


def dynamic_erf(module: Any, x: Tensor, options: Options, initial: bool) -> Any:
    """Chen et al. 2025: the error function with a shift."""
    if initial:
        return torch.special.erf(options["alpha"] * x)
    inner = (options["alpha"] + float(module.alpha)) * x + float(module.shift)
    return module.weight * torch.special.erf(inner) + module.bias


# Feed-forwards: one token; losses of several tokens.
def affine(linear: Any, x: Tensor, outputs: int, bias: bool) -> Tensor:
    """Map a vector to `outputs` numbers, each a sum of products."""
    numbers = torch.stack([(row * x).sum() for row in linear.weight.view(outputs, len(x))])
    return numbers + linear.bias if bias else numbers


def inner_width(x: Tensor, options: Options) -> int:
    return int(options["inner"] or round(options["expand"] * len(x)))


def alone(module: Any, name: str, options: Options) -> Any:
    """Allen-Zhu 2025, Canon D: the factor of a token without neighbours, 1 plus its weight in the window."""
    if options["kernel"] is None:
        return 1
    convolution = module.convolutions[name]
    return 1 + convolution.weight[:, convolution.left]


def multi_layer_perceptron(module: Any, x: Tensor, options: Options) -> Any:
    """Vaswani et al. 2017, equation 2, with other activations."""
    hidden = affine(module.inner, x, inner_width(x, options), options["bias"]) * alone(module, "inner", options)
    return affine(module.outer, ACTIVATIONS[options["activation"]](hidden), len(x), options["bias"])


def gated_linear_unit(module: Any, x: Tensor, options: Options) -> Any:
    """Shazeer 2020, equations 5 and 6; with scales, Loshchilov et al. 2024, equations 20 and 21."""
    gate, hidden = (
        affine(getattr(module, name), x, inner_width(x, options), options["bias"]) * alone(module, name, options)
        for name in ("gate", "inner")
    )
    if options["scales"]:
        gate, hidden = gate * module.gate_scale, hidden * module.inner_scale
    return affine(module.outer, ACTIVATIONS[options["activation"]](gate) * hidden, len(x), options["bias"])


def routes(module: Any, x: Tensor, options: Options) -> tuple[Tensor, list[float], list[int]]:
    """Return the router's scores of one token, their functions, and its experts, best first."""
    scores = affine(module.router, x, options["experts"], bias=False)
    exponentials = [math.exp(score) for score in scores]
    if options["router"]["name"] == "softmax":
        shares = [value / sum(exponentials) for value in exponentials]
    else:
        shares = [value / (1 + value) for value in exponentials]
    biases = [0.0] * len(shares) if module.bias_steps is None else module.bias_steps.tolist()
    biased = [share + options["router"]["bias_rate"] * bias for share, bias in zip(shares, biases, strict=True)]
    return scores, shares, sorted(range(len(scores)), key=lambda expert: -biased[expert])[: options["top"]]


def mixture_of_experts(module: Any, x: Tensor, options: Options) -> Any:
    """Shazeer et al. 2017, equations 1 and 3; Fedus et al. 2021, equation 2, with a softmax over all experts.

    With sigmoids, a shared expert and biases: DeepSeek-V3 2024, equations 12 to 16.
    """
    _, shares, chosen = routes(module, x, options)
    experts, token = [*module.experts.children()], x.view(1, 1, -1)  # each module once
    total = sum(shares[index] for index in chosen) if options["softmax"] == "chosen" else 1.0
    y = 0.0 if module.shared is None else module.shared(token)[0].flatten()
    for index in chosen:
        y = y + options["router"]["scale"] * shares[index] / total * experts[index](token)[0].flatten()
    return y


def mixture_losses(module: Any, x: Tensor, options: Options) -> Any:
    """Fedus et al. 2021, equation 4, where f is a share of choices; Zoph et al. 2022, equation 5; losses of experts.

    With sigmoids, a probability is a share of the sum of all experts: DeepSeek-V3 2024, equation 19.
    """
    routed = [routes(module, token, options) for token in x]
    experts, loss = [*module.experts.children()], 0.0
    for index, expert in enumerate(experts):
        probability = sum(shares[index] / sum(shares) for _, shares, _ in routed) / len(x)
        own_tokens = [token for token, (_, _, chosen) in zip(x, routed, strict=True) if index in chosen]
        share = len(own_tokens) / (len(x) * options["top"])
        loss += options["balance"] * len(experts) * share * probability
        own_loss = expert(torch.stack(own_tokens).unsqueeze(0))[1] if own_tokens else None
        loss += 0.0 if own_loss is None else float(own_loss)
    own_loss = None if module.shared is None else module.shared(x.unsqueeze(0))[1]
    loss += 0.0 if own_loss is None else float(own_loss)
    return loss + options["z"] * sum(math.log(sum(map(math.exp, scores))) ** 2 for scores, _, _ in routed) / len(x)


# Placements: one sequence.
def normalised_transformer(module: Any, x: Tensor, sublayers: Sublayers, options: Options, shape: Any) -> Any:
    """Loshchilov et al. 2024, equations 10 and 11; sublayers read vectors times the root of the width."""
    width, alpha = x.shape[-1], options["alpha"] or 1 / shape.layers
    x = x / x.square().sum(-1, keepdim=True).sqrt()
    for name, sublayer in sublayers.items():
        y = sublayer(math.sqrt(width) * x)
        y = y / y.square().sum(-1, keepdim=True).sqrt()
        scale = 1 / math.sqrt(width) + module.scales[name]  # starts at 1 / √D
        moved = x + (alpha * math.sqrt(width) * scale).abs() * (y - x)
        x = moved / moved.square().sum(-1, keepdim=True).sqrt()
    return x


def post_norm(module: Any, x: Tensor, sublayers: Sublayers) -> Any:
    """Vaswani et al. 2017, section 3.1."""
    for name, sublayer in sublayers.items():
        x = module.norms[name](x + sublayer(x))
    return x


def pre_norm(module: Any, x: Tensor, sublayers: Sublayers, options: Options, shape: Any) -> Any:
    """Xiong et al. 2020, table 1; Sun et al. 2025, equation 5, with layers from 1; gates of Qiu et al. 2025."""
    for name, sublayer in sublayers.items():
        is_bare = options["bare_first"] and shape.layer == 0 and name == "attention"
        h = x if is_bare else module.norms[name](x) / math.sqrt(shape.layer + 1 if options["by_depth"] else 1)
        y = sublayer(h)
        if options["gate"] and name != "feedforward":
            y = y / (1 + torch.exp(-h @ module.gates[name].weight.T))
        x = x + y
    return x


def sandwich_norm(module: Any, x: Tensor, sublayers: Sublayers, options: Mapping[str, Any]) -> Any:
    """Ding et al. 2021, figure 3b; OLMo Team 2025, equations 1 and 2, without the norms of inputs."""
    for name, sublayer in sublayers.items():
        x = x + module.behind[name](sublayer(module.norms[name](x) if options["inputs"] else x))
    return x


def peripheral_norm(module: Any, x: Tensor, sublayers: Sublayers, shape: Any) -> Any:
    """Kim et al. 2025, equation 3, and its norm of the embeddings."""
    return sandwich_norm(module, module.entry(x) if shape.layer == 0 else x, sublayers, {"inputs": True})


def deep_norm(module: Any, x: Tensor, sublayers: Sublayers, shape: Any) -> Any:
    for name, sublayer in sublayers.items():
        x = module.norms[name](deep_norm_weights(shape)[0] * x + sublayer(x))
    return x


def deep_norm_gain(module: Any, role: str, shape: Any) -> float:
    """Figure 2: `ffn`, `v_proj` and `out_proj` are drawn beta times as large, `q_proj` and `k_proj` are not."""
    return deep_norm_weights(shape)[1] if role in ("inner", "value", "residual") else 1.0


def deep_norm_weights(shape: Any) -> tuple[float, float]:
    """alpha and beta of Wang et al. 2022, figure 2: N is the depth of an encoder, M of a decoder."""
    if shape.cross_layers:  # encoder of an encoder-decoder
        n, m = shape.layers, shape.cross_layers
        return 0.81 * (n**4 * m) ** (1 / 16), 0.87 * (n**4 * m) ** (-1 / 16)
    if "cross" in shape.sublayers:  # its decoder
        m = shape.layers
        return (3 * m) ** (1 / 4), (12 * m) ** (-1 / 4)
    n = shape.layers
    return (2 * n) ** (1 / 4), (8 * n) ** (-1 / 4)


def parallel(module: Any, x: Tensor, sublayers: Sublayers, options: Options) -> Any:
    """Chowdhery et al. 2022, section 2."""
    norms = {name: module.norms["attention" if options["shared_norm"] else name] for name in sublayers}
    return x + sum(sublayer(norms[name](x)) for name, sublayer in sublayers.items())


def re_zero(module: Any, x: Tensor, sublayers: Sublayers, initial: bool) -> Any:
    """Bachlechner et al. 2020, equation 3: one weight of a layer, which starts at 0."""
    for sublayer in sublayers.values():
        x = x + (0.0 if initial else float(module.scale)) * sublayer(x)
    return x


def scaled_residual(module: Any, x: Tensor, sublayers: Sublayers) -> Any:
    """Gehring et al. 2017, sections 3.3 and 3.5: the context is added within the residual connection of a block."""
    h = sublayers["attention"](x)
    if "cross" in sublayers:
        h = (h + sublayers["cross"](h)) / math.sqrt(2)
    x = (x + h) / math.sqrt(2)
    return (x + sublayers["feedforward"](x)) / math.sqrt(2) if "feedforward" in sublayers else x


def layer_scale(module: Any, x: Tensor, sublayers: Sublayers, options: Options, initial: bool) -> Any:
    """Touvron et al. 2021, equation 4: a diagonal matrix of each branch."""
    for name, sublayer in sublayers.items():
        gamma = [options["start"] + (0.0 if initial else float(module.scales[name][i])) for i in range(x.shape[1])]
        x = x + sublayer(module.norms[name](x)) @ torch.diag(x.new_tensor(gamma))
    return x


# Placements with streams, in a stack whose earlier layers all returned x.
def pre_norm_block(module: Any, x: Tensor, sublayers: Sublayers) -> Tensor:
    for name, sublayer in sublayers.items():
        x = x + sublayer(module.norms[name](x))
    return x


def embedding_residual(module: Any, x: Tensor, sublayers: Sublayers, options: Options, initial: bool) -> Any:
    """The scalars of modded-nanogpt: a x + b x0."""
    a, b = (0.0, 0.0) if initial else (float(module.stream), float(module.embedding))
    return pre_norm_block(module, (1 + a) * x + (options["start"] + b) * x, sublayers)


def u_net(module: Any, x: Tensor, sublayers: Sublayers, shape: Any, initial: bool) -> Any:
    """Skips from the first half to the second; with an odd number of layers, the last has none."""
    half = shape.layers // 2
    if half <= shape.layer < 2 * half:
        x = x + (1.0 if initial else float(module.skip)) * x
    return pre_norm_block(module, x, sublayers)


def dense_former(module: Any, x: Tensor, sublayers: Sublayers, shape: Any, initial: bool) -> Any:
    """Pagliardini et al. 2024, equation 4: of equal outputs, the sum of the weights matters."""
    change = 0.0 if initial or not shape.layer else float(module.weights.sum())
    y = pre_norm_block(module, x + change * x, sublayers)
    if initial or shape.layer < shape.layers - 1:
        return y
    weights = module.output_weights
    return weights[:-1].sum() * x + (1 + weights[-1]) * y


def multiway_dense(module: Any, x: Tensor, sublayers: Sublayers, shape: Any, initial: bool) -> Any:
    """Xiao et al. 2025, equations 5 to 8: of equal outputs, the sum of the weights matters."""

    def factors(part: Any, last: Tensor, counts: list[int]) -> Any:
        """Return sums of weights of each average, of outputs that are equal: (T, averages, groups)."""
        unit = last / torch.sqrt((last * last).sum(-1, keepdim=True) / last.shape[-1] + 1e-6)
        inner = torch.stack([ACTIVATIONS["gelu"](part.read.weight @ token) for token in unit])
        weights = (0.0 if initial else 1.0) * (inner @ part.write + part.weights)
        groups = weights.view(len(last), -1, sum(counts)).split(counts, -1)
        return torch.stack([group.sum(-1) for group in groups], -1)

    residual, attended = x, module.norms["attention"](x)
    if shape.layer:
        sums = 1 + factors(module.averages, x, [shape.layer + 1])[:, :, 0]
        queries, keys, values, residual = (sums[:, index, None] * x for index in range(4))
        attended = module.norms["attention"](queries), module.key_norm(keys), module.value_norm(values)
    y = residual
    for name, sublayer in sublayers.items():
        y = y + sublayer(attended if name == "attention" else module.norms[name](y))
    if shape.layer < shape.layers - 1:
        return y
    sums = factors(module.output_average, y, [shape.layer + 1, 1])[:, 0]
    return sums[:, :1] * x + (1 + sums[:, 1:]) * y


def attention_residual(module: Any, x: Tensor, sublayers: Sublayers, options: Options, shape: Any) -> Any:
    """Kimi Team 2026: softmax over depth, in equation 6 over sums of blocks."""
    count, block = shape.layer * len(sublayers), options["block"]
    outputs = [x] * (1 + (count + block - 1) // block)

    def average(attention: Any) -> Tensor:
        lengths = [torch.sqrt((y * y).sum(-1, keepdim=True) / y.shape[-1] + 1e-6) for y in outputs]
        scores = [(y / length * attention.scale) @ attention.query for y, length in zip(outputs, lengths, strict=True)]
        weights = torch.stack(scores).softmax(0)
        return sum((weight[:, None] * y for weight, y in zip(weights, outputs, strict=True)), torch.zeros_like(x))

    for name, sublayer in sublayers.items():
        read = average(module.averages[name]) if count else x
        y = sublayer(module.norms[name](read))
        outputs = [*outputs[:-1], outputs[-1] + y] if count % block else [*outputs, y]
        count += 1
    last = shape.layer == shape.layers - 1
    return average(module.output_average) if last else sum(outputs, torch.zeros_like(x)) / len(outputs)


def hyper_connections(module: Any, x: Tensor, sublayers: Sublayers, options: Options) -> Any:
    """Zhu et al. 2024, equations 4, 5, 10 to 12."""
    if options["mixing"] != "free":
        return manifold_connections(module, x, sublayers, options["streams"])
    count = options["streams"]
    h = [x] * count
    for name, sublayer in sublayers.items():
        part = module.connections[name]
        mixing, output = [], []
        for index in range(count):
            normal = part.norm(h[index]) if options["dynamic"] else None
            dynamic = 0.0 if normal is None else (0.01 + part.scale_mixing) * torch.tanh(normal @ part.read_mixing)
            row = torch.zeros(len(x), 1 + count, dtype=x.dtype) + part.mixing[index] + dynamic
            row[:, 1 + index] += 1
            row[:, 0] += 1 if index == part.first else 0
            mixing.append(row)
            dynamic = 0.0 if normal is None else (0.01 + part.scale_output) * torch.tanh(normal @ part.read_output)
            output.append(torch.zeros(len(x), dtype=x.dtype) + 1 + part.output[index] + dynamic)
        mixed = [sum(mixing[i][:, j, None] * h[i] for i in range(count)) for j in range(1 + count)]
        y = sublayer(module.norms[name](mixed[0]))
        h = [mixed[1 + index] + output[index][:, None] * y for index in range(count)]
    return sum(h)


def manifold_connections(module: Any, x: Tensor, sublayers: Sublayers, count: int) -> Any:
    """Xie et al. 2025, equations 7 to 9, one token after the other."""
    h = x.unsqueeze(1).repeat(1, count, 1)
    for name, sublayer in sublayers.items():
        part, reads, kept, outputs = module.connections[name], [], [], []
        for token in h:
            flat = token.flatten()
            logits = part.read.weight @ (flat / torch.sqrt((flat * flat).sum() / len(flat) + 1e-6))
            scales, biases = 0.01 + part.scales, part.bias
            before = 1 / (1 + torch.exp(-scales[0] * logits[:count] - biases[:count]))
            behind = 1 / (1 + torch.exp(-scales[1] * logits[count : 2 * count] - biases[count : 2 * count]))
            matrix = torch.exp(scales[2] * logits[2 * count :] + biases[2 * count :]).view(count, count)
            for _ in range(20):
                matrix = matrix / matrix.sum(1, keepdim=True)
                matrix = matrix / matrix.sum(0, keepdim=True)
            reads.append(before @ token)
            kept.append(matrix.T @ token)
            outputs.append(2 * behind)
        y = sublayer(module.norms[name](torch.stack(reads)))
        h = torch.stack(kept) + torch.stack(outputs)[:, :, None] * y[:, None]
    return h.sum(1)


def canon(module: Any, x: Tensor, sublayers: Sublayers, options: Options, shape: Any) -> Any:
    """Allen-Zhu 2025, layers A and C: a filter for each channel, over a window that ends at the token if causal."""
    kernel = options["kernel"]
    before = kernel - 1 if shape.causal else kernel // 2
    for name, sublayer in sublayers.items():
        h = module.norms[name](x)
        summed = h.clone()
        for t in range(len(h)):
            for tap in range(kernel):
                if 0 <= t - before + tap < len(h):
                    summed[t] += module.convolutions[name].weight[:, tap] * h[t - before + tap]
        x = x + sublayer(summed)
    return x


# Embeddings: one token, or one image.
def summed_tables(module: Any, token: int, position: Tensor, segment: int, language: int, options: Options) -> Any:
    vector = module.tokens.weight[token]
    if options.get("scale"):
        vector = vector * math.sqrt(len(vector))
    if options["segments"]:
        vector = vector + module.segments.weight[segment]
    if options["languages"]:
        vector = vector + module.languages.weight[language]
    return vector + position


def token_table(
    module: Any, token: int, part: Any, position: Tensor, segment: int, language: int, dropout: Any, options: Options
) -> Any:
    """Devlin et al. 2019, figure 2, with a norm and dropout as in its code; Vaswani et al. 2017, section 3.4."""
    vector = summed_tables(module, token, position, segment, language, options)
    return dropout(part["norm"](vector) if options["normed"] else vector)


def factorised_table(
    module: Any, token: int, part: Any, position: Tensor, segment: int, language: int, dropout: Any, options: Options
) -> Any:
    """Lan et al. 2020, section 3.1: a table of width E; the norm is at this width, as in its code."""
    vector = summed_tables(module, token, position, segment, language, options)
    narrow = dropout(module.norm(vector) if options["normed"] else vector)
    return narrow if part is None else part["project"].weight @ narrow + part["project"].bias


def score(module: Any, h: Tensor, token: int, options: Options) -> Any:
    """Press & Wolf 2017; Raffel et al. 2020 divide by the root of the width, in their code."""
    h = h / math.sqrt(module.tokens.weight.shape[1]) if options.get("scale_outputs") else h
    value = h @ (module.tokens if options["tie"] else module.head).weight[token]
    cap = options.get("soft_cap")  # Gemma Team 2024, section 2
    return value if cap is None else cap * torch.tanh(value / cap)


def patches(
    module: Any, values: Tensor, part: Any, position: Tensor, dropout: Any, options: Options, initial: bool
) -> Any:
    """Dosovitskiy et al. 2021, equation 1; a line of patches after the other, pixels from -1 to 1."""
    size, patch, channels = options["image"], options["patch"], options["channels"]
    image = values.view(size, size, channels)
    vectors = [0 * module.cls if initial else module.cls]
    for top in range(0, size, patch):
        for left in range(0, size, patch):
            square = [
                float(image[top + line, left + column, channel]) * 2 / 255 - 1
                for channel in range(channels)
                for line in range(patch)
                for column in range(patch)
            ]
            vectors.append(module.patches.weight @ module.cls.new_tensor(square) + module.patches.bias)
    return dropout(torch.stack(vectors) + position)


# Initialisations: weights from standard normal draws; `about.gain` is the factor of the placement.
def normal(scheme: Any, unit: Tensor, about: Any, options: Options) -> Any:
    """Devlin et al. 2019, in its code."""
    return unit * options["std"] * about.gain


def gpt2(scheme: Any, unit: Tensor, about: Any, options: Options) -> Any:
    """Radford et al. 2019, section 2.3: weights of residual layers are scaled by 1/√N for N residual layers."""
    std = options["std"] / (math.sqrt(about.branches) if about.role == "residual" else 1)
    return unit * std * about.gain


def by_role(scheme: Any, unit: Tensor, about: Any, options: Options) -> Any:
    """A standard deviation for each role; Radford et al. 2019 divide residual layers by √N for N residual layers."""
    own = options["stds"].get(about.role)
    std = options["std"] if own is None else own
    if options["fan_in"] and about.role != "embedding":
        std = std / math.sqrt(unit.shape[-1])
    if options["deep"] and about.role == "residual":
        std = std / math.sqrt(about.branches)
    return unit * std * about.gain


def mup(scheme: Any, unit: Tensor, about: Any, options: Options) -> Any:
    """Yang et al. 2022, table 3: 1/fan_in for hidden and 1/fan_in² for output weights; Dey et al. 2025, table 1."""
    words = about.path.split(".")
    wide = (about.width or unit.shape[-1]) / options["base_width"]
    deep = about.layers / (options["base_layers"] or about.layers) if "layers" in words else 1
    variance = 1.0
    if about.role == "head":
        variance = 1 / wide if unit.shape[0] == unit.shape[-1] else 1 / wide**2
    elif "layers" in words and about.role not in ("embedding", "vector"):
        variance = 1 / wide
    if about.role == "residual":
        variance /= deep**2
    if about.role == "query" and options["base_head_width"]:
        variance *= options["base_head_width"] / about.head_width
    return unit * about.gain * options["std"] * math.sqrt(variance)


def xavier(scheme: Any, unit: Tensor, about: Any) -> Any:
    """Glorot & Bengio 2010, equation 12; vectors of a table have a norm of about 1."""
    rows, columns = unit.shape if unit.ndim == 2 else (len(unit), len(unit))
    return unit * about.gain * math.sqrt(1 / columns if about.role == "embedding" else 2 / (rows + columns))


def unit_vectors(scheme: Any, unit: Tensor, about: Any) -> Any:
    """Loshchilov et al. 2024, section 2.6: matrices are normalised along the width of the stream."""
    if unit.ndim < 2 or about.role == "vector":
        return unit / math.sqrt(unit.shape[-1]) * about.gain
    axis = -2 if about.role == "residual" else -1
    if about.width not in (0, unit.shape[axis]):
        return unit / math.sqrt(unit.shape[-1]) * about.gain
    return unit / unit.square().sum(axis, keepdim=True).sqrt() * about.gain


def gated(scheme: Any, unit: Tensor, about: Any) -> Any:
    """Gehring et al. 2017, section 3.5, without dropout."""
    variance = (4 if about.role == "inner" else 1) / unit.shape[-1]
    return unit * about.gain * (0.1 if about.role == "embedding" else math.sqrt(variance))


def t5(scheme: Any, unit: Tensor, about: Any, options: Options) -> Any:
    """Raffel et al. 2020: `_init_weights` of their code, with a `factor`."""
    words, std = about.path.split("."), unit.shape[-1] ** -0.5
    if about.role == "embedding" and "position" in words:
        std = about.width**-0.5
    elif about.role == "embedding" or (about.role == "head" and words[0] == "embedding"):
        std = 1.0
    elif about.role == "query":
        std = (unit.shape[-1] * about.head_width) ** -0.5
    return unit * options["factor"] * std * about.gain


def truncated(scheme: Any, unit: Tensor, about: Any, options: Options) -> Any:
    """Quantiles of a normal distribution within ± cutoff; Warner et al. 2024 divide as GPT-2 does."""
    cutoff = torch.tensor(options["cutoff"], dtype=torch.float64)
    low, high = torch.special.ndtr(-cutoff), torch.special.ndtr(cutoff)
    draws = torch.special.ndtri(low + (high - low) * torch.special.ndtr(unit))
    std = options["std"] / (math.sqrt(about.branches) if options["deep"] and about.role == "residual" else 1)
    if about.role == "head" and options["head"] is not None:
        std = options["head"]
    return draws * std * about.gain


def no_gain(module: Any, role: str) -> float:
    return 1.0


# Topologies of stacks: one sequence, with learned positions and multi-head attention.
def attend(module: Any, x: Tensor, source: Tensor, visible: Tensor) -> Any:
    """Vaswani et al. 2017, equation 1, for each head."""
    outputs, width = [], module.shape.head_width
    for head in range(module.shape.heads):
        own = slice(head * width, (head + 1) * width)
        scores = module.heads.q(x)[:, own] @ module.heads.k(source)[:, own].T / math.sqrt(width)
        weights = scores.masked_fill(~visible, -torch.inf).softmax(-1)
        outputs.append(weights @ module.heads.v(source)[:, own])
    return module.heads.o(torch.cat(outputs, -1))


def sublayers_of(layer: Any, visible: Tensor, memory: Tensor | None) -> Sublayers:
    sublayers: dict[str, Any] = {"attention": lambda h: attend(layer.attention, h, h, visible)}
    if memory is not None:
        sublayers["cross"] = lambda h: attend(layer.cross, h, memory, visible.new_ones(len(h), len(memory)))
    if layer.feedforward is not None:
        sublayers["feedforward"] = lambda h: layer.feedforward(h)[0]
    return sublayers


def run_layers(stack: Any, x: Tensor, visible: Tensor, memory: Tensor | None = None) -> Any:
    """Run one layer after the other, without a placement one sublayer after the other, and the final norm."""
    for layer in stack.layers:
        sublayers = sublayers_of(layer, visible, memory)
        if layer.placement is not None:
            x = layer.placement(x, sublayers)
        else:
            for sublayer in sublayers.values():
                x = sublayer(x)
    return stack.norm(x) if hasattr(stack, "norm") else x


def embed(module: Any, tokens: Tensor, positions: Any) -> Any:
    return module.embedding.tokens.weight[tokens] * module.embedding.scale + positions.table.weight[: len(tokens)]


def bidirectional(module: Any, path: str, stream: Any, source: Any) -> Any:
    """Devlin et al. 2019: every token sees all."""
    stack = getattr(module, path)
    everything = torch.ones(len(stream.tokens), len(stream.tokens), dtype=torch.bool)
    return run_layers(stack, embed(module, stream.tokens, stack.position[0]), everything)


def decoder(module: Any, path: str, stream: Any, source: Any) -> Any:
    """Radford et al. 2018: a token sees itself and the tokens before, and any output of an encoder."""
    past = torch.ones(len(stream.tokens), len(stream.tokens), dtype=torch.bool).tril()
    memory = None if source is None else bidirectional(module, "encoder", source, None)
    return run_layers(module.body, embed(module, stream.tokens, module.body.position[0]), past, memory)


def encoder_decoder(module: Any, path: str, stream: Any, source: Any) -> Any:
    return (bidirectional if path == "encoder" else decoder)(module, path, stream, source)


def convolutional_encoder_decoder(module: Any, path: str, stream: Any, source: Any, options: Options) -> Any:
    """Gehring et al. 2017: source and target may have tables of their own."""
    table = module.embedding if options["shared_embedding"] else module.source_embedding

    def encoded(tokens: Tensor) -> Any:
        x = table.tokens.weight[tokens] * table.scale + module.encoder.position[0].table.weight[: len(tokens)]
        return run_layers(module.encoder, x, torch.ones(len(x), len(x), dtype=torch.bool))

    if path == "encoder":
        return encoded(stream.tokens)
    past = torch.ones(len(stream.tokens), len(stream.tokens), dtype=torch.bool).tril()
    x = embed(module, stream.tokens, module.body.position[0])
    return run_layers(module.body, x, past, encoded(source.tokens))


def generator_discriminator(module: Any, path: str, stream: Any, source: Any, options: Options) -> Any:
    """Clark et al. 2020, section 3.1; He et al. 2023, section 3.2: E_D = sg(E_G) + E_Δ, without shared positions."""
    stack, shares = getattr(module, path), options["sharing"] == "whole"
    table = module.embedding.tokens.weight
    if path == "body" and not shares:
        table = table.detach() + module.offsets.tokens_weight
    positions = (module.body if shares else stack).position[0].table.weight
    x = table[stream.tokens] * module.embedding.scale + positions[: len(stream.tokens)]
    return run_layers(stack, x, torch.ones(len(x), len(x), dtype=torch.bool))


def bidirectional_decoder(module: Any, path: str, stream: Any, source: Any) -> Any:
    """Peters et al. 2018, section 3.1: one stack sees the tokens before, the other those after; both see the token."""
    body, x = module.body, embed(module, stream.tokens, module.body.forwards.position[0])
    past = torch.ones(len(x), len(x), dtype=torch.bool).tril()
    return torch.cat([run_layers(body.forwards, x, past), run_layers(body.backwards, x, past.T)], dim=-1)


def two_stream(module: Any, path: str, stream: Any, source: Any) -> Any:
    """Yang et al. 2019, section 2.3: a query sees the content of earlier tokens in the order, not its own."""
    content, queries = embed(module, stream.tokens, module.body.position[0]), stream.query_positions
    x = torch.cat([content, module.query.vector + module.body.position[0].table.weight[queries]])
    visible = torch.zeros(len(x), len(x), dtype=torch.bool)
    for row in range(len(x)):
        for key in range(len(content)):
            token = row if row < len(content) else int(queries[row - len(content)])
            is_earlier = stream.order[key] < stream.order[token]
            visible[row, key] = is_earlier or (row < len(content) and stream.order[key] == stream.order[token])
    return run_layers(module.body, x, visible)


REFERENCES: Mapping[str, Any] = {
    "norm.dyt": dynamic_tanh,
    "norm.derf": dynamic_erf,
    "norm.gated": gated_norm,
    "norm.layernorm": layer_norm,
    "norm.none": lambda module, x: x,
    "norm.rmsnorm": root_mean_square_norm,
    "norm.scalenorm": scale_norm,
    "feedforward.glu": gated_linear_unit,
    "feedforward.mlp": multi_layer_perceptron,
    "feedforward.moe": {"forward": mixture_of_experts, "auxiliary": mixture_losses},
    "placement.attention-residual": {"forward": attention_residual, "gain": no_gain},
    "placement.canon": {"forward": canon, "gain": no_gain},
    "placement.denseformer": {"forward": dense_former, "gain": no_gain},
    "placement.hyper": {"forward": hyper_connections, "gain": no_gain},
    "placement.mudd": {"forward": multiway_dense, "gain": no_gain},
    "placement.u-net": {"forward": u_net, "gain": no_gain},
    "placement.x0": {"forward": embedding_residual, "gain": no_gain},
    "placement.deepnorm": {"forward": deep_norm, "gain": deep_norm_gain},
    "placement.layerscale": {"forward": layer_scale, "gain": no_gain},
    "placement.ngpt": {"forward": normalised_transformer, "gain": no_gain},
    "placement.parallel": {"forward": parallel, "gain": no_gain},
    "placement.peri": {"forward": peripheral_norm, "gain": no_gain},
    "placement.post": {"forward": post_norm, "gain": no_gain},
    "placement.pre": {"forward": pre_norm, "gain": no_gain},
    "placement.rezero": {"forward": re_zero, "gain": no_gain},
    "placement.scaled-residual": {"forward": scaled_residual, "gain": no_gain},
    "placement.sandwich": {"forward": sandwich_norm, "gain": no_gain},
    "embedding.factorised": {"forward": factorised_table, "unembed": score},
    "embedding.patches": patches,
    "embedding.tokens": {"forward": token_table, "unembed": score},
    "initialisation.gated": gated,
    "initialisation.gpt2": gpt2,
    "initialisation.normal": normal,
    "initialisation.by-role": by_role,
    "initialisation.mup": mup,
    "initialisation.t5": t5,
    "initialisation.truncated": truncated,
    "initialisation.unit": unit_vectors,
    "initialisation.xavier": xavier,
    "topology.bidirectional-decoder": bidirectional_decoder,
    "topology.convolutional-encoder-decoder": convolutional_encoder_decoder,
    "topology.decoder": decoder,
    "topology.encoder": bidirectional,
    "topology.encoder-decoder": encoder_decoder,
    "topology.generator-discriminator": generator_discriminator,
    "topology.plain-decoder": decoder,
    "topology.plain-encoder": bidirectional,
    "topology.two-stream": two_stream,
}
