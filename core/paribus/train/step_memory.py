"""Memory of a training step, predicted by running the step on tensors without data.

The steps run under torch's fake tensors, which have shapes and storages but no memory, and every storage is counted
while it lives. So the prediction follows the kernels, the chunks of the loss, checkpointed layers and the optimizer.
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Any, Final, NamedTuple

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter, tree_map_only

from paribus.assembly.build import ModelParts
from paribus.assembly.cost import count_parameters, scored_positions
from paribus.assembly.devices import training_device
from paribus.assembly.freezing import untrained_parameters
from paribus.datamodule.synthetic_corpus import COUNT, encode_synthetic_corpus
from paribus.models.assemble import BYTES_PER_PARAMETER, build_data, meta_model, training_module
from paribus.models.averaged_weights import average_type
from paribus.models.layers import configure_layers
from paribus.models.lightning_module import Model
from paribus.models.optimizer_schedule import build_optimizer
from paribus.models.precision import Precision, training_precision
from paribus.parts.batch import Batch
from paribus.parts.chunked_loss import CHUNK_LOGITS
from paribus.registry import Registry
from paribus.specs import resolved
from paribus.specs.fields import EMA_DECAY
from paribus.specs.trainer_options import requested_processes, uses_sharding
from paribus.storage.saved_model import read_model, unbound

Spec = Mapping[str, Any]

BYTES: Final = 4  # of a float32
SAVED_VALUES: Final = 16  # of the width, for each token and layer: norms, q, k, v, attention, projections, feed-forward
SAVED_WEIGHTS: Final = 2  # scores and weights of each head, where the kernel keeps them
SAVED_LOGITS: Final = 3  # logits, their log-softmax and their gradient
SMALL_SHARE: Final = 0.2  # of the free memory: a step that needs less by the simple rule is not simulated
DOCUMENT_TOKENS: Final = 25  # tokens that a synthetic document has at least
MAX_TOKENS: Final = 1 << 15  # of a simulated batch: the chunks of a large one take minutes
MAX_LAYERS: Final = 256  # of a simulated step
SHALLOW: Final = (2, 3, 4)  # depths of three models, in periods of their layers, that tell the memory of a deep one
MAX_LENGTH: Final = 1 << 17  # tokens of a simulated example: making longer ones takes minutes
MAX_BYTES: Final = 1 << 45  # 32 TiB
CHUNK: Final = 3 << 20  # bytes of a chunk of attention for each thread: weights, scores and their gradient
CHUNK_SHARE: Final = 0.01  # of the memory: a simulation has few chunks, as one takes as long whatever its size
LOSS_CHUNKS: Final = 8  # of the logits of a simulated batch, at least
MAX_THREADS: Final = 256  # of a simulation
EXAMPLES: Final = 2  # formed from the synthetic corpus, and repeated to the size of a batch
RNN_WORKSPACE: Final = 62  # bytes per element of the output, of oneDNN's LSTM and GRU on a CPU; measured


class StepMemory(NamedTuple):
    """Bytes of the tensors of a training step at its peak, on each device."""

    parameters: int  # and buffers, also those of a teacher, and the average of `trainer.ema_decay`
    gradients: int
    optimizer: int
    activations: int  # what else there is at the peak
    simulated: bool  # False: by a simple rule, since the step does not run without data, or is too large

    @property
    def total(self) -> int:
        return self.parameters + self.gradients + self.optimizer + self.activations


class Shortage(NamedTuple):
    """Step that needs more memory than is free."""

    needed: int
    free: int


def step_memory(spec: Spec, classes: Registry) -> StepMemory:
    """Return the memory of a training step of a resolved spec, without `trainer.compile`, which needs less.

    Its corpus is not read, except a few images. A step that does not run without data, such as one whose shapes depend
    on the result of a layer, is estimated by `rule_of_thumb`, and so is one that is too large to simulate in a minute.
    """
    model = meta_model(spec, classes)
    estimate = rule_of_thumb(spec, model)
    if is_beyond_simulation(spec, estimate):
        return estimate
    with (
        suppress(Exception),  # any, of any component: a step that does not run here may run with data
        _large_chunks(spec, model, int(CHUNK_SHARE * estimate.total)),
    ):
        examples = _examples(spec, classes)
        for is_batch_fake in (True, False):  # a batch without data, unless the model reads values from it
            with suppress(Exception):  # as above
                return _simulated(spec, classes, examples, is_batch_fake)
    return estimate


@contextmanager
def _large_chunks(spec: Spec, model: ModelParts, size: int) -> Iterator[None]:
    """Compute attention and the loss in chunks of about `size` bytes, if theirs are smaller.

    Those of attention are proportional to the number of threads.
    """
    device, threads, logits = training_device(spec).type, torch.get_num_threads(), dict(CHUNK_LOGITS)
    usual = CHUNK_LOGITS.get(device, CHUNK_LOGITS["cpu"])
    scored = _most_rows(spec) * scored_positions(model, spec["dims"]["length"])
    most = scored * model.topology.stage("body").shape.vocabulary // LOSS_CHUNKS
    torch.set_num_threads(max(threads, min(MAX_THREADS, size // CHUNK)))
    CHUNK_LOGITS[device] = max(usual, min(most, size // (BYTES * SAVED_LOGITS)))
    try:
        yield
    finally:
        torch.set_num_threads(threads)
        CHUNK_LOGITS.clear()
        CHUNK_LOGITS.update(logits)


def is_beyond_simulation(spec: Spec, estimate: StepMemory) -> bool:
    """Return whether a step has so many layers or tokens, or so much memory, that a simulation would take minutes."""
    dims = spec["dims"]
    return dims["layers"] > MAX_LAYERS or dims["length"] > MAX_LENGTH or estimate.total > MAX_BYTES


def memory_shortage(spec: Spec, classes: Registry) -> Shortage | None:
    """Return the memory that a step needs if it is more than is free on its device, else None.

    A step that is small by the simple rule is not simulated, which takes seconds.
    """
    free = free_memory(training_device(spec))
    estimate = rule_of_thumb(spec, meta_model(spec, classes))
    if estimate.total <= SMALL_SHARE * free:
        return None
    needed = (estimate if is_beyond_simulation(spec, estimate) else step_memory(spec, classes)).total
    return Shortage(needed, free) if needed > free else None


def free_memory(device: torch.device) -> int:
    """Return the free bytes of a GPU, or of this machine within the limit of this process's container."""
    if device.type == "cuda":
        unused = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)  # which torch's cache holds
        return int(torch.cuda.mem_get_info(device)[0]) + unused
    limits = [1 << 62]
    with suppress(OSError, StopIteration, ValueError):
        lines = Path("/proc/meminfo").read_text(encoding="utf-8").splitlines()
        limits.append(int(next(line for line in lines if line.startswith("MemAvailable")).split()[1]) * 1024)
    with suppress(OSError, ValueError):  # "max": no limit
        folder = Path("/sys/fs/cgroup")
        limit, used = (int((folder / name).read_text(encoding="utf-8")) for name in ("memory.max", "memory.current"))
        limits.append(limit - used)
    return max(0, min(limits))


def rule_of_thumb(spec: Spec, model: ModelParts) -> StepMemory:
    """Return the memory of a step by a simple rule.

    Parameters with their gradients and AdamW's moments; for each token of a batch, `SAVED_VALUES` of the width in each
    layer, the attention weights where the kernel keeps them, and `SAVED_LOGITS` of the vocabulary where it is scored:
    too much where the loss is computed in chunks, which not every objective does.
    """
    length, shape = spec["dims"]["length"], model.topology.stage("body").shape
    values = SAVED_LOGITS * scored_positions(model, length) * shape.vocabulary
    for part in model.topology.parts:
        stage = model.topology.stage(part.path)
        weights = SAVED_WEIGHTS * stage.shape.heads * length if "eager" in stage.kernels(queries=length) else 0
        values += stage.shape.layers * length * (SAVED_VALUES * stage.shape.width + weights)
    parameters = BYTES * count_parameters(model.children())
    trained = BYTES * count_parameters(model.children(), untrained_parameters(model, spec.get("freeze")))
    moments = (BYTES_PER_PARAMETER // BYTES - 2) * trained
    averages = trained if has_averages(spec) else 0
    activations = int(micro_batch(spec) * values * BYTES)
    return StepMemory(parameters + averages, trained, moments, activations, simulated=False)


def has_averages(spec: Spec) -> bool:
    return (spec["trainer"] or {}).get(EMA_DECAY.name) is not None


def micro_batch(spec: Spec) -> int:
    """Return the number of examples of a micro-batch on each device."""
    trainer = spec["trainer"] or {}
    shares = int(trainer.get("accumulate_grad_batches", 1)) * (requested_processes(trainer) or 1)
    return math.ceil(int(spec["data"]["batch"]) / shares)


# -- simulation ------------------------------------------------------------------------------------------------------


class LiveBytes(TorchDispatchMode):
    """Bytes of the storages that live: `now`, and at most since `reset_peak`."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch leaves it untyped
        self.now = self.peak = 0
        self._sizes: dict[int, int] = {}

    def reset_peak(self) -> None:
        self.peak = self.now

    def add(self, tensor: Tensor) -> None:
        storage = tensor.untyped_storage()
        key: int = storage._cdata
        if key not in self._sizes:
            self._sizes[key] = storage.nbytes()
            self.now += self._sizes[key]
            self.peak = max(self.peak, self.now)
            weakref.finalize(storage, self._drop, key)

    def _drop(self, key: int) -> None:
        self.now -= self._sizes.pop(key)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.ops.aten._local_scalar_dense.default and _is_fake_float(args[0]):
            return 1.0  # such as the norm of a parameter that an optimizer scales its step by
        result = func(*args, **(kwargs or {}))
        if func is torch.ops.aten.mkldnn_rnn_layer.default and not result[3].numel():  # torch's fake has no workspace
            workspace = result[0].new_empty(RNN_WORKSPACE * result[0].numel(), dtype=torch.uint8)
            result = (*result[:3], workspace)
        for tensor in tree_iter(result):
            if isinstance(tensor, Tensor):
                self.add(tensor)
        return result


def _is_fake_float(tensor: Tensor) -> bool:
    return isinstance(tensor, FakeTensor) and tensor.is_floating_point()


class _Peaks(NamedTuple):
    """Bytes of the tensors of a simulated step."""

    parameters: int
    gradients: int
    optimizer: int
    passes: int  # peak of the forward and backward passes
    update: int  # peak of the optimizer's step


def _simulated(spec: Spec, classes: Registry, examples: Batch, is_batch_fake: bool) -> StepMemory:
    """Return the memory of a simulated step. That of a large batch follows from two smaller ones."""
    trainer, rows = spec["trainer"] or {}, micro_batch(spec)
    if uses_sharding(trainer):
        raise NotImplementedError("sharded parameters")
    most = _most_rows(spec)
    peaks = _deep_peaks(spec, classes, _repeated(examples, min(rows, most)), is_batch_fake)
    passes = peaks.passes
    if rows > most:
        half = _deep_peaks(spec, classes, _repeated(examples, most // 2), is_batch_fake).passes
        passes += (passes - half) * (rows - most) // (most - most // 2)
    resting = peaks.parameters + peaks.gradients + peaks.optimizer
    processes = requested_processes(trainer) or 1
    gradients = peaks.gradients * (1 if processes == 1 else 2)  # DDP sums gradients in a copy of them
    activations = max(0, max(passes, peaks.update) - resting)
    return StepMemory(peaks.parameters, gradients, peaks.optimizer, activations, simulated=True)


def _most_rows(spec: Spec) -> int:
    """Return the maximum number of examples of a simulated batch."""
    return max(2, MAX_TOKENS // int(spec["dims"]["length"]))


def _deep_peaks(spec: Spec, classes: Registry, batch: Batch, is_batch_fake: bool) -> _Peaks:
    """Return the peaks of a model, if it is deep from three shallow ones, whose peaks are linear in their depth."""
    period, layers = _period(spec), spec["dims"]["layers"]
    depths = [count * period for count in SHALLOW]
    if _layers_alike(spec) and sum(depths) < layers and (layers - depths[-1]) % period == 0:
        with suppress(Exception):  # as in `step_memory`: a component may need more layers
            first, second, third = (_peaks(_of_depth(spec, depth), classes, batch, is_batch_fake) for depth in depths)
            steps = [after - before for before, after in zip(second, third, strict=True)]
            if steps == [after - before for before, after in zip(first, second, strict=True)]:
                count = (layers - depths[-1]) // period
                return _Peaks(*(last + count * step for last, step in zip(third, steps, strict=True)))
    return _peaks(spec, classes, batch, is_batch_fake)


def _layers_alike(spec: Spec) -> bool:
    """Return whether a model with fewer layers has the same kinds of layers, as far as its spec tells."""
    counts = [part["dims"]["layers"] for part in spec["parts"].values() if "layers" in part.get("dims", {})]
    return not counts and all(
        value is None
        for value in (spec["dims"]["groups"], spec["dims"]["loops"], spec.get("teacher"), spec.get("freeze"))
    )


def _period(spec: Spec) -> int:
    """Return the number of layers after which the components of the layers repeat."""
    nodes = [spec, *spec["parts"].values(), *(part.get("cross") or {} for part in spec["parts"].values())]
    return math.lcm(*(len(value) for node in nodes for value in node.values() if isinstance(value, list) and value))


def _of_depth(spec: Spec, layers: int) -> Spec:
    return {**spec, "dims": {**spec["dims"], "layers": layers}}


def _peaks(spec: Spec, classes: Registry, batch: Batch, is_batch_fake: bool) -> _Peaks:
    trainer = spec["trainer"] or {}
    device, fake = training_device(spec), FakeTensorMode(allow_non_fake_inputs=True)
    precision = training_precision(trainer)
    if precision is None:
        raise NotImplementedError(f"the precision {trainer['precision']}")
    model = _fake_model(spec, classes, fake, device, precision)
    if is_batch_fake:
        batch = tree_map_only(Tensor, fake.from_tensor, batch)
    with fake if is_batch_fake else nullcontext():
        batch = tree_map_only(Tensor, lambda tensor: tensor.to(device), batch)
    optimizer = build_optimizer(model.optimizer, model)
    live = LiveBytes()
    for part in filter(None, (model, model.teacher)):
        for tensor in (*part.parameters(), *part.buffers()):
            live.add(tensor)
    parameters = live.now
    micro_batches = min(2, trainer.get("accumulate_grad_batches", 1))
    with fake if is_batch_fake else nullcontext(), live:
        for _ in range(micro_batches):
            with precision.context(device):
                loss = model.loss(batch)
            loss.backward()
            del loss
        gradients = sum(
            parameter.grad.untyped_storage().nbytes() for parameter in model.parameters() if parameter.grad is not None
        )
        passes = live.peak
        optimizer.step()  # the first step makes its state, which later passes have beside them
        live.reset_peak()
        optimizer.step()
        update = live.peak
        optimizer.zero_grad()
    averages = _average_bytes(model) if has_averages(spec) else 0
    state = live.now - parameters
    return _Peaks(parameters + averages, gradients, state, passes + state + averages, update + averages)


def _average_bytes(model: Model) -> int:
    trainable = (parameter for parameter in model.parameters() if parameter.requires_grad)
    return sum(parameter.numel() * average_type(parameter).itemsize for parameter in trainable)


def _fake_model(
    spec: Spec, classes: Registry, fake: FakeTensorMode, device: torch.device, precision: Precision
) -> Model:
    """Return the model of a spec, and its teacher, whose tensors have no data."""
    model = training_module(meta_model(spec, classes), spec, classes)
    name = (spec.get("teacher") or {}).get("name")
    if name is not None:
        teacher = resolved(unbound(read_model(name).spec), registry=classes)
        model.set_teacher(training_module(meta_model(teacher, classes), teacher, classes))
    model.to(precision.parameters)
    with fake:
        for part in filter(None, (model, model.teacher)):
            part.to_empty(device=device)
    configure_layers(model, {**(spec["trainer"] or {}), "compile": False}, device)
    return model.train()


def _examples(spec: Spec, classes: Registry) -> Batch:
    """Return a batch of a few examples of a synthetic corpus."""
    count = max(COUNT, 10 * spec["dims"]["length"] // DOCUMENT_TOKENS)
    text = encode_synthetic_corpus(spec, classes, count)
    data = {**spec["data"], "batch": min(micro_batch(spec), EXAMPLES), "bucket": 0, "workers": 0}
    trainer = {**(spec["trainer"] or {}), "accumulate_grad_batches": 1}
    return build_data({**spec, "data": data, "trainer": trainer}, classes, text).step(0)


def _repeated(batch: Batch, rows: int) -> Batch:
    """Return a batch of `rows` examples: those of a smaller one, as often as it takes."""
    index = torch.arange(rows) % len(batch.index)
    repeated: Batch = tree_map_only(Tensor, lambda tensor: tensor[index] if tensor.ndim else tensor, batch)
    return repeated
