"""Seeded faults in components of other slots than objectives and tokenizers, by the check that must fail.

Each fault is a description, a source, a piece of its text and the replacement, as in mutants.py; a fifth value is the
component to test, if the fault is in a shared function.
"""

# ruff: noqa: E501  # pieces of source are not wrapped, and keep their quotes
# fmt: off

from __future__ import annotations

import runpy
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

Mutant: Any = runpy.run_path(str(Path(__file__).with_name("mutants.py")))["Mutant"]

REFERENCE: Final = "by_hand"
MLP: Final = "return self.outer(self.activation(self.inner(x))), None"
PRE: Final = "x = x + sublayer(self.norms[name](x) if name in self.norms else x)"
LAYER_NORM: Final = "return functional.layer_norm(x, self.weight.shape, self.weight, self.bias, self.eps)"
RMS_NORM: Final = "return functional.rms_norm(x, self.weight.shape, self.weight, self.eps)"

READ: Final = "paribus_probe.task_examples:TaskExamples.documents"
LONGER: Final = "paribus_probe.task_examples:TaskExamples.longer_documents"
ATTENTION_MEAN: Final = "paribus_measure.attention_weights:mean_by_head"
SPAN: Final = "measure.span"
SPAN_START: Final = "return summarize(mean_by_head(model, self.examples, _distance))"
SERVER: Final = "paribus.runner.processes:ForkServer._events"

FAULTS: Final[Mapping[str, tuple[tuple[str, ...], ...]]] = {
    "gradients match finite differences": (
        ("values are computed from detached inputs", REFERENCE, "self.split(self.v(source))", "self.split(self.v(source.detach()))"),
        ("keys are computed from detached inputs", REFERENCE, "self.split(self.k(source))", "self.split(self.k(source.detach()))"),
        ("half of the gradient of the weights is detached", REFERENCE, "weights = scores.softmax(-1) * visible", 'weights = scores.softmax(-1) * visible\n        weights = (weights + weights.detach()) / 2'),
        ("the attention map is detached", "attention.differential", "first_mix - factor * second_mix", "first_mix - factor * second_mix.detach()"),
        ("the embedding is detached when positions are added", "position.learned", "return x + embedded", "return x.detach() + embedded"),
        ("queries are detached when they are rotated", "position.rope", "return rotate_pairs(x, tables", "return rotate_pairs(x.detach() if side == 'query' else x, tables"),
        ("the statistic is detached", "norm.rmsnorm", RMS_NORM, "return x * (x.square().mean(-1, keepdim=True) + self.eps).rsqrt().detach() * self.weight"),
        ("the length is detached", "norm.scalenorm", "keepdim=True).clamp(", "keepdim=True).detach().clamp("),
        ("the norm computes in float32", "norm.rmsnorm", RMS_NORM, "return functional.rms_norm(x.float(), self.weight.shape, self.weight.float(), self.eps).to(x.dtype)"),
        ("the residual stream is detached", "placement.pre", "x = x + sublayer(", "x = x.detach() + sublayer("),
        ("the residual stream is detached before the norm", "placement.post", "(x + sublayer(x))", "(x.detach() + sublayer(x))"),
        ("the input of the gate is detached", "feedforward.glu", "self.gate(x)", "self.gate(x.detach())"),
        ("routing weights do not train the router", "feedforward.moe", "top_scores.softmax(-1) if", "top_scores.detach().softmax(-1) if"),
        ("the tied table is detached in the scores", "paribus_embedding.tables:score_tokens", "tokens.weight if head is None", "tokens.weight.detach() if head is None", "embedding.tokens"),
        ("the table is detached in the look-up", "paribus_embedding.tables:look_up", "tables.tokens(stream.tokens)", "tables.tokens(stream.tokens).detach()", "embedding.tokens"),
    ),
    "low precision gives the same function": (
        ("the gain is ignored in bfloat16", "norm.rmsnorm", "self.weight.shape, self.weight, self.eps", "self.weight.shape, self.weight if x.dtype.itemsize > 2 else None, self.eps"),
        ("the activation is another one in bfloat16", "feedforward.mlp", MLP, "inner = self.inner(x)\n        return self.outer(self.activation(inner) if inner.dtype.itemsize > 2 else inner.relu()), None"),
        ("the mask is too weak in bfloat16", REFERENCE, "torch.finfo(scores.dtype).min", "-1e9 if scores.dtype.itemsize > 2 else -1.0"),
        ("the residual stream is float32", "placement.pre", PRE, "x = (x.to(x.dtype if x.dtype.itemsize > 4 else __import__('torch').float32)) + sublayer(self.norms[name](x) if name in self.norms else x)"),
    ),
    "rules hold for long sequences": (
        ("future tokens are visible from position 48 on", REFERENCE, "visible = key.unsqueeze(-2) <= query.unsqueeze(-1)", "visible = (key.unsqueeze(-2) <= query.unsqueeze(-1)) | (query.unsqueeze(-1) >= 48)"),
        ("the next token is visible at position 100", REFERENCE, "visible = key.unsqueeze(-2) <= query.unsqueeze(-1)", "visible = key.unsqueeze(-2) <= query.unsqueeze(-1) + (query.unsqueeze(-1) == 100)"),
        ("tokens after 64 see all documents", REFERENCE, "(key_documents == query_documents.unsqueeze(-1)) &", "((key_documents == query_documents.unsqueeze(-1)) | (torch.arange(keys) >= 64)) &"),
        ("scores are divided by the length of long sequences", REFERENCE, "* self.scale", "* self.scale / max(1, k.shape[2] / 48)"),
        ("the cache keeps 64 tokens", REFERENCE, 'return ctx.state["k"][:, :, :end], ctx.state["v"][:, :, :end]', 'return tuple(torch.cat([ctx.state[name][:, :, :1].expand(-1, -1, max(0, end - 64), -1), ctx.state[name][:, :, max(0, end - 64) : end]], 2) for name in "kv")'),
        ("bias of blocks uses the wrong offset after 64 tokens", "paribus.parts.visibility:pair_conditions", "key <= query", "(key <= query) | (key >= 64) & (key == query + 1)", "attention.mha"),
    ),
    "forward depends on its inputs only": (
        ("scores depend on the clock", REFERENCE, "* self.scale", '* (self.scale + 1e-20 * __import__("time").time())'),
        ("dropout is read from the environment", REFERENCE, "self.shape.dropout, self.training", 'float(__import__("os").environ.get("DROPOUT", "0")), self.training'),
        ("the global generator is advanced", REFERENCE, "self.shape.dropout, self.training", "self.shape.dropout, self.training and bool(torch.rand(1) >= 0) or bool(torch.rand(1) < 0)"),
        ("Python's generator is advanced", "feedforward.mlp", MLP, '__import__("random").random()\n        return self.outer(self.activation(self.inner(x))), None'),
        ("NumPy's generator is advanced", "feedforward.mlp", MLP, '__import__("numpy").random.rand()\n        return self.outer(self.activation(self.inner(x))), None'),
        ("the generator is seeded in each pass", "norm.layernorm", LAYER_NORM, 'torch.manual_seed(0)\n        return functional.layer_norm(x, self.weight.shape, self.weight, self.bias, self.eps)'),
        ("the output depends on the number of threads", "feedforward.mlp", MLP, 'return self.outer(self.activation(self.inner(x))) * (1 + (__import__("torch").get_num_threads() > 1)), None'),
        ("the scale has the default dtype", "placement.layerscale", "(self.start + self.scales[name])", "(torch.tensor(self.start) + self.scales[name])"),
        ("alpha has the default dtype", "norm.dyt", "(self.initial_alpha + self.alpha)", "(torch.tensor(self.initial_alpha * 0.7) + self.alpha)"),
        ("a file is read", "norm.rmsnorm", RMS_NORM, 'open(__file__).close()\n        return functional.rms_norm(x, self.weight.shape, self.weight, self.eps)'),
        ("a date is read", "position.learned", "index = positions.clamp(min=0)", '__import__("datetime").datetime.now()\n        index = positions.clamp(min=0)'),
    ),
    "passes leave no state": (
        ("masks are cached by length", REFERENCE, "visible = self.visible(ctx, k.shape[2])", 'visible = self.__dict__.setdefault("masks", {}).setdefault((x.shape[1], k.shape[2]), self.visible(ctx, k.shape[2]))'),
        ("the scale grows with training passes", REFERENCE, "k, v = self.keys_and_values(x, ctx)", 'k, v = self.keys_and_values(x, ctx)\n        self.scale += 0.01 * self.training'),
        ("the output grows with training passes", "feedforward.mlp", MLP, 'self.calls = getattr(self, "calls", 0) + self.training\n        return self.outer(self.activation(self.inner(x))) * (1 + 0.01 * self.calls), None'),
        ("the mean runs over batches", "norm.layernorm", LAYER_NORM, "if self.training:\n            self.running = 0.9 * getattr(self, 'running', 0.0) + 0.1 * x.detach().mean()\n        return functional.layer_norm(x, self.weight.shape, self.weight, self.bias, self.eps) - getattr(self, 'running', 0.0)"),
        ("the largest length is remembered", "norm.scalenorm", "return x * (", "self.largest = max(getattr(self, 'largest', 0.0), float(norm.max()))\n        return x / (1 + 1e-3 * self.largest) * ("),
        ("rotations are cached by shape", "position.rope", "return self._tables(positions, width, lambda: self._angles(positions, width))", 'return self.__dict__.setdefault("kept", {}).setdefault(positions.shape, self._angles(positions, width))'),
        ("embeddings of positions are cached by length", "position.learned", "return x + embedded", "return x + self.__dict__.setdefault('kept', {}).setdefault(x.shape[1], embedded)"),
        ("the sublayers are cached", "placement.post", "for name, sublayer in sublayers.items():", "self.passes = getattr(self, 'passes', 0) + 1\n        x = x * (1 + 1e-6 * self.passes)\n        for name, sublayer in sublayers.items():"),
    ),
    "inputs are not modified": (
        ("the input is clipped in place", REFERENCE, "q = self.split(self.q(x))", "q = self.split(self.q(x.clamp_(-1, 1)))"),
        ("the input is clipped in place by the feed-forward", "feedforward.mlp", "self.inner(x)", "self.inner(x.clamp_(-1, 1))"),
        ("the input is clipped in place by the norm", "norm.dyt", "return torch.tanh(", 'x.clamp_(-1, 1)\n        return torch.tanh('),
    ),
    "training equals evaluation without dropout": (
        ("attention weights are dropped always in training", REFERENCE, "self.shape.dropout, self.training", "max(self.shape.dropout, 0.1), self.training"),
        ("the batch is centred in training", "norm.layernorm", "functional.layer_norm(x,", "functional.layer_norm(x - x.mean((0, 1)) * self.training,"),
        ("sublayers are skipped at random in training", "placement.pre", PRE, "x = x + sublayer(self.norms[name](x) if name in self.norms else x) * (1 if not self.training else float(__import__('torch').rand(()) > 0.2))"),
        ("units are dropped always in training", "feedforward.mlp", "self.activation(self.inner(x))", "nn.functional.dropout(self.activation(self.inner(x)), 0.1, self.training)"),
        ("tokens are dropped always in training", "paribus_embedding.tables:dropout", "functional.dropout(x, rate) if rate and training", "functional.dropout(x, rate or 0.1) if training", "embedding.tokens"),
        ("noise is added to positions in training", "position.learned", "return x + embedded", "return x + embedded * (1 + 0.1 * self.training * __import__('torch').randn(()))"),
    ),
    "batch equals single examples": (
        ("all examples have the documents of the first", REFERENCE, "visible.reshape(-1, 1", "visible[:1].reshape(-1, 1"),
        ("all examples have the positions of the first", "position.learned", "index = positions.clamp(min=0)", "index = positions[:1].clamp(min=0)"),
    ),
    "extra queries change no other output": (
        ("all examples have the rotation of the first", "position.rope", "angles = positions.unsqueeze(1)", "angles = positions[:1].unsqueeze(1)"),
        ("all examples have the distances of the first", "position.alibi", "pair.k_positions.unsqueeze(-2)).abs()", "pair.k_positions.unsqueeze(-2)).abs()[:1]"),
    ),
    "every unit gets a gradient": (
        ("the last head is masked", REFERENCE, "self.o((weights @ v)", "self.o((weights @ v * (torch.arange(weights.shape[1]) < 3).view(-1, 1, 1))"),
        ("half of the units are masked", "feedforward.mlp", "self.outer(self.activation(self.inner(x)))", "self.outer(self.activation(self.inner(x)) * (__import__('torch').arange(self.inner_width) % 2))"),
        ("the gate closes half of the units", "feedforward.glu", "self.activation(self.gate(x)) * self.inner(x)", "self.activation(self.gate(x)) * self.inner(x) * (__import__('torch').arange(self.inner.out_features) < 8)"),
        ("the last column of the output is dropped", "feedforward.mlp", MLP, "return self.outer(self.activation(self.inner(x))) * (__import__('torch').arange(self.width) < self.width - 1), None"),
    ),
    "positions are valid up to the limit": (
        ("positions repeat after 64", "position.learned", "index = positions.clamp(min=0)", "index = positions.clamp(min=0) % 64"),
        ("sinusoids repeat after 64", "position.sinusoidal", "(positions + self.offset).unsqueeze(-1)", "(positions % 64 + self.offset).unsqueeze(-1)"),
    ),
    "rotation depends on distance only": (
        ("positions are clamped at 100", "position.rope", "angles = positions.unsqueeze(1)", "angles = positions.clamp(max=100).unsqueeze(1)"),
        ("angles are rounded at large positions", "position.rope", "angles = positions.unsqueeze(1).unsqueeze(-1) * frequency", "angles = (positions.unsqueeze(1).unsqueeze(-1).float() * frequency.float()).double()"),
    ),
    "bias depends on distance only": (
        ("distances are clamped at position 100", "position.alibi", "pair.q_positions.unsqueeze(-1)", "pair.q_positions.clamp(max=100).unsqueeze(-1)"),
    ),
    "near and far tokens are distinguished": (
        ("keys behind the query have the bucket of keys ahead", "position.t5", "pair.k_positions.unsqueeze(-2) - pair.q_positions.unsqueeze(-1)", "pair.q_positions.unsqueeze(-1) - pair.k_positions.unsqueeze(-2)"),
        ("all distances above 1 have one bias", "position.alibi", ").abs()  # (B|1, T, S)", ").abs().clamp(max=1)"),
        ("all distances have one bias", "position.alibi", ").abs()  # (B|1, T, S)", ").abs() * 0 + 1"),
        ("the angle has the period of one position", "position.rope", "* frequency  # (B|1, 1, T, R/2)", "* (6.283185307179586 + 0 * frequency)"),
    ),
    "every sublayer runs once": (
        ("each norm is applied twice", "placement.pre", "self.norms[name](x) if", "self.norms[name](self.norms[name](x)) if"),
        ("the norm of the output is applied twice", "placement.sandwich", "sublayer(self.norms[name](x))", "self.behind[name](sublayer(self.norms[name](x)))"),
    ),
    "residual stream is kept": (
        ("the residual stream is the normalised input", "placement.pre", PRE, 'h = self.norms[name](x) if name in self.norms else x\n            x = h + sublayer(h)'),
        ("the residual stream is scaled by channel", "placement.layerscale", "x + (self.start + self.scales[name]) * sublayer(self.norms[name](x))", "(self.start + self.scales[name]) * (x + sublayer(self.norms[name](x)))"),
        ("the residual stream is missing", "placement.pre", "x = x + sublayer(", "x = sublayer("),
        ("the residual stream is missing before the norm", "placement.post", "x + sublayer(x)", "sublayer(x)"),
    ),
    "output is normalized once": (
        ("the final norm is not declared", "placement.pre", '{"final_norm": True}', '{"final_norm": False}'),
        ("a final norm is declared after post-norm", "placement.post", '{"final_norm": False}', '{"final_norm": True}'),
        ("the norm after the sublayer includes the residual stream", "placement.sandwich", "x + self.behind[name](sublayer(self.norms[name](x)))", "self.behind[name](x + sublayer(self.norms[name](x)))"),
        ("the final norm is computed and dropped", "paribus.parts.stack:Stack.forward", "self.norm(x) if self.normed else x", "x + 0 * self.norm(x) if self.normed else x", "placement.pre"),
    ),
    "norm accepts any input": (
        ("zeros have no gradient", "norm.rmsnorm", RMS_NORM, "return x / (x.square().mean(-1, keepdim=True).sqrt() + self.eps) * self.weight"),
        ("only inputs with three axes are accepted", "norm.layernorm", "functional.layer_norm(x,", "functional.layer_norm(x.transpose(1, 2).transpose(1, 2),"),
        ("vectors are grouped by the first axis", "norm.layernorm", LAYER_NORM, "return functional.layer_norm(x, self.weight.shape, self.weight, self.bias, self.eps) / (1 if x.ndim == 3 else 2)"),
    ),
    "tokens have distinct vectors": (
        ("the last two tokens share a vector", "paribus_embedding.tables:look_up", "tables.tokens(stream.tokens)", "tables.tokens(stream.tokens.clamp(max=tables.tokens.num_embeddings - 2))", "embedding.tokens"),
        ("tokens are hashed into fewer vectors", "paribus_embedding.tables:look_up", "tables.tokens(stream.tokens)", "tables.tokens(stream.tokens * 7 % (tables.tokens.num_embeddings - 3))", "embedding.tokens"),
        ("the padding id has the vector of id 1", "paribus_embedding.tables:look_up", "tables.tokens(stream.tokens)", "tables.tokens(stream.tokens.clamp(min=1))", "embedding.factorised"),
        ("segments are ignored", "paribus_embedding.tables:look_up", "torch.zeros_like(stream.tokens) if ids is None else ids", "torch.zeros_like(stream.tokens)", "embedding.tokens"),
        ("the table is centred, so all rows are trained", "paribus_embedding.tables:look_up", "tables.tokens(stream.tokens)", "(tables.tokens(stream.tokens) - tables.tokens.weight.mean(0))", "embedding.tokens"),
        ("positions are added twice", "embedding.tokens", "x = place(look_up(stream, self.tables, self.scale), layout.positions)", "x = place(place(look_up(stream, self.tables, self.scale), layout.positions), layout.positions)"),
    ),
    "scores belong to their tokens": (
        ("scores are shifted by one token", "paribus_embedding.tables:score_tokens", "head.weight, bias)", "head.weight, bias).roll(1, -1)", "embedding.tokens"),
        ("the bias of the objective is ignored", "paribus_embedding.tables:score_tokens", "head.weight, bias)", "head.weight, None)", "embedding.tokens"),
        ("the bias is scaled with the scores", "embedding.tokens", "score_tokens(h, self.tokens, self.head, bias)", "2 * score_tokens(h, self.tokens, self.head, bias)"),
        ("scores are normalised over the vocabulary in order", "paribus_embedding.tables:score_tokens", "head.weight, bias)", "head.weight.flip(0), bias)", "embedding.factorised"),
    ),
    "initial weights have the declared scale": (
        ("the variance is used as standard deviation", "initialisation.normal", "self.std * about.gain", "self.std**2 * about.gain"),
        ("the gain of the placement is ignored", "initialisation.normal", "self.std * about.gain", "self.std"),
        ("the gain is ignored", "initialisation.xavier", " * about.gain)", ")"),
        ("the gain is squared", "initialisation.t5", "self.factor * about.gain", "self.factor * about.gain**2"),
        ("all weights are positive", "initialisation.normal", "return unit * (", "return unit.abs() * ("),
        ("the mean is not 0", "initialisation.gpt2", "return unit * (", "return (unit + 0.5) * ("),
        ("all rows are equal", "initialisation.normal", "return unit * (", "return unit[:1].expand_as(unit) * ("),
        ("all columns are equal", "initialisation.xavier", "return unit * (", "return unit[..., :1].expand_as(unit) * ("),
        ("the scale depends on the number of calls", "initialisation.normal", "return unit * (", "self.calls = getattr(self, 'calls', 0) + 1\n        return unit * (1 + 0.01 * self.calls) * ("),
        ("weights of a role are 0", "initialisation.gpt2", "return unit * (", "return unit * (about.role != 'key') * ("),
    ),
    "optimizer steps follow the contract": (
        ("vectors decay", "paribus_optim.parameter_groups:decay_groups", '"weight_decay": 0.0', '"weight_decay": weight_decay', "optimizer.adamw"),
        ("matrices do not decay", "paribus_optim.parameter_groups:decay_groups", '"weight_decay": weight_decay', '"weight_decay": 0.0 * weight_decay', "optimizer.adamw"),
        ("the schedule is ignored", "optimizer.lamb", 'torch._foreach_add_(parameters, directions, alpha=-group["lr"])', 'torch._foreach_add_(parameters, directions, alpha=-self.defaults["lr"])'),
        ("moments are not in the state", "optimizer.lamb", "update_moments(group, self.state)", "update_moments(group, self.__dict__.setdefault('kept', __import__('collections').defaultdict(dict)))"),
        ("the first gradient is added to every step", "optimizer.stable-adamw", "update_moments(group, self.state)", "update_moments(group, self.__dict__.setdefault('kept', __import__('collections').defaultdict(dict)))"),
        ("steps are random", "optimizer.stable-adamw", 'alpha=-group["lr"])', 'alpha=-group["lr"] * (0.9 + 0.1 * float(torch.rand(()))))'),
        ("a closure is evaluated after the step", "paribus_optim.parameter_groups:step_groups", "    loss = None\n    if closure is not None:\n        with torch.enable_grad():\n            loss = closure()\n    for group in groups:\n        update(group)\n    return loss", "    for group in groups:\n        update(group)\n    return None if closure is None else closure()", "optimizer.stable-adamw"),
        ("steps are clipped by the largest ratio of all tensors", "optimizer.stable-adamw", ".clamp(min=1.0).reciprocal()", ".max().clamp(min=1.0).reciprocal().expand(len(parameters))"),
        ("the rate is set by the number of tensors", "optimizer.lamb", "if not parameters:", 'directions[0].mul_(0.5)\n        if not parameters:'),
    ),
    "text is restored exactly": (
        ("a space at the start is dropped", "tokenizer.bytes", 'return run.decode("utf-8", "surrogatepass")', 'return run.decode("utf-8", "surrogatepass").removeprefix(" ")'),
        ("double spaces become one", "tokenizer.bpe", "encode_batch_fast(list(texts), add", 'encode_batch_fast([text.replace("  ", " ") for text in texts], add'),
        ("the sign for a space becomes a space", "tokenizer.unigram", "if BLANK in word:", "if False:"),
        ("the last pixel value is decoded as the first", "tokenizer.pixels", "np.array([token], np.uint8)", "np.array([token % 255], np.uint8)"),
        ("the character before the first pixel value is the mask", "tokenizer.pixels", "(values < 0) | (values >= VALUES)", "(values < -1) | (values >= VALUES)"),
    ),
    "any text is encoded": (
        ("ids of unknown letters are shifted without byte fallback", "tokenizer.unigram", 'return [self._reserved.specials["unk"]]', 'return [self._reserved.size + 256 + len(self._pieces)]'),
        ("a special token in a text is kept where the file has no unk", "tokenizer.file", "unknown if token in reserved else token", "token"),
    ),
    "training is deterministic": (
        ("a fixed vocabulary reads the texts of a training", "tokenizer.bytes", "minimum = self._vocabulary.size\n", "minimum = self._vocabulary.size + 0 * len(list(texts))\n"),
        ("the option of bytes is restored from the default", "tokenizer.unigram", 'bool(content["fallback"])', "True"),
        ("sentinels begin with the last special token", "tokenizer.symbols", "self._reserved = reserve_tokens(0, self._sentinels, unknown=True)", "self._reserved = reserve_tokens(0, self._sentinels, unknown=True)\n        self._reserved = self._reserved._replace(sentinels=tuple(token - 1 for token in self._reserved.sentinels))"),
        ("only words of letters start words", "tokenizer.wordpiece", "if not _continues_word(piece)\n", "if piece[0].isalnum()\n"),
        ("capitals are not counted", "tokenizer.wordpiece", "_letters(map(normalizer.normalize_str, texts), room)", "_letters((text for text in texts if not text.isupper()), room)"),
        ("pieces are added to those of earlier trainings", "tokenizer.wordpiece", "        self._set_pieces(sorted(vocabulary, key=vocabulary.__getitem__))", "        self._set_pieces(dict.fromkeys([*self._pieces, *sorted(vocabulary, key=vocabulary.__getitem__)]))"),
    ),
    "token ids match the documents": (
        ("documents lack their first id", "corpus.tokens", "shard.ids[start:stop]", "shard.ids[start + 1 : stop]"),
        ("documents of the first shard are repeated", "corpus.tokens", "in self.token_shards(split).shards:", "in self.token_shards(split).shards[:1] * 2:"),
    ),
    "every option has an effect": (
        ("rho is stored only", "optimizer.adadelta", "rho=self.rho,", "rho=0.95,"),
        ("the clipping threshold is stored only", "optimizer.adafactor", "d=self.clip", "d=1.0"),
        ("the rate of vectors is that of the first build", "optimizer.sgd", "lr=self.lr,", "lr=0.1,"),
        ("the shape is stored only", "schedule.trapezoid", 'if self.decay_shape == "sqrt" else progress', "if False else progress"),
        ("the power is that of the class", "schedule.polynomial", "remaining**self.power", "remaining**1.0"),
        ("the seed is ignored", "paribus_probe.task_examples:TaskExamples.__init__", "self._seed = seed", "self._seed = 0", "corpus.reverse"),
        ("the number of validation examples is ignored", "paribus_probe.task_examples:TaskExamples.__init__", '"val": held_out', '"val": 512', "corpus.reverse"),
        ("the fingerprint lacks the number of validation examples", "paribus_probe.task_examples:TaskExamples.fingerprint", "*self._counts.values()", 'self._counts["train"]', "corpus.mod-add"),
        ("a value of a choice equals another", "corpus.follows", 'same_topic = self._negatives == "place"', "same_topic = False"),
        ("the fingerprint lacks the seed", "paribus_probe.task_examples:TaskExamples.fingerprint", ", self._seed))", "))", "corpus.copy"),
        ("the fingerprint lacks the number of examples", "paribus_probe.task_examples:TaskExamples.fingerprint", "*self._counts.values(), ", "", "corpus.copy"),
        ("the fingerprint lacks the options of the task", "paribus_probe.task_examples:TaskExamples.fingerprint", "self._key", "self._key[0]", "corpus.selective-copy"),
        ("the minimum number of words is ignored", "corpus.sections", "< self._words:", "< 8:"),
        ("the fingerprint lacks the minimum number of words", "corpus.sections", "self._make, __file__, words", "self._make, __file__"),
        ("the number of examples is ignored", "measure.span", "self.examples, _distance", "32, _distance"),
        ("the number of tokens is ignored", "measure.induction", "self.tokens, self.examples", "32, self.examples"),
        ("the direction is ignored", "measure.threshold", "metric <= self.value if self.below else metric >= self.value", "metric >= self.value"),
        ("the threshold is ignored", "measure.threshold", ">= self.value", ">= 0.5"),
        ("only one length is measured", "measure.extrapolation", "for times in self.times:", "for times in (2, 4):"),
    ),
    "learning rates are valid": (
        ("the warm-up starts at 0", "schedule.warmup-cosine", "return warmup_factor(step, warmup)", "return warmup_factor(step - 1, warmup)"),
        ("the end of the warm-up is above 1", "paribus_optim.warmup:warmup_factor", "min(1.0, (step + 1) / warmup)", "(step + 2) / warmup", "schedule.constant"),
        ("the longest run is remembered", "schedule.halved", "warmup = warmup_steps(self.warmup, steps)", "self.longest = steps = max(steps, getattr(self, 'longest', 0))\n        warmup = warmup_steps(self.warmup, steps)"),
        ("steps are counted, not read", "schedule.warmup-cosine", "        if step < warmup:", "        self.step = max(step, getattr(self, 'step', 0))\n        step = self.step\n        if step < warmup:"),
        ("the previous factor is a limit", "schedule.polynomial", "        if step < warmup:", "        self.last = getattr(self, 'last', step)\n        step, self.last = max(step, self.last - 1), step\n        if step < warmup:"),
        ("a factor is a tensor", "schedule.constant", "return warmup_factor(", "return __import__('torch').ones(()) * warmup_factor("),
    ),
    "documents are reproducible": (
        ("a second reading draws other examples", READ, 'name = f"{split} {number}"', 'self.count = getattr(self, "count", 0) + (number == 0)\n        name = f"{split} {number} {self.count}"', "corpus.copy"),
        ("both splits share a generator", READ, 'yield _document(name, self._draw(split, KeyedRandom(f"{self._seed} {self._key} {name}")))', 'self.rng = self.rng if number else KeyedRandom(name)\n        yield _document(name, self._draw(split, self.rng))', "corpus.copy"),
        ("a reading continues where the last one stopped", "paribus_text.derived:DerivedCorpus.documents", "yield from self._cache[split]", "self.readers = getattr(self, 'readers', {})\n    self.readers = self.readers if self.readers.get(split, iter(())).__length_hint__() else {**self.readers, split: iter(self._cache[split])}\n    yield from self.readers[split]", "corpus.sections"),
        ("examples after the first hundred are random", READ, "{self._key} {name}", "{self._key} {name} {__import__('random').random() if number > 100 else 0}", "corpus.reverse"),
        ("the fingerprint depends on the documents read so far", "paribus_text.derived:DerivedCorpus.fingerprint", "(*self._fingerprint_parts)", "(*self._fingerprint_parts, str(self._cache is None))", "corpus.sections"),
        ("skipped inputs add up", "paribus_text.derived:DerivedCorpus.skipped_inputs", 'next(self.documents("train"), None)', 'self._cache = None\n    next(self.documents("train"), None)', "corpus.sections"),
    ),
    "splits share no document": (
        ("the last validation examples are training examples", READ, "self._draw(split, ", 'self._draw(split if number < 50 else "train", ', "corpus.copy"),
        ("the hash of an example does not decide its split", "paribus_probe.task_examples:TaskExamples._draw", "_hash(question.question)", "(rng.below(64) + (split == 'train') * 8)", "corpus.mod-add"),
    ),
    "documents depend on their options only": (
        ("reading seeds the global generator", READ, 'name = f"{split} {number}"', '__import__("random").seed(0)\n        name = f"{split} {number}"', "corpus.copy"),
        ("the state of the global generator is part of the key", READ, "{self._key} {name}", "{self._key} {name} {__import__('random').getstate()[1][1]}", "corpus.copy"),
        ("the year of the clock is part of the key", READ, "{self._key} {name}", "{self._key} {name} {__import__('datetime').date.today().year}", "corpus.copy"),
        ("the name of the user is part of the key", READ, "{self._key} {name}", "{self._key} {name} {__import__('os').environ.get('USER')}", "corpus.copy"),
        ("the working directory is part of the key", READ, "{self._key} {name}", "{self._key} {name} {__import__('os').getcwd()}", "corpus.copy"),
    ),
    "contents match their declaration": (
        ("the answer ends before it starts", "corpus.cloze", "labels=(starts[0], starts[0] + len(answer) - 1)", "labels=(starts[0] + len(answer), starts[0])"),
        ("the last tag is missing", "corpus.code-words", "labels=tuple(tag for _, tag in tagged)", "labels=tuple(tag for _, tag in tagged)[:-1]"),
        ("tags of phrases", "corpus.code-words", "for word in words(piece)]", "for word in [piece]]"),
        ("classes are numbered from 1", "corpus.sections", "enumerate(SECTIONS)", "enumerate(SECTIONS, 1)"),
        ("a class has no name", "corpus.sections", "return tuple(SECTIONS)", "return tuple(SECTIONS)[1:]"),
        ("the score is not a number", "corpus.overlap", "labels=(1 - len(positions) / len(text),)", "labels=(float('nan'),)"),
        ("documents have no score", "corpus.overlap", "labels=(1 - len(positions) / len(text),)", "labels=()"),
        ("negatives have no second text", "corpus.follows", "(a,), (b,), labels", "(a,), (b,) * is_positive, labels"),
        ("labels are not declared", "corpus.sections", '"provides": ["documents", "labels"]', '"provides": ["documents"]'),
        ("targets are not declared", "corpus.copy", "traits: ClassVar[CorpusTraits] = PROBE", 'traits: ClassVar[CorpusTraits] = {"provides": ["documents", "longer"]}'),
        ("all documents have one label", "corpus.follows", "labels=(is_positive,)", "labels=(1,)"),
        ("labels are text", "corpus.sections", "labels=(numbers[section],)", "labels=(section,)"),
    ),
    "documents are valid text": (
        ("sentences are one text instead of a tuple", "paribus_probe.task_examples:_document", "(question.question,)", "question.question", "corpus.copy"),
        ("a sentence is empty", "paribus_probe.task_examples:_document", "(question.question,)", '(question.question, "")', "corpus.sort"),
        ("text ends with NUL", "paribus_probe.task_examples:_document", "(question.question,)", '(question.question + chr(0),)', "corpus.copy"),
        ("half of a surrogate pair", "paribus_probe.task_examples:_document", "(question.question,)", '(question.question + chr(0xD83D),)', "corpus.copy"),
        ("the name of a document is a number", "paribus_probe.task_examples:_document", "Document(name,", "Document(len(name),", "corpus.copy"),
        ("the last document is empty", "corpus.sections", "for topic, paragraph in prose(topics):", "yield Document('end', ())\n        for topic, paragraph in prose(topics):"),
    ),
    "longer documents match their declaration": (
        ("longer documents are as long as others", LONGER, ", times)", ", 1)", "corpus.copy"),
        ("longer documents repeat one question", LONGER, " {name}", "", "corpus.reverse"),
        ("longer documents are random", LONGER, " {name}", " {name} {__import__('random').random()}", "corpus.sort"),
        ("longer documents are twice as long at most", LONGER, ", times)", ", min(times, 2))", "corpus.dyck"),
    ),
    "measured values are reproducible": (
        ("the mean is over batches of different sizes", ATTENTION_MEAN, "torch.cat(totals) / token_count if", "torch.cat([total * 0 + s / mask.sum() for total, s in zip(totals, sums)]) if", "measure.span"),
        ("a value is a tensor", "measure.recall", '"loss": loss / count,', '"loss": torch.tensor(loss / count),'),
        ("a declared name is missing", "measure.sink", 'return (*SUMMARY, "nowhere")', 'return (*SUMMARY, "somewhere")'),
        ("examples are drawn by the global generator", "paribus_measure.induction_score:repeated_sequences", 'model.draw(examples).uniform("induction", len(text_tokens))', "torch.rand(examples, len(text_tokens))", "measure.induction"),
        ("the share of nothing is not a number", "measure.recall", '"share": count / (count + other_count)', '"share": count / 0.0 if False else float("nan")'),
    ),
    "measurements have no side effects": (
        ("parameters are no longer trained", SPAN, SPAN_START, "[p.requires_grad_(False) for p in model.model.parameters()]; return summarize(mean_by_head(model, self.examples, _distance))"),
        ("the model is left in training mode", SPAN, SPAN_START, "model.model.topology.train(); return summarize(mean_by_head(model, self.examples, _distance))"),
        ("a hook stays", SPAN, SPAN_START, "model.model.topology.register_forward_hook(print); return summarize(mean_by_head(model, self.examples, _distance))"),
        ("weights are rounded", SPAN, SPAN_START, "[p.data.copy_(p.half()) for p in model.model.parameters()]; return summarize(mean_by_head(model, self.examples, _distance))"),
        ("the last point of the curve is removed", "measure.threshold", "points = [point for", "[getattr(model.learning_curve, 'pop', int)()]; points = [point for"),
        ("Python's generator is advanced", SPAN, SPAN_START, "__import__('random').random(); return summarize(mean_by_head(model, self.examples, _distance))"),
        ("torch's generator is seeded", "paribus_measure.induction_score:repeated_sequences", "reserved = model", "torch.manual_seed(0); reserved = model", "measure.induction"),
    ),
    "measures read the evaluated model only": (
        ("the seed of the spec is part of a value", SPAN, SPAN_START, "len(model.model.spec); return summarize(mean_by_head(model, self.examples, _distance))"),
        ("the time is measured", SPAN, SPAN_START, "__import__('time').time(); return summarize(mean_by_head(model, self.examples, _distance))"),
        ("training data are read", SPAN, SPAN_START, "model.data.step(0); return summarize(mean_by_head(model, self.examples, _distance))"),
        ("the environment is read", SPAN, SPAN_START, "__import__('os').environ.get('HOME'); return summarize(mean_by_head(model, self.examples, _distance))"),
    ),
    "measured values depend on the model": (
        ("distances are not weighted by attention", "measure.span", "(weights * distance).sum(-1) / weights.sum(-1).clamp(min=1e-12)", "distance.expand_as(weights).mean(-1)"),
        ("positions are never changed", "paribus_measure.position_sensitivity:_with_positions", "half._replace(positions=positions)", "half", "measure.positions"),
        ("the value of the curve is ignored", "measure.threshold", "return metric <= self.value if self.below else metric >= self.value", "return self.below or self.value > 0"),
    ),
    "measures ignore padding": (
        ("the loss includes padding", "paribus_measure.next_token:is_predicted", " & (body.documents[:, 1:] >= 0)", "", "measure.recall"),
        ("the mean includes padding", "measure.positions", "(half.documents != PADDING).long()", "torch.ones_like(positions)"),
        ("documents are ignored", "paribus_measure.next_token:is_predicted", "if body.documents is not None:", "if False:", "measure.recall"),
    ),
    "better predictions have better values": (
        ("the loss has the wrong sign", "measure.recall", '"loss": loss / count', '"loss": -loss / count'),
        ("the accuracy is the share of errors", "measure.recall", "correct & repeats", "~correct & repeats"),
        ("predictions are shifted by one token", "paribus_measure.next_token:token_losses", "model.logits(batch)[:, :-1]", "model.logits(batch)[:, 1:]", "measure.recall"),
        ("targets are the tokens themselves", "paribus_measure.next_token:token_losses", "tokens[:, 1:]", "tokens[:, :-1]", "measure.induction"),
    ),
    "jobs end as they are reported": (
        ("a failed job is reported as a success", SERVER, 'message["code"], message["signal"]', '0, message["signal"]', "launcher.local"),
        ("the end of a job is reported twice", "launcher.local", "return self._zygote.poll(seconds)", "return [copy for event in self._zygote.poll(seconds) for copy in [event] * (1 + hasattr(event, 'code'))]"),
        ("the start of a job is not reported", "launcher.local", "return self._zygote.poll(seconds)", "return [event for event in self._zygote.poll(seconds) if not hasattr(event, 'location')]"),
        ("the last line is lost", SERVER, 'message["last_line"]', '""', "launcher.local"),
        ("a job is started twice", "launcher.local", "self._zygote.start(job)", "self._zygote.start(job), self._zygote.start(job)"),
        ("the log is not written", "launcher.local", "self._zygote.start(job)", "self._zygote.start(job._replace(log='/dev/null'))"),
    ),
    "stopped jobs end": (
        ("a killed job is reported as a success", SERVER, 'message["code"], message["signal"]', 'message["code"] or 0, None', "launcher.local"),
        ("a stop is ignored", "launcher.local", "self._zygote.stop(name, signal)", "None"),
        ("a stop ends all jobs", "launcher.local", "self._zygote.stop(name, signal)", "[self._zygote.stop(other, signal) for other in ('long', 'other-long')]"),
        ("another job is stopped", "launcher.local", "self._zygote.stop(name, signal)", "self._zygote.stop('other-' + name, signal)"),
    ),
}
"""Found by the named check."""

TILE_BOTH: Final = "k, v = (side.repeat_interleave(q.shape[1] // side.shape[1], dim=1) for side in (k, v))"
REFERENCE_FAULTS: Final[tuple[tuple[str, ...], ...]] = (
    ("key/value heads are tiled, not repeated", REFERENCE, TILE_BOTH, "k, v = (side.repeat(1, q.shape[1] // side.shape[1], 1, 1) for side in (k, v))"),
    ("key heads are tiled, not repeated", REFERENCE, TILE_BOTH, "k, v = k.repeat(1, q.shape[1] // k.shape[1], 1, 1), v.repeat_interleave(q.shape[1] // v.shape[1], dim=1)"),
    ("value heads are tiled, not repeated", REFERENCE, TILE_BOTH, "k, v = k.repeat_interleave(q.shape[1] // k.shape[1], dim=1), v.repeat(1, q.shape[1] // v.shape[1], 1, 1)"),
    ("scores are divided by the root of the model width instead of a head's", REFERENCE, "1 / math.sqrt(shape.head_width)", "1 / math.sqrt(shape.width)"),
    ("the window includes one more token", "attention.restricted", "visibility_of(shape, window)", "visibility_of(shape, window + 1)"),
    ("the variance is unbiased", "norm.layernorm", LAYER_NORM, "return (x - x.mean(-1, keepdim=True)) / (x.var(-1, keepdim=True) + self.eps).sqrt() * self.weight + (0 if self.bias is None else self.bias)"),
    ("the mean is removed", "norm.rmsnorm", "functional.rms_norm(x,", "functional.rms_norm(x - x.mean(-1, keepdim=True),"),
    ("the length is that of the width, not of its root", "norm.scalenorm", "math.sqrt(width)", "float(width)"),
    ("the feed-forward adds its input", "feedforward.mlp", MLP, "return x + self.outer(self.activation(self.inner(x))), None"),
    ("sublayers run in reverse", "placement.post", "in sublayers.items():", "in reversed(sublayers.items()):"),
    ("alpha scales the branch", "placement.deepnorm", "self.alpha * x + sublayer(x)", "x + self.alpha * sublayer(x)"),
    ("slopes start with 1", "position.alibi", "(-8 * (head + 1) / power)", "(-8 * head / power)"),
    ("the bias grows with distance, as a bonus", "position.alibi", "like(distance, dtype).neg()", "like(distance, dtype)"),
    ("angles are halved", "position.rope", "* frequency  # (B|1, 1, T, R/2)", "* frequency / 2"),
    ("rotation is in the opposite direction for both", "position.rope", "return rotation_tables(cos, sin,", "return rotation_tables(cos, -sin,"),
    ("the offset is added twice", "position.learned", "index + self.offset if", "index + self.offset // 2 if"),
    ("the scale is the width, not its root", "embedding.tokens", "self.scale = math.sqrt(shape.width) if scale", "self.scale = shape.width if scale"),
    ("the fan is the input's alone", "initialisation.xavier", "2 / (about.fan_in + about.fan_out)", "1 / about.fan_in"),
    ("the deviation is the variance", "initialisation.xavier", "math.sqrt(variance)", "variance"),
    ("moments are biased", "paribus_optim.moments:update_moments", "torch._foreach_div(means, _bias(beta1, states))", "torch._foreach_div(means, 1.0)", "optimizer.lamb"),
    ("momentum is dampened", "optimizer.sgd", "momentum=self.momentum", "momentum=self.momentum, nesterov=self.momentum > 0, dampening=0"),
    ("betas are swapped", "optimizer.adamw", "(beta1, beta2)", "(beta2, beta1)"),
    ("the cosine has half a period too much", "schedule.warmup-cosine", "math.cos(math.pi * progress)", "math.cos(math.pi * progress / 2)"),
    ("the rate is divided by the square root twice", "schedule.inverse-sqrt", "math.sqrt(warmup / (step + 1))", "(warmup / (step + 1))"),
    ("eps is outside of the root", "optimizer.adagrad", "eps=self.eps,", "eps=self.eps**2,"),
    ("the halving counts from the first step", "schedule.halved", "1 + steps_since //", "2 + steps_since //"),
)
"""Found by the reference of the component only: each is another model, or another rule, rather than a broken one."""

SLOT_SURVIVORS: Final[tuple[Any, ...]] = (
    Mutant("the depth is ignored", "corpus.dyck", "len(open_) < self._depth", "len(open_) < 6", reason="the option is part of the key of the random draws, so the documents change; a test of the probe counts the open brackets"),
    Mutant("the answer has one word too many", "corpus.cloze", "labels=(starts[0], starts[0] + len(answer) - 1)", "labels=(starts[0], min(starts[0] + len(answer), len(context) - 1))", reason="the answer is still a range of the target; a test of the corpus compares the words"),
    Mutant("every tenth document is dropped", "corpus.code-words", "if any(tag for _, tag in tagged):", "if any(tag for _, tag in tagged) and len(tagged) % 10:", reason="a corpus declares no number of documents"),
    Mutant("the loss is in bits", "paribus_measure.next_token:token_losses", 'reduction="none")', 'reduction="none") / 0.6931', component="measure.recall", reason="a measure declares no unit"),
    Mutant("the best head is the worst", "measure.induction", "float(head_scores.max())", "float(head_scores.min())", reason="another statistic is a valid measure; a test compares it with a model that has an induction head"),
)
"""Pass all checks."""
