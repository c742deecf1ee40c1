"""Which of two values of a metric is better, where only its name is known."""

from __future__ import annotations

import re
from typing import Final, Literal

LOWER_WORDS: Final = re.compile(r"loss|losses|error|err|perplexity|ppl|nll|bits|bpb|regret|distance")
HIGHER_WORDS: Final = re.compile(
    r"accuracy|acc|f1|bleu|rouge|meteor|chrf|auc|auroc|auprc|map|ndcg|mrr|recall|precision|exact|em|top|hits|correct"
    r"|reward|returns?|score|success|win|winrate|iou|dice|psnr|ssim|r2|correlation|pearson|spearman|matthews|mcc"
)
_CAPITALS: Final = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")  # valAcc
_WORD: Final = re.compile(r"[a-z]+[0-9]*")


def direction(metric: str, better: str | None = None) -> Literal["lower", "higher"] | None:
    """Return `better` if it is given, or `lower`; None for a name such as accuracy, for which it must be given."""
    if better:
        return "higher" if better == "higher" else "lower"
    found = _WORD.findall(_CAPITALS.sub("_", metric).lower())
    words = [*found, *(word.rstrip("0123456789") for word in found)]  # f1, and acc1
    if any(map(LOWER_WORDS.fullmatch, words)):
        return "lower"
    return None if any(map(HIGHER_WORDS.fullmatch, words)) else "lower"


def direction_message(metric: str) -> str:
    """Return the message of an error about a metric whose direction is not given."""
    return f"higher values of `{metric}` may be better, and `better` is not given"
