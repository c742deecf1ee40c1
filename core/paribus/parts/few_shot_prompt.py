"""Few-shot prompts: labelled examples as lines of text, and a last line that ends before its label."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final, NamedTuple, final

from paribus.errors import Problem, SpecError

TEMPLATE: Final = "{text} : {label}"
_FIELD: Final = re.compile(r"(\{text\}|\{pair\}|\{label\})")


class LabelledText(NamedTuple):
    """Text, or a pair of texts, with the words of its label."""

    text: str
    label: str = ""
    pair: str = ""


@final
class FewShotFormat:
    """Format of few-shot prompts: "Language Models are Few-Shot Learners" (Brown et al. 2020).

    Each example is `template` with its text and its label, and a separator stands between two examples. The label comes
    last, so that a model can score what follows the prompt.
    """

    def __init__(self, template: str, separator: str = "\n", path: str = "template") -> None:
        """`path`: place of the template in error messages."""
        pieces = _FIELD.split(template)
        counts = [pieces.count(field) for field in ("{text}", "{label}", "{pair}")]
        if counts[:2] != [1, 1] or counts[2] > 1 or pieces[-2:] != ["{label}", ""] or template.startswith("{label}"):
            message, valid = f"got {template!r}", f"{{text}} once, and {{label}} once, at the end, such as {TEMPLATE!r}"
            raise SpecError(Problem(code="invalid-template", path=path, message=message, valid=valid))
        self.separator = separator
        self.reads_pairs = counts[2] > 0
        self._pieces = pieces[:-2]

    @classmethod
    def of(
        cls, template: str | None, separator: str = "\n", *, pairs: bool, endings: bool, path: str = "template"
    ) -> FewShotFormat:
        """Return the format with a template, or None for the one of classes, or of `endings`, which continue the text.

        The template has a place for the second texts of `pairs`, and for no others.
        """
        if template is None:
            template = "{text}" + " {pair}" * pairs + (" {label}" if endings else " : {label}")
        layout = cls(template, separator, path)
        if pairs != layout.reads_pairs:
            message = f"got {template!r} for {('single texts', 'pairs')[pairs]}"
            valid = "{pair} in a template for pairs only"
            raise SpecError(Problem(code="invalid-template", path=path, message=message, valid=valid))
        return layout

    def example(self, example: LabelledText) -> str:
        """Return an example with its label."""
        return self._before_label(example) + example.label

    def prompt(self, examples: Sequence[LabelledText], query: LabelledText) -> str:
        """Return the examples, and the text of the query up to its label."""
        return self.separator.join([*map(self.example, examples), self._before_label(query)])

    def _before_label(self, example: LabelledText) -> str:
        values = {"{text}": example.text, "{pair}": example.pair}
        return "".join(values.get(piece, piece) for piece in self._pieces)
