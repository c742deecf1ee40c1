"""A saved model, back in memory."""

from __future__ import annotations

from paribus.registry import Registry
from paribus.saved import Saved, unbound
from paribus.slots.tokenizer import Vocabulary
from paribus.specs import resolved
from paribus.train.assemble import assembled, known_vocabulary, text_of
from paribus.train.checkpoint import load_weights
from paribus.train.model import Model
from paribus.train.text import Text, read_text


def restored(found: Saved, classes: Registry, vocabulary: Vocabulary | None = None) -> Model:
    """The model of a folder. Its corpus is read where the folder has no tokenizer, as of a trial of an earlier version,
    and where no `vocabulary` is given that is known already."""
    spec = resolved(unbound(found.spec), registry=classes)
    text = read_text(found, spec, classes)
    if text is None and vocabulary is None and found.trial:
        read = text_of(spec, classes)
        vocabulary = read.vocabulary
        text = Text.of(read) if read.tokenizer_fingerprint == found.tokenizer else None
    if vocabulary is None:
        vocabulary = known_vocabulary(spec, classes) if text is None else text.vocabulary
    model = assembled(spec, classes, vocabulary)
    if found.dtype == "float64":
        model.double()
    load_weights(found.weights, model)
    model.tokenizer, model.text, model.flops = found.tokenizer, text, found.flops
    return model
