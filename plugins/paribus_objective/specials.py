"""The special tokens that an objective cannot do without."""

from __future__ import annotations

from paribus import Problem, SpecError, Vocabulary


def needed(vocabulary: Vocabulary, name: str, why: str) -> int:
    """The id of a special token, or the error of a tokenizer that has none."""
    if name not in vocabulary.specials:
        had = ", ".join(sorted(vocabulary.specials)) or "none"
        what = f"{why} needs the special token `{name}`, but the tokenizer has {had}"
        raise SpecError(Problem(code="no-special", path="tokenizer", what=what))
    return vocabulary.specials[name]
