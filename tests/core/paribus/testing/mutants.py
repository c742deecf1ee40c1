"""Seeded faults: what somebody gets wrong in a component, or in what all of them share, as changes of its source.

Each is a source, a piece of its text, what stands there instead, and the check of the kit that is to notice. The
source is a component that ships, the attention written `by_hand`, or a function of the core (`module:function`), which
is then tried in a component that uses it. Survivors are those that no check notices, each with the reason.
"""

# ruff: noqa: E501  # a piece of source is kept whole

from __future__ import annotations

from typing import Final, NamedTuple


class Mutant(NamedTuple):
    """One fault, and the check that notices; none for a survivor."""

    story: str
    source: str
    was: str
    now: str
    check: str = ""
    tried: str = ""  # in which component, where the fault is not in one
    why: str = ""  # why nothing of the kit notices, and what does


HAND: Final = "by_hand"
SEEN: Final = "        scores = scores.masked_fill(~seen, torch.finfo(scores.dtype).min)\n"
ATTEND: Final = "return self.heads.merge(self.attend(self.heads, x, ctx))"
START: Final = "\n\n    def start("
PREPARE: Final = "\n\n    def prepare(self, keyed):\n        "
TURNED_VALUES: Final = """attend = self.attend
        turned = type("Turned", (), {
            "queries": self.heads.queries, "keys": self.heads.keys, "project": self.heads.project,
            "values": staticmethod(lambda rows: attend.rotate(self.heads.values(rows), ctx, "key")),
        })
        return self.heads.merge(attend(turned, x, ctx))"""

ATTENTION: Final = (
    Mutant("the mask is off by one: a row sees the next", HAND, "<= query.uns", "<= 1 + query.uns", "causality"),
    Mutant("nothing is causal", HAND, "if self.causal or ", "if False and ", "causality"),
    Mutant("the mask of padding is inverted", HAND, "(other >= 0)", "(other < 0)", "padding"),
    Mutant("documents are not told apart", HAND, "(other == own.unsqueeze(-1)) & ", "", "documents"),
    Mutant("an order of rows is ignored", HAND, "if ctx.layout.order is None else ctx.layout.order", "", "order"),
    Mutant(
        "an order is ignored where rows see both sides", HAND, "ctx.layout.order is not None and", "False and", "order"
    ),
    Mutant(
        "rows that only ask are seen", HAND, "x[:, : ctx.key_layout.positions.shape[-1] - ctx.past]", "x", "appended"
    ),
    Mutant("the softmax is over the queries", HAND, "scores.softmax(-1)", "scores.softmax(-2)", "causality"),
    Mutant("the mask comes after the softmax", HAND, SEEN, "", "causality"),
    Mutant("what is hidden is -inf", HAND, "torch.finfo(scores.dtype).min", "-torch.inf", "padding"),
    Mutant("the scale is left out", HAND, "1 / math.sqrt(shape.head_width) if scaled else 1.0", "1.0", "schema"),
    Mutant("scores are divided by how many rows there are", HAND, "* self.scale", "/ x.shape[1]", "prefix"),
    Mutant("the cache is written at its beginning", HAND, "ctx.past : end] = k", ": end - ctx.past] = k", "decoding"),
    Mutant("the values are not appended", HAND, '        ctx.state["v"][:, :, ctx.past : end] = v\n', "", "decoding"),
    Mutant("rows count from 0 in each step", HAND, "arange(ctx.past, ctx.past + rows", "arange(0, rows", "decoding"),
    Mutant("only the last step's keys are kept", HAND, 'return ctx.state["k"][:, :, :end], ', "return k, ", "decoding"),
    Mutant("a cross-attention reads its own rows", HAND, "else ctx.memory", "else x", "gradients"),
    Mutant("weights are dropped in evaluation", HAND, "self.shape.dropout, self.training", "0.1, True", "determinism"),
    Mutant("sequences of a batch are centred together", HAND, "@ k.tr", "@ (k - k.mean(0)).tr", "batch"),
    Mutant("the way back is left out", HAND, "self.o((weights", "((weights", "gradients"),
    Mutant(
        "keys are projected as values are",
        HAND,
        "self.split(self.k(source))",
        "self.split(self.v(source))",
        "gradients",
    ),
    Mutant(
        "heads are merged without being turned back",
        HAND,
        ".transpose(1, 2).flatten(-2))",
        ".reshape(x.shape))",
        "causality",
    ),
    Mutant(
        "heads are split from rows",
        HAND,
        "x.view(*x.shape[:-1], -1, self.shape.head_width).transpose(1, 2)",
        "x.reshape(len(x), -1, x.shape[1], self.shape.head_width)",
        "causality",
    ),
    Mutant(
        "half of the cost is declared",
        HAND,
        "return softmax_cost(self.shape, self.kv_heads, visibility_of(self.shape), load)",
        "return Cost(softmax_cost(self.shape, self.kv_heads, visibility_of(self.shape), load).flops // 2)",
        "cost",
    ),
    Mutant(
        "the cost is that of a head for each",
        HAND,
        "softmax_cost(self.shape, self.kv_heads",
        "softmax_cost(self.shape, self.shape.heads",
        "cost",
    ),
    Mutant(
        "room is made for one row more", HAND, "self.kv_heads, length, self", "self.kv_heads, length + 1, self", "state"
    ),
    Mutant(
        "room is made for every head",
        HAND,
        "(batch, self.kv_heads, length",
        "(batch, self.shape.heads, length",
        "state",
    ),
    Mutant(
        "a parameter is never used",
        HAND,
        "        self.o = ",
        "        self.p = nn.Linear(2, 2)\n        self.o = ",
        "gradients",
    ),
    Mutant(
        "a parameter is multiplied by 0",
        HAND,
        "q = self.split(self.q(x))",
        "q = self.split(0 * self.q(x))",
        "gradients",
    ),
    Mutant(
        "draws come from the global generator",
        "attention.mha",
        START,
        PREPARE + 'self.register_buffer("luck", __import__("torch").randn(2))' + START,
        "keyed",
    ),
    Mutant(
        "a tensor is drawn in another way",
        "attention.mha",
        START,
        PREPARE + "self.heads.q.weight.data.mul_(2)" + START,
        "untouched",
    ),
    Mutant(
        "heads share a window that is an option in name alone",
        "attention.restricted",
        "visibility_of(shape, window)",
        "visibility_of(shape, 8)",
        "schema",
    ),
    Mutant("groups are always pairs", "attention.gqa", "kv_heads=kv_heads", "kv_heads=2", "schema"),
    Mutant(
        "the cost forgets that heads are shared",
        "attention.mqa",
        "softmax_cost(self.shape, self.heads.kv_heads",
        "softmax_cost(self.shape, self.shape.heads",
        "cost",
    ),
    Mutant(
        "heads talk after the softmax alone",
        "attention.talking-heads",
        "return mix_heads(self.before, q @ k.transpose(-1, -2) * scale)",
        "return q @ k.transpose(-1, -2) * scale",
        "gradients",
    ),
    Mutant("talking is free", "attention.talking-heads", "+ Cost(flops=talk)", "+ Cost(flops=0)", "cost"),
    Mutant(
        "nothing is subtracted",
        "attention.differential",
        "self.norm(first_mix - factor * second_mix)",
        "self.norm(first_mix)",
        "gradients",
    ),
)

SHARED: Final = (
    Mutant(
        "a row sees the next",
        "paribus.parts.visibility:pair_conditions",
        "key <= query",
        "key <= query + 1",
        "kernels",
        "attention.mha",
    ),
    Mutant(
        "a cache is written at its beginning",
        "paribus.parts.attend:append_to_cache",
        "[:, :, past:end] = fresh",
        "[:, :, : end - past] = fresh",
        "decoding",
        "attention.mha",
    ),
    Mutant(
        "heads are tiled in place of repeated",
        "paribus.parts.heads:repeat_heads",
        "x.repeat_interleave(heads // x.shape[-3], dim=-3)",
        "x.repeat(1, heads // x.shape[-3], 1, 1)",
        "kernels",
        "attention.gqa",
    ),
    Mutant(
        "positions begin anew in each step",
        "paribus.parts.batch:token_layout",
        "torch.arange(past, past + length",
        "torch.arange(0, length",
        "decoding",
        "position.rope",
    ),
    Mutant(
        "a step is not counted",
        "paribus.parts.stack:Stack.forward",
        "states.past = past + rows.positions.shape[-1]",
        "pass",
        "decoding",
        "attention.mha",
    ),
    Mutant(
        "the final norm is left out",
        "paribus.parts.stack:Stack.forward",
        "self.norm(x) if self.normed else x",
        "x",
        "gradients",
        "placement.pre",
    ),
    Mutant(
        "the scale is never left out",
        "paribus.parts.attend:Attend.scale",
        " if self.scaled else 1.0",
        "",
        "options",
        "attention.mha",
    ),
    Mutant(
        "a soft cap is not applied",
        "paribus.parts.attend:attention_weights",
        "if plan.soft_cap is not None:",
        "if False:",
        "options",
        "attention.mha",
    ),
    Mutant(
        "padding is seen",
        "paribus.parts.visibility:pair_conditions",
        "k.documents is not None",
        "False",
        "padding",
        "attention.mha",
    ),
    Mutant(
        "a query that sees nothing divides 0 by 0",
        "paribus.parts.attend:attention_weights",
        "torch.finfo(scores.dtype).min",
        "-torch.inf",
        "padding",
        "attention.talking-heads",
    ),
    Mutant(
        "a bias is added to the queries' side",
        "paribus.parts.attend:attention_weights",
        "scores = scores + dense.bias",
        "scores = scores + dense.bias.transpose(-1, -2)",
        "kernels",
        "position.t5",
    ),
)

POSITION: Final = (
    Mutant(
        "queries alone are turned",
        "position.rope",
        "return rotate_pairs(x, tables",
        'return x if side == "key" else rotate_pairs(x, tables',
        "turning",
    ),
    Mutant(
        "keys are turned the other way",
        "position.rope",
        "return rotate_pairs(x, tables, interleaved=self.interleaved)",
        'flip = (lambda t: (t[0], -t[1])) if side == "key" else (lambda t: t)\n        return rotate_pairs(x, tables._replace(double=flip(tables.double), single=flip(tables.single)), interleaved=self.interleaved)',
        "turning",
    ),
    Mutant(
        "rows are turned by where they stand in the batch",
        "position.rope",
        "angles = positions.unsqueeze(1).unsqueeze(-1) * frequency",
        "angles = positions.new_tensor(range(positions.shape[-1])).view(1, 1, -1, 1) * frequency",
        "decoding",
    ),
    Mutant(
        "all of a head is turned",
        "position.rope",
        "rotated = round(width * self.fraction, 3)",
        "rotated = width",
        "options",
    ),
    Mutant(
        "the base is always the same", "position.rope", "frequencies(self.theta, ", "frequencies(10_000.0, ", "options"
    ),
    Mutant(
        "distances are counted in rows of the block",
        "position.alibi",
        "pair.q_positions.unsqueeze(-1)",
        "torch.arange(pair.q_positions.shape[-1]).unsqueeze(-1)",
        "decoding",
    ),
    Mutant("sines and cosines never take turns", "position.sinusoidal", 'layout == "halves"', "True", "schema"),
    Mutant(
        "rows are numbered from the first, whatever they are",
        "position.sinusoidal",
        "(positions + self.offset).unsqueeze(-1)",
        "torch.arange(positions.shape[-1]).view(1, -1, 1)",
        "decoding",
    ),
    Mutant("the offset is not added", "position.sinusoidal", "positions + self.offset", "positions", "options"),
    Mutant("every frequency is 0", "position.sinusoidal", "self.base**-exponents", "0 * exponents", "placing"),
    Mutant(
        "the table is read no further than its middle",
        "position.learned",
        "positions.clamp(min=0)",
        "positions.clamp(min=0, max=self.length // 2)",
        "reach",
    ),
    Mutant(
        "the table is read by row",
        "position.learned",
        "index = positions.clamp(min=0)",
        "index = torch.arange(positions.shape[-1]).unsqueeze(0)",
        "decoding",
    ),
    Mutant(
        "padding on the left reads before the table",
        "position.learned",
        "positions.clamp(min=0)",
        "positions",
        "padding",
    ),
    Mutant(
        "a place more is promised than there is",
        "position.learned",
        "return self.length",
        "return self.length + 1",
        "reach",
    ),
    Mutant("a moment is declared that is not there", "position.none", '"hooks": []', '"hooks": ["embed"]', "moments"),
    Mutant(
        "buckets are counted from the block's own rows",
        "position.t5",
        "pair.k_positions.unsqueeze(-2)",
        "torch.arange(pair.k_positions.shape[-1]).unsqueeze(-2)",
        "padding",
    ),
)

ROWS: Final = (
    Mutant(
        "the norm is over time",
        "norm.layernorm",
        "functional.layer_norm(x, self.weight.shape, self.weight, self.bias, self.eps)",
        "(x - x.mean(1, keepdim=True)) / (x.var(1, keepdim=True) + self.eps).sqrt() * self.weight + (0 if self.bias is None else self.bias)",
        "row by row",
    ),
    Mutant(
        "the norm is left out",
        "norm.layernorm",
        "return functional.layer_norm(x, self.weight.shape, self.weight, self.bias, self.eps)",
        "return x",
        "gradients",
    ),
    Mutant("the gain is forgotten", "norm.rmsnorm", "self.weight, self.eps", "None, self.eps", "gradients"),
    Mutant("eps is always the same", "norm.rmsnorm", "self.eps)", "1e-6)", "options"),
    Mutant(
        "a norm answers in half of the digits",
        "norm.rmsnorm",
        "return functional.rms_norm(x, ",
        "return functional.rms_norm(x.float(), ",
        "row by row",
    ),
    Mutant("a norm is centred over the batch", "norm.scalenorm", "return x * ", "return (x - x.mean(0)) * ", "batch"),
    Mutant(
        "a sublayer's norm is made and not used",
        "placement.pre",
        "self.norms[name](x) if name in self.norms else x",
        "x",
        "gradients",
    ),
    Mutant(
        "all sublayers read one norm",
        "placement.pre",
        "self.norms[name](x) if name in self.norms else x",
        'self.norms["feedforward"](x)',
        "gradients",
    ),
    Mutant("a sublayer runs twice", "placement.post", "x + sublayer(x)", "x + sublayer(sublayer(x))", "wiring"),
    Mutant(
        "a sublayer is passed over",
        "placement.post",
        "in sublayers.items():",
        "in list(sublayers.items())[1:]:",
        "wiring",
    ),
    Mutant(
        "what a sublayer gives is lost", "placement.parallel", "y = y + sublayer(", "y = y + 0 * sublayer(", "wiring"
    ),
    Mutant(
        "the first share is never read",
        "placement.layerscale",
        "(self.start + self.scales[name])",
        "(0.1 + self.scales[name])",
        "options",
    ),
    Mutant(
        "branches do not start at nothing", "placement.rezero", "self.scale * sublayer(x)", "sublayer(x)", "gradients"
    ),
    Mutant(
        "a gate is made and not used",
        "feedforward.glu",
        "self.activation(self.gate(x)) * self.inner(x)",
        "self.activation(self.inner(x))",
        "gradients",
    ),
    Mutant("the gate is counted as free", "feedforward.glu", "3 * 2 *", "2 * 2 *", "cost"),
    Mutant("a feed-forward mixes rows", "feedforward.mlp", "self.inner(x)", "self.inner(x.cumsum(1))", "each row"),
    Mutant("half of the cost of a feed-forward", "feedforward.mlp", "2 * 2 *", "2 *", "cost"),
    Mutant(
        "the activation is always the same",
        "feedforward.mlp",
        "ACTIVATIONS[activation]",
        'ACTIVATIONS["gelu"]',
        "schema",
    ),
    Mutant(
        "units are dropped in evaluation",
        "feedforward.mlp",
        "self.activation(self.inner(x))",
        "nn.functional.dropout(self.activation(self.inner(x)))",
        "determinism",
    ),
    Mutant("the auxiliary loss is one for each row", "feedforward.mlp", ", None\n", ", x.mean(-1)\n", "each row"),
    Mutant("tokens are never scaled", "embedding.tokens", "math.sqrt(shape.width) if scale else 1.0", "1.0", "schema"),
    Mutant(
        "scores come from the table whether tied or not",
        "embedding.tokens",
        "score_tokens(h, self.tokens, self.head, bias)",
        "score_tokens(h, self.tokens, None, bias)",
        "options",
    ),
    Mutant(
        "a position is never placed",
        "embedding.tokens",
        "x = place(",
        "x = (lambda x, positions: x)(",
        "gradients",
    ),
    Mutant(
        "an embedding forgets how many rows came before",
        "embedding.tokens",
        "token_layout(stream, past)",
        "token_layout(stream, 0)",
        "decoding",
    ),
    Mutant(
        "the embedding's norm is not applied",
        "embedding.tokens",
        '            x = part["norm"](x)\n',
        "            pass\n",
        "options",
    ),
    Mutant(
        "states are not handed on",
        "topology.decoder",
        "memory=None, states=states",
        "memory=None, states=None",
        "decoding",
    ),
    Mutant(
        "a decoder does not attend to what it is given",
        "topology.encoder-decoder",
        "memory=memory, states",
        "memory=None, states",
        "gradients",
    ),
)

REST: Final = (
    Mutant(
        "the standard deviation is always the same",
        "initialisation.normal",
        "self.std * about.gain",
        "0.02 * about.gain",
        "options",
    ),
    Mutant(
        "a scheme draws for itself",
        "initialisation.normal",
        "unit * ",
        "unit.new_empty(unit.shape).normal_() * ",
        "keyed",
    ),
    Mutant("the loss is climbed", "optimizer.adamw", "fused=True", "fused=True, maximize=True", "training"),
    Mutant("a rate falls below nothing", "schedule.warmup-cosine", "0.5 * (1 +", "(0 +", "rates"),
    Mutant(
        "a rate is never more than nothing",
        "schedule.constant",
        "return warmup_factor(",
        "return 0.0 * warmup_factor(",
        "rates",
    ),
    Mutant(
        "bytes are numbered from 1",
        "tokenizer.bytes",
        'list(text.encode("utf-8", "surrogatepass"))',
        "[1 + byte for byte in text.encode()]",
        "tokens",
    ),
    Mutant("bytes are read backwards", "tokenizer.bytes", "run.append(token)", "run.insert(0, token)", "tokens"),
)

SURVIVORS: Final = (
    Mutant(
        "scores are divided by the root of the width, not of a head's",
        HAND,
        "1 / math.sqrt(shape.head_width)",
        "1 / math.sqrt(shape.width)",
        why="another scale is another attention, and as good a one; ours are held against loops and twins",
    ),
    Mutant(
        "a window is wider by one",
        "attention.restricted",
        "visibility_of(shape, window)",
        "visibility_of(shape, window + 1)",
        why="a window is as wide as its option says in words; ours are held against loops",
    ),
    Mutant(
        "values are turned as well",
        "attention.mha",
        ATTEND,
        TURNED_VALUES,
        why="what an attention makes of where its rows are is its own affair; ours are held against loops",
    ),
    Mutant(
        "queries and keys are both turned the other way",
        "position.rope",
        "return rotation_tables(cos, sin,",
        "return rotation_tables(cos, -sin,",
        why="it is the same family of models, each pair of columns mirrored; ours is held against Llama's",
    ),
    Mutant(
        "all slopes are equal",
        "position.alibi",
        "slopes(pair.heads)",
        "[0.5] * pair.heads",
        why="heads may share a bias; ours are held against the paper's slopes",
    ),
    Mutant(
        "far rows count more",
        "position.alibi",
        "device=distance.device).neg()",
        "device=distance.device)",
        why="a bias may rise with distance; ours is held against the paper's",
    ),
    Mutant(
        "norms stand behind the sublayers, where `pre` is said",
        "placement.pre",
        "x = x + sublayer(self.norms[name](x) if name in self.norms else x)",
        "x = self.norms[name](x + sublayer(x)) if name in self.norms else x + sublayer(x)",
        why="post-norm with a final norm is a placement too; ours are held against formulas",
    ),
)

KILLED: Final = (*ATTENTION, *SHARED, *POSITION, *ROWS, *REST)
