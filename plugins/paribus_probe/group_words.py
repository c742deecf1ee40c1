"""Word problems of groups, a task of state tracking."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import permutations
from typing import Annotated, ClassVar, Literal, TypeAlias, final

from paribus import Corpus, CorpusTraits, Document, Range, Split
from paribus_probe.task_examples import Examples, HeldOut, KeyedRandom, Question, Seed, TaskExamples

Group: TypeAlias = Literal["Z2", "Z3", "Z5", "Z60", "S3", "A4", "S4", "A5", "S5"]
Element: TypeAlias = tuple[int, ...]  # a permutation: i is mapped to the i-th number


@final
class GroupWords(Corpus):
    """State tracking: words over a finite group; the tag of each element is the product of all up to it. "The
    Illusion of State in State-Space Models" (Merrill et al. 2024).

    The tags of `1 0 1 1` are `1 1 0 1` in Z2, the parity. An element of S or A is a permutation, `213` if it swaps 1
    and 2; the first of a word is applied first. Train with the objective `tag`. A recurrent network tracks any group;
    a fixed number of layers that compute all positions at once cannot track A5 or S5 in words of any length, unless
    TC0 is NC1.
    """

    traits: ClassVar[CorpusTraits] = {"provides": ["documents", "tags", "longer"]}

    def __init__(
        self,
        *,
        group: Annotated[Group, "cyclic group Zn, symmetric group Sn, or alternating group An"] = "Z2",
        length: Annotated[int, "elements of a word", Range(2, 65_536)] = 16,
        examples: Examples = 8192,
        held_out: HeldOut = 512,
        seed: Seed = 0,
    ) -> None:
        self._elements = _elements(group)
        self._names = tuple(_name(group, element) for element in self._elements)
        self._element = dict(zip(self._names, self._elements, strict=True))
        self._tag = {element: float(number) for number, element in enumerate(self._elements)}
        self._length = length
        self._examples = TaskExamples(self._question, examples, held_out, seed, __file__, group, length)

    def documents(self, split: Split) -> Iterator[Document]:
        return map(self._tagged, self._examples.documents(split))

    def longer_documents(self, times: int) -> Iterator[Document]:
        return map(self._tagged, self._examples.longer_documents(times))

    def classes(self) -> tuple[str, ...]:
        return self._names

    def fingerprint(self) -> str:
        return self._examples.fingerprint()

    def _question(self, rng: KeyedRandom, times: int) -> Question:
        return Question(" ".join(rng.choice(self._names) for _ in range(times * self._length)), ())

    def _tagged(self, document: Document) -> Document:
        """Return a document with a sentence and a tag for each element."""
        words = tuple(document.text.split())
        state, tags = self._elements[0], []
        for word in words:
            element = self._element[word]
            state = tuple(element[image] for image in state)
            tags.append(self._tag[state])
        return document._replace(sentences=words, labels=tuple(tags))


def _elements(group: str) -> tuple[Element, ...]:
    """Return the elements of a group as permutations, the identity first."""
    kind, degree = group[0], int(group[1:])
    if kind == "Z":
        return tuple(tuple((start + step) % degree for step in range(degree)) for start in range(degree))
    elements = permutations(range(degree))
    return tuple(element for element in elements if kind == "S" or _is_even(element))


def _is_even(element: Element) -> bool:
    inversions = sum(left > right for place, right in enumerate(element) for left in element[:place])
    return inversions % 2 == 0


def _name(group: str, element: Element) -> str:
    """Return the shift of a cyclic permutation, or the images of 1, 2, …"""
    return str(element[0]) if group.startswith("Z") else "".join(str(image + 1) for image in element)
