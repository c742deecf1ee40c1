"""Inference of an untrained model that can be timed: forward passes, or generation if the model can generate."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, final

import torch

from paribus.assembly.devices import move_batch, synchronize
from paribus.assembly.forward_pass import BatchForward
from paribus.errors import ParibusError
from paribus.inference.decoder import Reader
from paribus.inference.generation_config import GenerationConfig
from paribus.inference.prompts import GenerationRequest, generation_request
from paribus.models.layers import configure_layers
from paribus.models.lightning_module import Model
from paribus.models.precision import FLOAT32, matmul_precision, training_precision
from paribus.parts.batch import Batch
from paribus.train.step_memory import LiveBytes

BATCHES: Final = (1, 32)  # sizes of a batch: the first shows latency, the last throughput
NEW_TOKENS: Final = 32  # of a generated text, at most


@final
class TimedInference:
    """Model that answers a batch of requests again and again; from here on it is in evaluation mode, not compiled.

    A request is an example of the training data, which the body reads without a head. If `generates`, it is the first
    half of the tokens of an example, after which the model writes a fixed number of tokens, the most probable ones.
    """

    def __init__(self, model: Model, examples: Batch, size: int, *, generates: bool) -> None:
        self.model = model.eval()
        configure_layers(model, {**(model.spec["trainer"] or {}), "compile": False}, model.device)
        self.size = size
        self.batch = move_batch(examples.rows([row % len(examples.index) for row in range(size)]), model.device)
        self.precision = training_precision(model.spec["trainer"]) or FLOAT32
        self.request = generation(model, examples, size) if generates else None

    @property
    def tokens(self) -> int:
        """Number of tokens of a batch: those that are read, or those that are written."""
        if self.request is not None:
            return sum(self.request.limits)
        return self.size * int(self.model.spec["dims"]["length"])

    def take(self, count: int) -> None:
        """Answer the batch `count` times."""
        trainer = self.model.spec["trainer"]
        with torch.inference_mode(), self.precision.context(self.model.device), matmul_precision(trainer):
            for _ in range(count):
                if self.request is None:
                    BatchForward(self.model.topology, self.batch).output("body")
                else:
                    write(self.request)

    def peak_bytes(self) -> int:
        """Return the bytes of all tensors at the peak of an answer: weights, activations, and the cache."""
        live = LiveBytes()
        for tensor in (*self.model.parameters(), *self.model.buffers()):
            live.add(tensor)
        with live:
            self.take(1)
        synchronize(self.model.device)
        return live.peak


def write(request: GenerationRequest) -> None:
    """Write the most probable tokens after each prompt, up to its limit, whatever they are."""
    decoder = request.decoder
    reader = Reader(decoder, request.prompts, request.limits, cached=decoder.has_cache)
    scores = reader.begin()
    for _ in range(request.limits[0] - 1):
        scores = reader.step(scores.argmax(-1))


def can_generate(model: Model, examples: Batch) -> bool:
    """Return whether the model can generate after the first half of an example."""
    try:
        return not generation(model, examples, 1).fills_masks  # of steps that the user chooses
    except ParibusError:
        return False


def generation(model: Model, examples: Batch, size: int) -> GenerationRequest:
    """Return the request to write after, or from, the first halves of examples."""
    source = next(part.cross for part in model.topology.parts if part.path == "body")
    tokens = examples.streams[source or "body"].tokens
    length = int(model.spec["dims"]["length"])
    ids: Sequence[Sequence[int]] = [tokens[row % len(tokens), : max(1, length // 2)].tolist() for row in range(size)]
    room = length + 1 - max(1, length // 2)
    return generation_request(model, ids, GenerationConfig(tokens=max(1, min(NEW_TOKENS, room - 1))))
