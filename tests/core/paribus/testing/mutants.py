"""Seeded faults: typical mistakes in components and in shared parts, as changes of their source.

A mutant names a source, a piece of its text, the replacement, and the check that must fail. The source is an installed
component, the attention in `by_hand.py`, or a function (`module:function`), tested in a component that uses it. Survivors
pass all checks; each gives the reason.
"""

# ruff: noqa: E501  # pieces of source are not wrapped

from __future__ import annotations

from typing import Final, NamedTuple


class Mutant(NamedTuple):
    """Seeded fault, with the check that must fail; empty for a survivor."""

    fault: str
    source: str
    original: str
    replacement: str
    check: str = ""
    component: str = ""  # component to test, if the fault is in a shared function
    reason: str = ""  # why no check fails, and which test finds the fault


REFERENCE: Final = "by_hand"
MASK: Final = "        scores = scores.masked_fill(~visible, torch.finfo(scores.dtype).min)\n"
ATTEND: Final = "return self.heads.merge(self.attend(self.heads, x, ctx))"
START: Final = "\n\n    def start("
PREPARE: Final = "\n\n    def prepare(self, keyed):\n        "
ROTATED_VALUES: Final = """attend = self.attend
        rotated = type("Rotated", (), {
            "queries": self.heads.queries, "keys": self.heads.keys, "project": self.heads.project,
            "values": staticmethod(lambda tokens: attend.rotate(self.heads.values(tokens), ctx, "key")),
        })
        return self.heads.merge(attend(rotated, x, ctx))"""

ATTENTION: Final = (
    Mutant(
        "the causal mask is shifted by one token",
        REFERENCE,
        "<= query.uns",
        "<= 1 + query.uns",
        "no access to future tokens",
    ),
    Mutant(
        "the causal mask is missing", REFERENCE, "if self.causal or ", "if False and ", "no access to future tokens"
    ),
    Mutant(
        "the padding mask is inverted",
        REFERENCE,
        "(key_documents >= 0)",
        "(key_documents < 0)",
        "padding changes nothing",
    ),
    Mutant(
        "packed documents are not masked",
        REFERENCE,
        "(key_documents == query_documents.unsqueeze(-1)) & ",
        "",
        "packed documents equal separate ones",
    ),
    Mutant(
        "`layout.order` is ignored",
        REFERENCE,
        "if ctx.layout.order is None else ctx.layout.order",
        "",
        "permuted tokens keep their output",
    ),
    Mutant(
        "`layout.order` is ignored in bidirectional attention",
        REFERENCE,
        "ctx.layout.order is not None and",
        "False and",
        "permuted tokens keep their output",
    ),
    Mutant(
        "extra queries are used as keys",
        REFERENCE,
        "x[:, : ctx.key_layout.positions.shape[-1] - ctx.past]",
        "x",
        "extra queries change no other output",
    ),
    Mutant(
        "the softmax is over the query dimension",
        REFERENCE,
        "scores.softmax(-1)",
        "scores.softmax(-2)",
        "no access to future tokens",
    ),
    Mutant("the mask is applied only after the softmax", REFERENCE, MASK, "", "no access to future tokens"),
    Mutant(
        "masked scores are -inf", REFERENCE, "torch.finfo(scores.dtype).min", "-torch.inf", "padding changes nothing"
    ),
    Mutant(
        "the scale is missing",
        REFERENCE,
        "1 / math.sqrt(shape.head_width) if scaled else 1.0",
        "1.0",
        "schema is valid",
    ),
    Mutant(
        "scores are divided by the sequence length",
        REFERENCE,
        "* self.scale",
        "/ x.shape[1]",
        "appended tokens change no earlier output",
    ),
    Mutant(
        "the key cache is written at position 0",
        REFERENCE,
        "ctx.past : end] = k",
        ": end - ctx.past] = k",
        "chunked decoding equals one pass",
    ),
    Mutant(
        "values are not appended to the cache",
        REFERENCE,
        '        ctx.state["v"][:, :, ctx.past : end] = v\n',
        "",
        "chunked decoding equals one pass",
    ),
    Mutant(
        "query indices start at 0 in each decoding step",
        REFERENCE,
        "arange(ctx.past, ctx.past + length",
        "arange(0, length",
        "chunked decoding equals one pass",
    ),
    Mutant(
        "only the keys of the last decoding step are used",
        REFERENCE,
        'return ctx.state["k"][:, :, :end], ',
        "return k, ",
        "chunked decoding equals one pass",
    ),
    Mutant(
        "cross-attention reads the decoder tokens",
        REFERENCE,
        "else ctx.memory",
        "else x",
        "gradient reaches every parameter",
    ),
    Mutant(
        "attention dropout is active in evaluation",
        REFERENCE,
        "self.shape.dropout, self.training",
        "0.1, True",
        "repeated passes are equal",
    ),
    Mutant(
        "keys are centred over the batch",
        REFERENCE,
        "@ k.tr",
        "@ (k - k.mean(0)).tr",
        "batch equals single examples",
    ),
    Mutant(
        "the output projection is missing",
        REFERENCE,
        "self.o((weights",
        "((weights",
        "gradient reaches every parameter",
    ),
    Mutant(
        "keys use the value projection",
        REFERENCE,
        "self.split(self.k(source))",
        "self.split(self.v(source))",
        "gradient reaches every parameter",
    ),
    Mutant(
        "heads are merged without a transpose",
        REFERENCE,
        ".transpose(1, 2).flatten(-2))",
        ".reshape(x.shape))",
        "no access to future tokens",
    ),
    Mutant(
        "heads are split along the sequence dimension",
        REFERENCE,
        "x.view(*x.shape[:-1], -1, self.shape.head_width).transpose(1, 2)",
        "x.reshape(len(x), -1, x.shape[1], self.shape.head_width)",
        "no access to future tokens",
    ),
    Mutant(
        "`cost` declares half of the FLOPs",
        REFERENCE,
        "return softmax_cost(self.shape, self.kv_heads, visibility_of(self.shape), load)",
        "return Cost(softmax_cost(self.shape, self.kv_heads, visibility_of(self.shape), load).flops // 2)",
        "FLOPs match their declaration",
    ),
    Mutant(
        "`cost` ignores shared key/value heads",
        REFERENCE,
        "softmax_cost(self.shape, self.kv_heads",
        "softmax_cost(self.shape, self.shape.heads",
        "FLOPs match their declaration",
    ),
    Mutant(
        "`start` allocates one token too many",
        REFERENCE,
        "self.kv_heads, length, self",
        "self.kv_heads, length + 1, self",
        "decoding state has the declared size",
    ),
    Mutant(
        "`start` allocates a cache for every query head",
        REFERENCE,
        "(batch, self.kv_heads, length",
        "(batch, self.shape.heads, length",
        "decoding state has the declared size",
    ),
    Mutant(
        "a parameter is unused",
        REFERENCE,
        "        self.o = ",
        "        self.p = nn.Linear(2, 2)\n        self.o = ",
        "gradient reaches every parameter",
    ),
    Mutant(
        "a parameter is multiplied by 0",
        REFERENCE,
        "q = self.split(self.q(x))",
        "q = self.split(0 * self.q(x))",
        "gradient reaches every parameter",
    ),
    Mutant(
        "a buffer is drawn from the global generator",
        "attention.mha",
        START,
        PREPARE + 'self.register_buffer("noise", __import__("torch").randn(2))' + START,
        "initial weights depend on the seed only",
    ),
    Mutant(
        "initial weights are scaled",
        "attention.mha",
        START,
        PREPARE + "self.heads.q.weight.data.mul_(2)" + START,
        "other initial weights stay the same",
    ),
    Mutant(
        "the option `window` is ignored",
        "attention.restricted",
        "visibility_of(shape, window)",
        "visibility_of(shape, 8)",
        "schema is valid",
    ),
    Mutant("the option `kv_heads` is ignored", "attention.gqa", "kv_heads=kv_heads", "kv_heads=2", "schema is valid"),
    Mutant(
        "`cost` ignores the shared head",
        "attention.mqa",
        "softmax_cost(self.shape, self.heads.kv_heads",
        "softmax_cost(self.shape, self.shape.heads",
        "FLOPs match their declaration",
    ),
    Mutant(
        "heads are mixed only after the softmax",
        "attention.talking-heads",
        "return mix_heads(self.before, q @ k.transpose(-1, -2) * scale)",
        "return q @ k.transpose(-1, -2) * scale",
        "gradient reaches every parameter",
    ),
    Mutant(
        "`cost` omits the mixing of heads",
        "attention.talking-heads",
        "+ Cost(flops=talk)",
        "+ Cost(flops=0)",
        "FLOPs match their declaration",
    ),
    Mutant(
        "hidden keys count for the bias of the sigmoid",
        "attention.sigmoid",
        "keys = visible.sum(-1, keepdim=True, dtype=scores.dtype)",
        "keys = scores.new_tensor(scores.shape[-1])",
        "appended tokens change no earlier output",
    ),
    Mutant(
        "the number of keys has the default dtype",
        "attention.sigmoid",
        "keepdim=True, dtype=scores.dtype)",
        "keepdim=True)",
        "forward depends on its inputs only",
    ),
    Mutant(
        "a map of weights gives hidden keys a weight",
        "attention.sigmoid",
        "normalize=sigmoid_weights",
        "normalize=sigmoid_weights, map_weights=lambda weights: weights + 1e-3",
        "no access to future tokens",
    ),
    Mutant(
        "weights of any sum are declared to sum to 1",
        "attention.sigmoid",
        '{**SOFTMAX_TRAITS, "normalized": False}',
        "SOFTMAX_TRAITS",
        "attention weights match their declaration",
    ),
    Mutant(
        "a query with negative scores only divides 0 by 0",
        "attention.relu",
        "scores.relu() / keys",
        "scores.relu() / scores.relu().sum(-1, keepdim=True)",
        "no access to future tokens",
    ),
    Mutant(
        "weights are normalised over queries",
        "attention.sparsemax",
        "normalize=sparsemax",
        "normalize=lambda scores, visible: sparsemax(scores.mT, visible).mT",
        "no access to future tokens",
    ),
    Mutant(
        "the second attention map is not subtracted",
        "attention.differential",
        "self.norm(first_mix - factor * second_mix)",
        "self.norm(first_mix)",
        "gradient reaches every parameter",
    ),
)

SHARED: Final = (
    Mutant(
        "the causal mask is shifted by one token",
        "paribus.parts.visibility:pair_conditions",
        "key <= query",
        "key <= query + 1",
        "kernels agree",
        "attention.mha",
    ),
    Mutant(
        "caches are written at position 0",
        "paribus.parts.attend:append_to_cache",
        "[:, :, past:end] = fresh",
        "[:, :, : end - past] = fresh",
        "chunked decoding equals one pass",
        "attention.mha",
    ),
    Mutant(
        "shared heads are tiled instead of repeated",
        "paribus.parts.heads:repeat_heads",
        "x.repeat_interleave(heads // x.shape[-3], dim=-3)",
        "x.repeat(1, heads // x.shape[-3], 1, 1)",
        "kernels agree",
        "attention.gqa",
    ),
    Mutant(
        "positions start at 0 in each decoding step",
        "paribus.parts.batch:token_layout",
        "torch.arange(past, past + length",
        "torch.arange(0, length",
        "chunked decoding equals one pass",
        "position.rope",
    ),
    Mutant(
        "decoded tokens are not counted",
        "paribus.parts.stack:Stack.forward",
        "states.past = past + layout.positions.shape[-1]",
        "pass",
        "chunked decoding equals one pass",
        "attention.mha",
    ),
    Mutant(
        "the final norm is missing",
        "paribus.parts.stack:Stack.forward",
        "self.norm(x) if self.normed else x",
        "x",
        "gradient reaches every parameter",
        "placement.pre",
    ),
    Mutant(
        "scores are always scaled",
        "paribus.parts.attend:Attend.scale",
        " if self.scaled else 1.0",
        "",
        "every option has an effect",
        "attention.mha",
    ),
    Mutant(
        "the soft cap is missing",
        "paribus.parts.attend:attention_weights",
        "if plan.soft_cap is not None:",
        "if False:",
        "every option has an effect",
        "attention.mha",
    ),
    Mutant(
        "padding is not masked",
        "paribus.parts.visibility:pair_conditions",
        "k.documents is not None",
        "False",
        "padding changes nothing",
        "attention.mha",
    ),
    Mutant(
        "hidden keys compete for weight",
        "paribus.parts.attend:_normalize_visible",
        "scores.masked_fill(~visible, torch.finfo(scores.dtype).min)",
        "scores",
        "no access to future tokens",
        "attention.sparsemax",
    ),
    Mutant(
        "the score bias is transposed",
        "paribus.parts.attend:attention_weights",
        "scores = scores + dense.bias",
        "scores = scores + dense.bias.transpose(-1, -2)",
        "kernels agree",
        "position.t5",
    ),
)

POSITION: Final = (
    Mutant(
        "only queries are rotated",
        "position.rope",
        "return rotate_pairs(x, tables",
        'return x if side == "key" else rotate_pairs(x, tables',
        "rotation depends on distance only",
    ),
    Mutant(
        "keys are rotated in the opposite direction",
        "position.rope",
        "return rotate_pairs(x, tables, interleaved=self.interleaved)",
        'flip = (lambda t: (t[0], -t[1])) if side == "key" else (lambda t: t)\n        return rotate_pairs(x, tables._replace(double=flip(tables.double), single=flip(tables.single)), interleaved=self.interleaved)',
        "rotation depends on distance only",
    ),
    Mutant(
        "rotation uses indices of the chunk instead of positions",
        "position.rope",
        "angles = positions.unsqueeze(1).unsqueeze(-1) * frequency",
        "angles = positions.new_tensor(range(positions.shape[-1])).view(1, 1, -1, 1) * frequency",
        "chunked decoding equals one pass",
    ),
    Mutant(
        "the option `fraction` is ignored",
        "position.rope",
        "rotated = round(width * self.fraction, 3)",
        "rotated = width",
        "every option has an effect",
    ),
    Mutant(
        "the option `theta` is ignored",
        "position.rope",
        "frequencies(self.theta, ",
        "frequencies(10_000.0, ",
        "every option has an effect",
    ),
    Mutant(
        "distances use indices of the block instead of positions",
        "position.alibi",
        "pair.q_positions.unsqueeze(-1)",
        "torch.arange(pair.q_positions.shape[-1]).unsqueeze(-1)",
        "chunked decoding equals one pass",
    ),
    Mutant("the option `layout` is ignored", "position.sinusoidal", 'layout == "halves"', "True", "schema is valid"),
    Mutant(
        "sinusoids use indices of the chunk instead of positions",
        "position.sinusoidal",
        "(positions + self.offset).unsqueeze(-1)",
        "torch.arange(positions.shape[-1]).view(1, -1, 1)",
        "chunked decoding equals one pass",
    ),
    Mutant(
        "the option `offset` is ignored",
        "position.sinusoidal",
        "positions + self.offset",
        "positions",
        "every option has an effect",
    ),
    Mutant(
        "all frequencies are 0",
        "position.sinusoidal",
        "self.base**-exponents",
        "0 * exponents",
        "output depends on positions",
    ),
    Mutant(
        "positions are clamped to half of the table",
        "position.learned",
        "positions.clamp(min=0)",
        "positions.clamp(min=0, max=self.length // 2)",
        "positions are valid up to the limit",
    ),
    Mutant(
        "the table is read by index in the chunk",
        "position.learned",
        "index = positions.clamp(min=0)",
        "index = torch.arange(positions.shape[-1]).unsqueeze(0)",
        "chunked decoding equals one pass",
    ),
    Mutant(
        "negative positions of left padding are not clamped",
        "position.learned",
        "positions.clamp(min=0)",
        "positions",
        "padding changes nothing",
    ),
    Mutant(
        "the declared position limit is too large by one",
        "position.learned",
        "return self.length",
        "return self.length + 1",
        "positions are valid up to the limit",
    ),
    Mutant(
        "a hook is declared but not implemented",
        "position.none",
        '"hooks": []',
        '"hooks": ["embed"]',
        "hooks match their declaration",
    ),
    Mutant(
        "buckets use indices of the block instead of positions",
        "position.t5",
        "pair.k_positions.unsqueeze(-2)",
        "torch.arange(pair.k_positions.shape[-1]).unsqueeze(-2)",
        "padding changes nothing",
    ),
)

PER_TOKEN: Final = (
    Mutant(
        "the norm is over the sequence dimension",
        "norm.layernorm",
        "functional.layer_norm(x, self.weight.shape, self.weight, self.bias, self.eps)",
        "(x - x.mean(1, keepdim=True)) / (x.var(1, keepdim=True) + self.eps).sqrt() * self.weight + (0 if self.bias is None else self.bias)",
        "norm treats tokens separately",
    ),
    Mutant(
        "the norm returns its input",
        "norm.layernorm",
        "return functional.layer_norm(x, self.weight.shape, self.weight, self.bias, self.eps)",
        "return x",
        "gradient reaches every parameter",
    ),
    Mutant(
        "the gain is unused",
        "norm.rmsnorm",
        "self.weight, self.eps",
        "None, self.eps",
        "gradient reaches every parameter",
    ),
    Mutant("the option `eps` is ignored", "norm.rmsnorm", "self.eps)", "1e-6)", "every option has an effect"),
    Mutant(
        "the norm returns float32 for float64",
        "norm.rmsnorm",
        "return functional.rms_norm(x, ",
        "return functional.rms_norm(x.float(), ",
        "norm treats tokens separately",
    ),
    Mutant(
        "the norm centres over the batch",
        "norm.scalenorm",
        "return x * ",
        "return (x - x.mean(0)) * ",
        "batch equals single examples",
    ),
    Mutant(
        "the norms of sublayers are unused",
        "placement.pre",
        "self.norms[name](x) if name in self.norms else x",
        "x",
        "gradient reaches every parameter",
    ),
    Mutant(
        "all sublayers use the same norm",
        "placement.pre",
        "self.norms[name](x) if name in self.norms else x",
        'self.norms["feedforward"](x)',
        "gradient reaches every parameter",
    ),
    Mutant(
        "a sublayer runs twice",
        "placement.post",
        "x + sublayer(x)",
        "x + sublayer(sublayer(x))",
        "every sublayer runs once",
    ),
    Mutant(
        "a sublayer is skipped",
        "placement.post",
        "in sublayers.items():",
        "in list(sublayers.items())[1:]:",
        "every sublayer runs once",
    ),
    Mutant(
        "the output of a sublayer is dropped",
        "placement.parallel",
        "y = y + sublayer(",
        "y = y + 0 * sublayer(",
        "every sublayer runs once",
    ),
    Mutant(
        "the option `start` is ignored",
        "placement.layerscale",
        "(self.start + self.scales[name])",
        "(0.1 + self.scales[name])",
        "every option has an effect",
    ),
    Mutant(
        "the residual scale is unused",
        "placement.rezero",
        "self.scale * sublayer(x)",
        "sublayer(x)",
        "gradient reaches every parameter",
    ),
    Mutant(
        "the gate is unused",
        "feedforward.glu",
        "self.activation(self.gate(x)) * self.inner(x)",
        "self.activation(self.inner(x))",
        "gradient reaches every parameter",
    ),
    Mutant("`cost` omits the gate", "feedforward.glu", "3 * 2 *", "2 * 2 *", "FLOPs match their declaration"),
    Mutant(
        "the feed-forward mixes tokens",
        "feedforward.mlp",
        "self.inner(x)",
        "self.inner(x.cumsum(1))",
        "feed-forward treats tokens separately",
    ),
    Mutant(
        "`cost` declares half of the FLOPs of a feed-forward",
        "feedforward.mlp",
        "2 * 2 *",
        "2 *",
        "FLOPs match their declaration",
    ),
    Mutant(
        "the option `activation` is ignored",
        "feedforward.mlp",
        "ACTIVATIONS[activation]",
        'ACTIVATIONS["gelu"]',
        "schema is valid",
    ),
    Mutant(
        "dropout is active in evaluation",
        "feedforward.mlp",
        "self.activation(self.inner(x))",
        "nn.functional.dropout(self.activation(self.inner(x)))",
        "repeated passes are equal",
    ),
    Mutant(
        "the auxiliary loss has one value per token",
        "feedforward.mlp",
        ", None\n",
        ", x.mean(-1)\n",
        "feed-forward treats tokens separately",
    ),
    Mutant(
        "the option `scale` is ignored",
        "embedding.tokens",
        "math.sqrt(shape.width) if scale else 1.0",
        "1.0",
        "schema is valid",
    ),
    Mutant(
        "the option `tied` is ignored",
        "embedding.tokens",
        "score_tokens(h, self.tokens, self.head, bias)",
        "score_tokens(h, self.tokens, None, bias)",
        "every option has an effect",
    ),
    Mutant(
        "position embeddings are not added",
        "embedding.tokens",
        "x = place(",
        "x = (lambda x, positions: x)(",
        "gradient reaches every parameter",
    ),
    Mutant(
        "the embedding ignores the number of decoded tokens",
        "embedding.tokens",
        "token_layout(stream, past)",
        "token_layout(stream, 0)",
        "chunked decoding equals one pass",
    ),
    Mutant(
        "the norm of the embedding is unused",
        "embedding.tokens",
        '            x = part["norm"](x)\n',
        "            pass\n",
        "every option has an effect",
    ),
    Mutant(
        "the decoding states are not passed to the stack",
        "topology.decoder",
        "memory=None, states=states",
        "memory=None, states=None",
        "chunked decoding equals one pass",
    ),
    Mutant(
        "the decoder receives no memory",
        "topology.encoder-decoder",
        "memory=memory, states",
        "memory=None, states",
        "gradient reaches every parameter",
    ),
)

OTHER_SLOTS: Final = (
    Mutant(
        "norms follow the sublayers in `pre`",
        "placement.pre",
        "x = x + sublayer(self.norms[name](x) if name in self.norms else x)",
        "x = self.norms[name](x + sublayer(x)) if name in self.norms else x + sublayer(x)",
        "residual stream is kept",
    ),
    Mutant(
        "the option `std` is ignored",
        "initialisation.normal",
        "self.std * about.gain",
        "0.02 * about.gain",
        "every option has an effect",
    ),
    Mutant(
        "the initialisation uses the global generator",
        "initialisation.normal",
        "unit * ",
        "unit.new_empty(unit.shape).normal_() * ",
        "initial weights depend on the seed only",
    ),
    Mutant(
        "the optimizer maximizes the loss",
        "optimizer.adamw",
        "fused=True",
        "fused=True, maximize=True",
        "loss falls on one batch",
    ),
    Mutant(
        "the learning rate becomes negative", "schedule.warmup-cosine", "0.5 * (1 +", "(0 +", "learning rates are valid"
    ),
    Mutant(
        "the learning rate is always 0",
        "schedule.constant",
        "return warmup_factor(",
        "return 0.0 * warmup_factor(",
        "learning rates are valid",
    ),
    Mutant(
        "encoded bytes are shifted by 1",
        "tokenizer.bytes",
        'list(text.encode("utf-8", "surrogatepass"))',
        "[1 + byte for byte in text.encode()]",
        "tokenizer round trip",
    ),
    Mutant(
        "bytes are decoded in reverse",
        "tokenizer.bytes",
        "run.append(token)",
        "run.insert(0, token)",
        "tokenizer round trip",
    ),
)

SURVIVORS: Final = (
    Mutant(
        "scores are divided by the root of the model width",
        REFERENCE,
        "1 / math.sqrt(shape.head_width)",
        "1 / math.sqrt(shape.width)",
        reason="another scale is a valid attention; the installed ones are compared with loops and references",
    ),
    Mutant(
        "the window is wider by one token",
        "attention.restricted",
        "visibility_of(shape, window)",
        "visibility_of(shape, window + 1)",
        reason="the description of the option defines the width; the installed ones are compared with loops",
    ),
    Mutant(
        "values are rotated as well",
        "attention.mha",
        ATTEND,
        ROTATED_VALUES,
        reason="an attention may use positions in any way; the installed ones are compared with loops",
    ),
    Mutant(
        "queries and keys are both rotated in the opposite direction",
        "position.rope",
        "return rotation_tables(cos, sin,",
        "return rotation_tables(cos, -sin,",
        reason="the models are equivalent, with each pair of columns mirrored; the installed one is compared with Llama",
    ),
    Mutant(
        "all slopes are equal",
        "position.alibi",
        "slopes(shape.heads)",
        "[0.5] * shape.heads",
        reason="heads may share a bias; the installed slopes are compared with those of the paper",
    ),
    Mutant(
        "the bias grows with distance",
        "position.alibi",
        "like(distance, dtype).neg()",
        "like(distance, dtype)",
        reason="a bias may grow with distance; the installed one is compared with that of the paper",
    ),
)

KILLED: Final = (*ATTENTION, *SHARED, *POSITION, *PER_TOKEN, *OTHER_SLOTS)
