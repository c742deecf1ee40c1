"""A saved model, back in memory."""

from __future__ import annotations

from paribus.registry import Registry
from paribus.saved import Saved, unbound
from paribus.slots.tokenizer import Vocabulary
from paribus.specs import resolved
from paribus.train.assemble import assembled, known_vocabulary, text_of
from paribus.train.checkpoint import load_weights
from paribus.train.model import Model


def restored(found: Saved, classes: Registry, vocabulary: Vocabulary | None = None) -> Model:
    """The model of a folder. A `vocabulary` that is known already spares reading the corpus for it."""
    spec = resolved(unbound(found.spec), registry=classes)
    if vocabulary is None:
        vocabulary = text_of(spec, classes).vocabulary if found.trial else known_vocabulary(spec, classes)
    model = assembled(spec, classes, vocabulary)
    if found.dtype == "float64":
        model.double()
    load_weights(found.weights, model)
    model.tokenizer = found.tokenizer
    return model
