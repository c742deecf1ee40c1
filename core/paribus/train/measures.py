"""Measures of a spec: the model and data that they read, and their results at each evaluation."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Final, NamedTuple, Protocol, final

import numpy as np
import torch
from torch import Tensor

from paribus.assembly.components import Classes, make
from paribus.assembly.forward_pass import BatchForward
from paribus.assembly.metric_names import trial_info
from paribus.datamodule.data import VALIDATION, Data
from paribus.datamodule.examples import Examples
from paribus.datamodule.token_store import EncodedCorpus
from paribus.errors import Problem, SpecError
from paribus.models.assemble import examples_of_corpus, longer_examples
from paribus.models.evaluate import compute_metrics, evaluation_mode, to_device
from paribus.models.lightning_module import Model
from paribus.parts.batch import Batch, Stream
from paribus.parts.random_draws import Draw, order
from paribus.parts.shape import Shape
from paribus.random_keys import key32
from paribus.slots.corpus import Corpus
from paribus.slots.measure import GeneratedPair, Measure, TrialInfo
from paribus.slots.tokenizer import Vocabulary

Point = Mapping[str, Any]

MAX_WEIGHTS: Final = 2 << 30  # bytes of the attention weights of all layers for a batch


class Writer(Protocol):
    """Text generation for measures. `inference` implements it, which training does not import."""

    def __call__(
        self, model: Model, text: EncodedCorpus, examples: int, *, beam: int, length_penalty: float, tokens: int | None
    ) -> Sequence[GeneratedPair]: ...


class MeasureResults(NamedTuple):
    """Results of measures."""

    metrics: dict[str, float]  # val/<measure>/<name>
    unmeasured: dict[str, str]  # the same names, with the reason for a missing value


@final
class MeasureRunner:
    """Measures of a spec, computed at each evaluation of a model."""

    def __init__(self, measures: Mapping[str, Measure], model: MeasuredModel) -> None:
        self.measures = measures
        self.model = model

    def __call__(self, curve: Sequence[Point] = (), *, is_last: bool = True) -> MeasureResults:
        """Return the results at the last point of the curve; before the end, only of measures for every evaluation."""
        results = MeasureResults({}, {})
        for name, measure in self.measures.items():
            if not is_last and not measure.traits.get("every_evaluation"):
                continue
            self.model.learning_curve = [*curve[:-1], {**curve[-1], **results.metrics}] if curve else []
            self._compute(name, measure, results)
        return results

    def _compute(self, name: str, measure: Measure, results: MeasureResults) -> None:
        try:
            with evaluation_mode(self.model.model):
                values = measure.measure(self.model)
        except (torch.OutOfMemoryError, MemoryError):  # the trained model is worth more than this number
            values = dict.fromkeys(measure.names(self.model.trial), "it needs more memory than is free")
        missing = [key for key in measure.names(self.model.trial) if key not in values]
        assert not missing, f"the measure `{name}` has no result for {missing}, which its `names` list"
        for key, value in values.items():
            if isinstance(value, str):
                results.unmeasured[f"val/{name}/{key}"] = value
            elif math.isfinite(value):
                results.metrics[f"val/{name}/{key}"] = float(value)
            else:
                results.unmeasured[f"val/{name}/{key}"] = f"it is {value}"


def measure_runner(
    spec: Mapping[str, Any], classes: Classes, model: Model, data: Data, writer: Writer | None = None
) -> MeasureRunner | None:
    """Return the measures of a spec, or None if it has none."""
    nodes = spec.get("measure") or []
    measures = {node["name"]: make(classes, "measure", node, kind=Measure) for node in nodes}
    if not measures:
        return None
    measured = measured_model(spec, classes, model, data, writer)
    for measure in measures.values():
        measure.names(measured.trial)  # a missing library is an error now, not at the end of the training
    return MeasureRunner(measures, measured)


def measured_model(
    spec: Mapping[str, Any], classes: Classes, model: Model, data: Data, writer: Writer | None = None
) -> MeasuredModel:
    """Return the model of a spec with its data, as measures read it."""
    former = ExampleFormer(
        partial(longer_examples, spec, classes, data), partial(examples_of_corpus, spec, classes, data)
    )
    return MeasuredModel(model, data, former, writer)


class ExampleFormer(NamedTuple):
    """Functions that form examples of a spec besides those of its validation split."""

    longer: Callable[[int], Examples]
    of_corpus: Callable[[Corpus], Examples]


@final
class MeasuredModel:
    """A model with its data; implements `slots.measure.EvaluatedModel`."""

    def __init__(self, model: Model, data: Data, former: ExampleFormer, writer: Writer | None = None) -> None:
        self.model = model
        self.data = data
        self._former = former
        self._writer = writer
        self.learning_curve: Sequence[Point] = ()
        self.trial: TrialInfo = trial_info(model.spec, model.assembled)
        self._examples: dict[int, Examples] = {}

    @property
    def shape(self) -> Shape:
        return self.model.topology.stage("body").shape

    @property
    def vocabulary(self) -> Vocabulary:
        return self.data.encoded.vocabulary

    @property
    def device(self) -> torch.device:
        return self.model.device

    def encode(self, texts: Sequence[str]) -> Sequence[Sequence[int]]:
        return self.data.encoded.tokenizer.encode_batch(texts)

    def batches(self, examples: int, *, times: int = 1, corpus: Corpus | None = None) -> Iterator[Batch]:
        if corpus is not None:
            assert times == 1, "examples of another corpus are as long as in training"
            source = self._former.of_corpus(corpus)
            index = torch.from_numpy(np.sort(order(0, VALIDATION, source.count)[:examples]))
        else:
            source = self.examples(times)
            index = torch.arange(min(examples, source.count, self.data.val_count if times == 1 else source.count))
        size = min(self.data.batch_size, max(1, MAX_WEIGHTS // self._weight_bytes(times)))
        for rows in index.split(size):
            if len(rows):  # `split` of an empty tensor is one empty tensor
                yield to_device(source.batch(Draw(0, VALIDATION, rows)), self.model)

    def _weight_bytes(self, times: int) -> int:
        """Return the bytes of the attention weights of all layers for one example, in float32."""
        topology = self.model.topology
        length: int = times * self.model.spec["dims"]["length"]
        shapes = (topology.stage(part.path).shape for part in topology.parts)
        return 4 * length * length * max(1, sum(shape.layers * shape.heads for shape in shapes))

    def examples(self, times: int) -> Examples:
        """Return the validation split in examples `times` as long; made once."""
        if times not in self._examples:
            self._examples[times] = self.data.val_examples if times == 1 else self._former.longer(times)
        return self._examples[times]

    def metrics(self, batches: Iterable[Batch]) -> dict[str, float]:
        batch_list = list(batches)
        return (
            {name.removeprefix("val/"): value for name, value in compute_metrics(self.model, batch_list).items()}
            if batch_list
            else {}
        )

    def token_batch(self, tokens: Tensor) -> Batch:
        return Batch({"body": Stream(tokens.to(self.device))}, {}, torch.arange(len(tokens)))

    def logits(self, batch: Batch) -> Tensor:
        return self.model.run(batch).head_logits(self.model.evaluated[0])

    def attention_weights(self, batch: Batch) -> list[Tensor]:
        run = BatchForward(self.model.topology, batch, capture=True)
        captured = (layer.get("weights") for layer in run.output("body").captured)
        return [weights[:, :, : weights.shape[-1]] for weights in captured if weights is not None]

    def generate(
        self, examples: int, *, beam: int = 1, length_penalty: float = 0.0, tokens: int | None = None
    ) -> Sequence[GeneratedPair]:
        if self._writer is None:
            message = "text generation is not available here"
            valid = "paribus.measure, `paribus train` or a study"
            raise SpecError(Problem(code="generation-unavailable", path="measure", message=message, valid=valid))
        return self._writer(
            self.model, self.data.encoded, examples, beam=beam, length_penalty=length_penalty, tokens=tokens
        )

    def draw(self, examples: int) -> Draw:
        return Draw(key32("measure"), VALIDATION, torch.arange(examples))
