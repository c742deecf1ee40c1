"""Faults that a newcomer planted in plugins of their own, for six slots, with the guide alone.

The plugins are in `newcomer_plugins/`; without a fault, each conforms. Neither the plugins nor the faults were written
with knowledge of the kit. Later checks found errors in two of the plugins, which were mended: examples of the objective
without a label, and texts with halves of surrogate pairs that the tokenizer did not restore.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

REFERENCE: Final = "output equals the author's reference"


class PlantedFault(NamedTuple):
    """Fault in a plugin: replacements in its source, and the check that finds it."""

    slot: str
    plugin: str  # file in `newcomer_plugins/`
    fault: str
    changes: Sequence[tuple[str, str]]
    check: str


PLUGINS: Final = {
    "attention": "gated_attention",
    "position": "log_distance",
    "norm": "power_norm",
    "objective": "block_masking",
    "tokenizer": "ngram_tokenizer",
    "optimizer": "lion_lookahead",
}

FAULTS: Final = (
    # -- attention ---------------------------------------------------------------------------------------------------
    PlantedFault(
        "attention",
        "gated_attention",
        "gates are centred over the whole sequence, so a token reads later ones and padding",
        [("self.gate(x).unflatten", "self.gate(x - x.mean(1, keepdim=True)).unflatten")],
        check="no access to future tokens",
    ),
    PlantedFault(
        "attention",
        "gated_attention",
        "the option `floor` is ignored with `gate: element`",
        [
            (
                "gate = self.floor + (1 - self.floor) * gate.sigmoid()",
                'gate = gate.sigmoid() if self.kind == "element" else self.floor + (1 - self.floor) * gate.sigmoid()',
            )
        ],
        check=REFERENCE,
    ),
    PlantedFault(
        "attention",
        "gated_attention",
        "beyond 128 tokens, the first token of each block of 128 sets the gates of its block",
        [
            (
                "        return self.heads.merge(mixed * gate)\n",
                "        if x.shape[1] > 128:\n"
                "            blocks = gate.split(128, 2)\n"
                "            gate = torch.cat([block[:, :, :1].expand_as(block) for block in blocks], 2)\n"
                "        return self.heads.merge(mixed * gate)\n",
            ),
            ("from torch import Tensor, nn\n", "import torch\nfrom torch import Tensor, nn\n"),
        ],
        check="rules hold for long sequences",
    ),
    # -- position ----------------------------------------------------------------------------------------------------
    PlantedFault(
        "position",
        "log_distance",
        "the positions of the first sequence serve the whole batch",
        [
            (
                "pair.q_positions.unsqueeze(-1) - pair.k_positions.unsqueeze(-2)",
                "pair.q_positions[:1].unsqueeze(-1) - pair.k_positions[:1].unsqueeze(-2)",
            )
        ],
        check="extra queries change no other output",
    ),
    PlantedFault(
        "position",
        "log_distance",
        "distances are stored in 8 bits, so a distance of 256 counts as 0",
        [("(offset.abs().float() / self.tau)", "(offset.abs().to(torch.uint8).float() / self.tau)")],
        check="rules hold for long sequences",
    ),
    PlantedFault(
        "position",
        "log_distance",
        "all heads share the mean of the slopes ahead",
        [("self.ahead.to(pair.dtype)[:, None, None]", "self.ahead.to(pair.dtype).mean()")],
        check=REFERENCE,
    ),
    # -- norm --------------------------------------------------------------------------------------------------------
    PlantedFault(
        "norm",
        "power_norm",
        "a running level of earlier batches is mixed into the norm, and is in no checkpoint",
        [
            (
                "        self.power = nn.Parameter(torch.ones(1))\n",
                "        self.power = nn.Parameter(torch.ones(1))\n        self.level = None\n",
            ),
            (
                "        return (x * (-mean).exp() * self.weight).to(x.dtype)\n",
                "        if self.training:\n"
                "            now = mean.detach().mean()\n"
                "            self.level = now if self.level is None else 0.99 * self.level + 0.01 * now\n"
                "        if self.level is not None:\n"
                "            mean = 0.9 * mean + 0.1 * self.level\n"
                "        return (x * (-mean).exp() * self.weight).to(x.dtype)\n",
            ),
        ],
        check="passes leave no state",
    ),
    PlantedFault(
        "norm",
        "power_norm",
        "in bfloat16 and under autocast, a fused RMSNorm ignores the learned exponent",
        [
            (
                "        power = (self.start * self.power).clamp(min=0.25)\n",
                "        if x.dtype in (torch.bfloat16, torch.float16) or torch.is_autocast_enabled(x.device.type):\n"
                "            return nn.functional.rms_norm(x, (x.shape[-1],), self.weight.to(x.dtype), self.eps)\n"
                "        power = (self.start * self.power).clamp(min=0.25)\n",
            )
        ],
        check="low precision gives the same function",
    ),
    # -- objective ---------------------------------------------------------------------------------------------------
    PlantedFault(
        "objective",
        "block_masking",
        "labels are read after masking, so the target is the mask token",
        [
            (
                "        labels = tokens.masked_fill(~hide, IGNORED)\n"
                "        shown = tokens.masked_fill(hide & ~kept, self.mask_token)\n",
                "        shown = tokens.masked_fill(hide & ~kept, self.mask_token)\n"
                "        labels = shown.masked_fill(~hide, IGNORED)\n",
            )
        ],
        check="examples have valid tokens and labels",
    ),
    PlantedFault(
        "objective",
        "block_masking",
        "with documents masked from each other, the option `span` is ignored",
        [
            (
                "        count = length // self.span + 2\n",
                "        count = length // self.span + 2\n"
                "        if body.documents is not None:\n"
                "            block, count = torch.arange(length).expand_as(tokens), length\n",
            )
        ],
        check=REFERENCE,
    ),
    PlantedFault(
        "objective",
        "block_masking",
        "with packed documents, the first token of a document has a label but stays visible",
        [
            (
                "        shown = tokens.masked_fill(hide & ~kept, self.mask_token)\n",
                "        gone = hide & ~kept\n"
                "        if body.positions is not None:\n"
                "            gone = gone & (body.positions != 0)\n"
                "        shown = tokens.masked_fill(gone, self.mask_token)\n",
            )
        ],
        check=REFERENCE,
    ),
    PlantedFault(
        "objective",
        "block_masking",
        "blocks that stay visible show each token one position later, beside its label",
        [
            (
                "        shown = tokens.masked_fill(hide & ~kept, self.mask_token)\n",
                "        shown = tokens.masked_fill(hide & ~kept, self.mask_token)\n"
                "        shown = torch.where(hide & kept, tokens.roll(1, 1), shown)\n",
            )
        ],
        check="labels stay within documents",
    ),
    # -- tokenizer ---------------------------------------------------------------------------------------------------
    PlantedFault(
        "tokenizer",
        "ngram_tokenizer",
        "the cache of words is kept when another vocabulary is loaded",
        [
            ("        self._cache: dict[str, list[int]] = {}\n\n", "\n"),
            (
                "        self._set([])\n",
                "        self._cache: dict[str, list[int]] = {}\n        self._set([])\n",
            ),
        ],
        check="training is deterministic",
    ),
    PlantedFault(
        "tokenizer",
        "ngram_tokenizer",
        "pieces of equal rank are ordered by Python's hash, which differs between processes",
        [
            (
                "        pieces = [gram for gram, times in grams.items() if times >= self.at_least]\n"
                "        pieces.sort(key=lambda gram: (-grams[gram] * len(gram), gram))\n",
                "        pieces = list({gram for gram, times in grams.items() if times >= self.at_least})\n"
                "        pieces.sort(key=lambda gram: -grams[gram] * len(gram))\n",
            )
        ],
        check="training is deterministic",
    ),
    PlantedFault(
        "tokenizer",
        "ngram_tokenizer",
        "a loaded tokenizer reads pieces of at most 4 characters, the default of `longest`",
        [
            (
                "        self._set(json.loads(state))\n",
                "        self._set(json.loads(state))\n        self._reach = 4\n",
            )
        ],
        check="training is deterministic",
    ),
    # -- optimizer ---------------------------------------------------------------------------------------------------
    PlantedFault(
        "optimizer",
        "lion_lookahead",
        "weights decay twice: in the gradient and in the step",
        [
            (
                '                update = state["mean"]',
                '                grad = p.grad.add(p, alpha=group["weight_decay"])\n'
                '                update = state["mean"]',
            ),
            ('.add(p.grad, alpha=1 - group["beta1"])', '.add(grad, alpha=1 - group["beta1"])'),
            ('state["mean"].lerp_(p.grad,', 'state["mean"].lerp_(grad,'),
        ],
        check=REFERENCE,
    ),
    PlantedFault(
        "optimizer",
        "lion_lookahead",
        "biases and gains decay as well",
        [('{"params": list(vectors), "weight_decay": 0.0}', '{"params": list(vectors)}')],
        check="optimizer steps follow the contract",
    ),
    PlantedFault(
        "optimizer",
        "lion_lookahead",
        "steps are counted outside of the state, so a resumed trial averages at other steps",
        [
            ("        loss = None\n", '        loss = None\n        self.steps = getattr(self, "steps", 0) + 1\n'),
            ('if int(state["step"]) % group["every"] == 0', 'if self.steps % group["every"] == 0'),
        ],
        check="optimizer steps follow the contract",
    ),
    PlantedFault(
        "optimizer",
        "lion_lookahead",
        "slow weights are the weights themselves, so Lookahead does nothing",
        [('state["slow"] = p.detach().clone()', 'state["slow"] = p')],
        check="every option has an effect",
    ),
)


def table() -> list[str]:
    """Return the faults with the check that finds each, as Markdown."""
    lines = ["| slot | planted fault | found by |", "| --- | --- | --- |"]
    lines += [f"| {fault.slot} | {fault.fault} | {fault.check} |" for fault in FAULTS]
    by_reference = sum(fault.check == REFERENCE for fault in FAULTS)
    return [
        *lines,
        "",
        f"All {len(FAULTS)} are found, {by_reference} of them only by a reference. Their author wrote neither the",
        "references nor the kit. The checks of the day found 12; the others were added for these faults, so the",
        "table does not tell how many faults of the next author are found.",
    ]
