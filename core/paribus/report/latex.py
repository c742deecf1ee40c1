"""LaTeX tables for a paper, with booktabs and a full caption."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator
from typing import Final

from paribus.analysis.formatting import Grid, clean

LETTERS: Final = {
    "\\": r"\textbackslash{}",
    "{": r"\{",
    "}": r"\}",
    "$": r"\$",
    "&": r"\&",
    "#": r"\#",
    "_": r"\_",
    "%": r"\%",
    "~": r"\textasciitilde{}",
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
SIGN: Final = re.compile(r"(?<![\w}-])-(?=\d)")  # a minus, and no hyphen


def latex(grid: Grid, label: str) -> str:
    r"""One `table` environment, and one for each further grid. It needs `\usepackage{booktabs}`, and nothing else."""
    further = [latex(grid_of_extra, f"{label}-{grid_of_extra.title}") for grid_of_extra in grid.extra]
    return "\n".join([*_lines(grid, label), "", *further])


def _lines(grid: Grid, label: str) -> Iterator[str]:
    yield "% needs \\usepackage{booktabs}"
    yield r"\begin{table}[t]"
    yield r"  \centering"
    sentences = [grid.title + ".", *(line for mark, lines in grid.remarks if mark == "·" for line in lines)]
    yield rf"  \caption{{{escaped(' '.join(sentences))}}}"
    yield rf"  \label{{tab:{re.sub(r'[^a-z0-9]+', '-', label.lower()).strip('-') or 'table'}}}"
    yield rf"  \begin{{tabular}}{{{''.join('r' if head.align_right else 'l' for head in grid.columns)}}}"
    yield r"    \toprule"
    yield f"    {' & '.join(escaped(head.name) for head in grid.columns)} \\\\"
    yield r"    \midrule"
    for row in grid.rows:
        yield f"    {' & '.join(_cell(cell.text) for cell in row)} \\\\"
    yield r"    \bottomrule"
    yield r"  \end{tabular}"
    for mark, lines in grid.remarks:
        for line in lines if mark in "!-" else ():
            yield r"  \par\smallskip\footnotesize " + (
                rf"\textbf{{!}} {escaped(line)}" if mark == "!" else escaped(line)
            )
    yield r"\end{table}"


def _cell(text: str) -> str:
    """Return a cell; a leading `[` or `*` would be taken for an argument of the row before."""
    escaped_text = SIGN.sub("$-$", escaped(text))
    return f"{{}}{escaped_text}" if text.startswith(("[", "*")) else escaped_text


def escaped(text: str) -> str:
    """Escape text for LaTeX; a letter that LaTeX may lack is replaced by its code point."""
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
