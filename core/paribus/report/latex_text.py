"""Text in LaTeX: escaped letters, places to break a line, and estimated widths."""

from __future__ import annotations

import re
import unicodedata
from typing import Final

from paribus.analysis.formatting import clean

LETTERS: Final = {
    "\\": r"\textbackslash{}",
    "{": r"\{",
    "}": r"\}",
    "$": r"\$",
    "&": r"\&",
    "#": r"\#",
    "_": r"\_",
    "%": r"\%",
    "~": r"$\sim$",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    "`": r"\textasciigrave{}",
    '"': r"\char34{}",
    "×": r"$\times$",  # noqa: RUF001  # times, and not the letter
    "±": r"$\pm$",
    "≥": r"$\geq$",
    "≤": r"$\leq$",
    "µ": r"$\mu$",
    "→": r"$\rightarrow$",
    "…": r"\ldots{}",
    "·": r"$\cdot$",
    "✓": r"$+$",
    "✗": r"$\times$",
}
ACCENTS: Final = {
    "\u0300": "`",
    "\u0301": "'",
    "\u0302": "^",
    "\u0303": "~",
    "\u0304": "=",
    "\u0306": "u",
    "\u0307": ".",
    "\u0308": '"',
    "\u030a": "r",
    "\u030b": "H",
    "\u030c": "v",
    "\u0327": "c",
}
WORD_PIECE: Final = re.compile(r"[(._=,/+-]{0,2}[^._=(,/+\s-]{1,14}[._=,/+-]*\s*|[(._=,/+-]+\s*")
SIGN: Final = re.compile(r"(?<![\w}-])-(?=\d)")  # a minus sign, not a hyphen
# Widths of Computer Modern at 8 points, in em: Times, which most styles use, is narrower.
WIDTHS: Final = {
    **dict.fromkeys("ijl.,:;'![]|", 0.3),
    **dict.fromkeys("frt()I- ", 0.42),
    **dict.fromkeys("acegosvxyz", 0.5),
    **dict.fromkeys("0123456789/", 0.535),
    **dict.fromkeys("mw%#", 0.9),
    **dict.fromkeys("+=<>@&×±≥≤→~ABCDEFGHJKLNOPQRSTUVXYZ", 0.83),  # noqa: RUF001  # times, and not the letter
    **dict.fromkeys("MW", 1.1),
}
MAX_UNBROKEN: Final = 12  # letters; longer words may be broken
OTHER_WIDTH: Final = 0.6  # of other ASCII characters
CODE_POINT_WIDTH: Final = 4.0  # of `U+2603`, which replaces a letter that LaTeX may not have
STRETCH: Final = 0.07  # relative increase of letter widths for each point below 8


def text_width(text: str, size: float) -> float:
    """Return the estimated width of a text in points, which is rather too large than too small."""
    widths = (WIDTHS.get(letter, OTHER_WIDTH if letter.isascii() else _non_ascii_width(letter)) for letter in text)
    signs = 0.41 * len(SIGN.findall(text))
    return size * (1 + STRETCH * (8 - size)) * (sum(widths) + signs)


def _non_ascii_width(letter: str) -> float:
    return CODE_POINT_WIDTH if _letter(letter).startswith("U+") else 0.85


def pieces(text: str) -> list[str]:
    """Return the pieces of a text between which a line may be broken; an interval in brackets is one piece."""
    words = re.findall(r"\[[^\[\]a-z]*\]\s*|\S+\s*", text)
    return [piece for word in words for piece in (WORD_PIECE.findall(word) if _is_long(word) else [word])]


def _is_long(word: str) -> bool:
    return len(word.rstrip()) > MAX_UNBROKEN and not word.startswith("[")


def breakable(text: str) -> str:
    """Escape text for LaTeX, with optional line breaks in long words."""
    joined = ""
    for piece in pieces(text):
        separator = "" if not joined or joined.endswith(" ") else "\\allowbreak{}"
        text = SIGN.sub("$-$", escaped(piece.rstrip()))
        joined += (
            separator + (text.replace(" ", "~") if piece.startswith("[") else text) + " " * (piece != piece.rstrip())
        )
    return joined.rstrip()


def escaped(text: str) -> str:
    """Escape text for LaTeX; a letter that LaTeX may not have is replaced by its code point."""
    letters = "".join(map(_letter, unicodedata.normalize("NFC", clean(text))))
    return letters.replace("--", "-{}-").replace("--", "-{}-").replace("''", "'{}'").replace("''", "'{}'")


def _letter(letter: str) -> str:
    if letter in LETTERS:
        return LETTERS[letter]
    if letter.isascii():
        return letter
    base, *marks = list(unicodedata.normalize("NFD", letter))
    if len(marks) == 1 and marks[0] in ACCENTS and base.isascii() and base.isalpha():
        return f"\\{ACCENTS[marks[0]]}{{{base}}}"
    return f"U+{ord(letter):04X}"
