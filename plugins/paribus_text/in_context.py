"""Corpus for in-context learning: labelled texts of another corpus, several to a document."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from typing import Annotated, ClassVar, Literal, final

from paribus import Corpus, CorpusTraits, Document, FewShotFormat, LabelledText, Range, Slot, Split, code_fingerprint
from paribus_text.derived import random_below, shuffled
from paribus_text.holdout import digest


@final
class InContext(Corpus):
    """Documents of several labelled texts of another corpus, as in few-shot prompts: "MetaICL: Learning to Learn In
    Context" (Min et al. 2022).

    A document has one example a line, `text : label`, drawn from the same split of the source. With `names: shuffled`
    each document gives the names of the classes to other classes, so only its earlier lines tell which name is whose;
    with `fixed`, each class keeps its name. With `predicted: labels`, as in MetaICL, examples are separated by spaces,
    and the objective `completion` with `marks: true` predicts the labels only.
    """

    traits: ClassVar[CorpusTraits] = {
        "provides": ["documents", "pairs"],
        "provides_if": {"pairs": "predicted=labels"},
        "document_facts": {"marks": 1},
    }

    def __init__(
        self,
        *,
        source: Annotated[
            Callable[[], Corpus], "corpus of texts with classes that have names", Slot("corpus")
        ] = "groups",  # type: ignore[assignment]  # a name in the spec, its factory here
        shots: Annotated[int, "labelled texts of a document", Range(2, 4096)] = 17,
        names: Annotated[Literal["shuffled", "fixed"], "names of the classes in each document"] = "shuffled",
        template: Annotated[
            str, "format of an example, with {text}, {label} and, of pairs, {pair}"
        ] = "{text} : {label}",
        predicted: Annotated[Literal["all", "labels"], "tokens that a decoder learns to predict"] = "all",
        examples: Annotated[int, "documents of the training split", Range(1, 10_000_000)] = 8192,
        held_out: Annotated[int, "documents of the validation split", Range(1, 1_000_000)] = 512,
        seed: Annotated[int, "seed of all documents", Range(0)] = 0,
    ) -> None:
        self._source = source()
        is_text = self._source.traits.get("modality", "text") == "text"
        if "labels" not in self._source.traits.get("provides", []) or not self._source.classes() or not is_text:
            raise ValueError("expected as `source` a corpus of texts with classes that have names")
        self._shots, self._names, self._predicted, self._seed = shots, names, predicted, seed
        self._format = FewShotFormat(template, "\n", "corpus.template")
        self._counts: dict[Split, int] = {"train": examples, "val": held_out}
        self._options = (shots, names, template, predicted, examples, held_out, seed)

    def documents(self, split: Split) -> Iterator[Document]:
        texts = [document for document in self._source.documents(split) if len(document.labels) == 1]
        classes = self._source.classes()
        for number in range(self._counts[split]):
            key = (self._seed, split, number)
            words = shuffled(classes, *key, "names") if self._names == "shuffled" else classes
            drawn = [texts[random_below(len(texts), *key, shot)] for shot in range(self._shots)]
            examples = [LabelledText(text.text, words[int(text.labels[0])], " ".join(text.target)) for text in drawn]
            yield self._document(f"{split} {number}", examples)

    def _document(self, name: str, examples: list[LabelledText]) -> Document:
        if self._predicted == "all":
            return Document(name, (self._format.separator.join(map(self._format.example, examples)),))
        questions = [self._format.prompt([], example).strip() for example in examples]
        pieces = [
            piece for question, example in zip(questions, examples, strict=True) for piece in (question, example.label)
        ]
        return Document(name, (pieces[0],), tuple(pieces[1:]), labels=(1.0, *[0.0, 1.0] * (len(examples) - 1)))

    def fingerprint(self) -> str:
        code = code_fingerprint(__file__, inspect.getfile(FewShotFormat))
        return digest([self._source.fingerprint(), *map(str, self._options), *code])

    def skipped_inputs(self) -> dict[str, int]:
        return self._source.skipped_inputs()
