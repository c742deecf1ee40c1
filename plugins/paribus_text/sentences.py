"""Paragraphs and sentences of English prose, by rules: good enough to say where a segment may begin."""

from __future__ import annotations

import re

_BLANK = re.compile(r"\n(?:[ \t\r\f\v]*\n)+")
_LONGEST = 12  # characters of an abbreviation, with what is around it
_OPENS = "\"'([*<\u201c\u2018"  # the last two are curly quotes
_CLOSES = "\"')\\]\u201d\u2019"
# What ends a sentence, with the quotes and brackets that close behind it, before something that can begin one.
_END = re.compile(rf"[.!?…]+[{_CLOSES}]*\s+(?=[{re.escape(_OPENS)}]*[A-Z0-9À-ÖØ-ÞΑ-Ω_])")
# What ends in a dot and goes on. `etc.` and `al.` are not among them: before a capital letter they do end a sentence.
_GOES_ON = re.compile(
    rf"(?:^|[\s{re.escape(_OPENS)}])(?:e\.g|i\.e|cf|vs|approx|resp|nos?|figs?|eqs?|sec|ch|vol|pp?|eds?|"
    r"mr|mrs|ms|dr|prof|st|dept|est|(?-i:[A-Z]))\.\s+$",
    re.IGNORECASE,
)


def paragraphs(text: str) -> list[str]:
    """The parts of a text between blank lines, their own lines kept."""
    return [part for part in _BLANK.split(text.strip("\r\n")) if part.strip()]


def sentences(paragraph: str) -> list[str]:
    """The sentences of one paragraph: joined by a space, they are the paragraph with its whitespace made single."""
    text = " ".join(paragraph.split())
    found: list[str] = []
    start = 0
    for match in _END.finditer(text):
        if _GOES_ON.search(text, max(start, match.end() - _LONGEST), match.end()):
            continue
        found.append(text[start : match.end()].rstrip())
        start = match.end()
    found.append(text[start:])
    return [sentence for sentence in found if sentence]
