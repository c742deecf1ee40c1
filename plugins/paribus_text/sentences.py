"""Rule-based splitting of English text into paragraphs and sentences."""

from __future__ import annotations

import re

_BLANK = re.compile(r"\n(?:[ \t\r\f\v]*\n)+")
_MAX_ABBREVIATION = 12  # characters, with those around it
_OPENS = "\"'([*<\u201c\u2018"  # the last two are curly quotes
_CLOSES = "\"')\\]\u201d\u2019"
# The end of a sentence with closing quotes and brackets, before characters that can start a sentence.
_END = re.compile(rf"[.!?…]+[{_CLOSES}]*\s+(?=[{re.escape(_OPENS)}]*[A-Z0-9À-ÖØ-ÞΑ-Ω_])")
# Abbreviations within a sentence. `etc.` and `al.` are not among them: before a capital letter they end a sentence.
_ABBREVIATION = re.compile(
    rf"(?:^|[\s{re.escape(_OPENS)}])(?:e\.g|i\.e|cf|vs|approx|resp|nos?|figs?|eqs?|sec|ch|vol|pp?|eds?|"
    r"mr|mrs|ms|dr|prof|st|dept|est|(?-i:[A-Z]))\.\s+$",
    re.IGNORECASE,
)


def paragraphs(text: str) -> list[str]:
    """Return the parts of a text between blank lines; they keep their line breaks."""
    return [part for part in _BLANK.split(text.strip("\r\n")) if part.strip()]


def sentences(paragraph: str) -> list[str]:
    """Return the sentences of one paragraph; joined by spaces they are the paragraph with collapsed whitespace."""
    text = " ".join(paragraph.split())
    parts: list[str] = []
    start = 0
    for match in _END.finditer(text):
        if _ABBREVIATION.search(text, max(start, match.end() - _MAX_ABBREVIATION), match.end()):
            continue
        parts.append(text[start : match.end()].rstrip())
        start = match.end()
    parts.append(text[start:])
    return [sentence for sentence in parts if sentence]
