"""Half-byte tokenizer: each byte of UTF-8 as two tokens."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, ClassVar, Final, final

from paribus import DataError, Problem, Range, SpecError, Tokenizer, TokenizerTraits, Vocabulary, hookimpl

SPECIALS: Final = ("pad", "cls", "sep", "mask", "bos", "eos")
HALVES: Final = 16


@final
class HalfBytes(Tokenizer):
    """Half-byte tokenizer: a byte of UTF-8 is two tokens of four bits each, for the smallest of embedding tables; after
    "ByT5" (Xue et al. 2021), where it is one.

    It needs no training and restores every text. Ids 0-15 are the halves; special tokens and sentinels follow.
    """

    traits: ClassVar[TokenizerTraits] = {"provides": [*SPECIALS, "sentinels"], "fixed": True}

    def __init__(
        self,
        *,
        low_first: Annotated[bool, "write the low half of a byte before the high half"] = False,
        sentinels: Annotated[int, "number of sentinel tokens, which stand for removed spans", Range(0, 4096)] = 32,
    ) -> None:
        self._low_first = low_first
        self._sentinels = sentinels

    def train(self, texts: Iterable[str], size: int | None) -> None:
        needed = self.vocabulary().size
        if size is not None and size < needed:
            message = f"half-bytes needs {needed:,} ids, got {size:,}: 16 halves, special tokens and sentinels"
            raise SpecError(Problem(code="vocabulary-too-small", path="dims.vocabulary", message=message))

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        return [self._halves(text.encode("utf-8", "surrogatepass")) for text in texts]

    def decode(self, ids: Sequence[int]) -> str:
        names, pieces, run = self._names(), [], []
        for token in ids:
            if 0 <= token < HALVES:
                run.append(token)
                continue
            pieces += [self._text(run), names.get(token, f"<no token {token}>")]
            run = []
        return "".join([*pieces, self._text(run)])

    def piece(self, token: int) -> str:
        return f"{token:x}" if 0 <= token < HALVES else self.decode([token])

    def vocabulary(self) -> Vocabulary:
        specials = {name: HALVES + place for place, name in enumerate(SPECIALS)}
        start = HALVES + len(SPECIALS)
        return Vocabulary(start + self._sentinels, specials, tuple(range(start, start + self._sentinels)))

    def state(self) -> bytes:
        return json.dumps({"low_first": self._low_first, "sentinels": self._sentinels}, sort_keys=True).encode()

    def load(self, state: bytes) -> None:
        try:
            content = json.loads(state)
            self._low_first, self._sentinels = bool(content["low_first"]), int(content["sentinels"])
        except (ValueError, KeyError, TypeError) as error:
            message = f"invalid state of the tokenizer `half-bytes`: {error}"
            raise DataError(Problem(code="tokenizer-state", path="tokenizer", message=message)) from error

    def _halves(self, text: bytes) -> list[int]:
        pairs = (divmod(byte, HALVES) for byte in text)
        return [half for high, low in pairs for half in ((low, high) if self._low_first else (high, low))]

    def _text(self, run: Sequence[int]) -> str:
        """Return the text of halves; bytes that are no UTF-8 are written as \\xff, and a half alone as \\f."""
        first, second = run[::2], run[1::2]
        alone = f"\\{run[-1]:x}" if len(run) % 2 else ""
        highs, lows = (second, first) if self._low_first else (first, second)
        text = bytes(high * HALVES + low for high, low in zip(highs, lows, strict=False))
        try:
            return text.decode("utf-8", "surrogatepass") + alone
        except UnicodeDecodeError:
            return text.decode("utf-8", "backslashreplace") + alone

    def _names(self) -> dict[int, str]:
        """Return the text of each special token and sentinel."""
        vocabulary = self.vocabulary()
        names = {token: f"<{name}>" for name, token in vocabulary.specials.items()}
        return names | {token: f"<sentinel {place}>" for place, token in enumerate(vocabulary.sentinels)}


@hookimpl
def tokenizer() -> Mapping[str, type[Tokenizer]]:
    return {"half-bytes": HalfBytes}
