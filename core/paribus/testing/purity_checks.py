"""Checks that nothing but inputs and options matters: no clock, generator, environment, file or earlier batch."""

from __future__ import annotations

import gc
import inspect
import json
import os
import random
import subprocess
import sys
import sysconfig
from collections.abc import Callable, Iterator, Mapping
from contextlib import chdir, contextmanager
from pathlib import Path
from types import FrameType
from typing import Any, Final

import numpy as np
import torch
from torch import Tensor, nn

from paribus.assembly.build import as_list, build
from paribus.assembly.components import make
from paribus.errors import DataError
from paribus.evidence.process_state import process_settings
from paribus.kernels import KERNELS
from paribus.parts.batch import Stream
from paribus.slots.attention import Attention
from paribus.slots.component import Component
from paribus.slots.feedforward import FeedForward
from paribus.slots.norm import Norm
from paribus.slots.placement import Placement
from paribus.testing.host_models import DOES_NOT_APPLY, HOLDS, Case, HostModel, Verdict
from paribus.testing.option_specs import OUTSIDE_MODELS
from paribus.testing.small_model import TOLERANCE, VOCABULARY, SmallModel, max_difference, noise, tokens

LENGTH: Final = 12
SEEDS: Final = (0, 1, 2)
CHILD_SECONDS: Final = 120
PROCESS_ENVIRONMENTS: Final = (
    {"PYTHONHASHSEED": "1", "LC_ALL": "C.UTF-8", "TZ": "UTC", "USER": "first"},
    {"PYTHONHASHSEED": "2", "LC_ALL": "C", "TZ": "Asia/Kathmandu", "USER": "second"},
)
_CHILD: Final = """
import hashlib, json, sys
from paribus.assembly.components import make
from paribus.registry import index
from paribus.registry.registry import LazyRegistry
request, digest = json.load(sys.stdin), hashlib.sha256()
registry = LazyRegistry(index(plugins=request["files"]))
{program}
print(digest.hexdigest())
"""
_LIBRARY: Final = tuple({sysconfig.get_path("stdlib"), sysconfig.get_path("platstdlib")})
_PACKAGES: Final = tuple(str(Path(module.__file__ or "").parent) for module in (torch, np))
_ENVIRONMENT: Final = os._Environ.__getitem__.__code__


def construction(case: Case, host: HostModel) -> Verdict:
    """Building a component reads no clock or environment, and changes no setting of the process.

    Settings are the default dtype, threads, precision, environment, folder, and the generators of Python and NumPy.
    """
    slot, registry = case.entry.slot, case.registry

    def build_component() -> None:
        if slot in (*OUTSIDE_MODELS, "measure"):
            make(registry, slot, as_list(host.spec[slot])[0], kind=Component)
        else:
            build(host.spec, registry, VOCABULARY, KERNELS)

    with restored_settings():
        before = {**process_settings(), **generator_states()}
        try:
            build_component()  # imports read files
        except DataError as error:  # the example options name no file
            case.obstacles.append(str(error))
            return DOES_NOT_APPLY
        reads = external_reads(build_component, folder=component_folder(case))
        after = {**process_settings(), **generator_states()}
    changed = [name for name, value in after.items() if value != before[name] and name != "torch"]  # weights are drawn
    if reads:
        return f"its constructor calls {reads[0]}. Usual cause: a value that should be an option"
    if changed:
        what = f"the global generator of {changed[0]}" if changed[0] in generator_states() else changed[0]
        return f"its constructor changes {what}, for all components"
    return HOLDS


def component_folder(case: Case) -> Path:
    """Return the folder of the component's file."""
    return Path(inspect.getfile(case.component)).resolve().parent


def inputs_only(case: Case, host: HostModel) -> Verdict:
    """A forward pass reads no clock, file, environment or thread count, and leaves all random generators as they are.

    It gives the same bits for any state of the generators and any default dtype.
    """
    model = case.small_model(host)
    token_ids = model.tokens(2, LENGTH)
    with restored_settings():
        seed_generators(1)
        expected = model.hidden(token_ids)  # without the profile: lazy imports read files
        seed_generators(1)
        before = generator_states()
        reads = external_reads(lambda: model.hidden(token_ids))
        if reads:
            return f"its forward pass calls {reads[0]}. Usual cause: a value that should be an option or an input"
        for name, state in generator_states().items():
            if state != before[name]:
                return f"its forward pass changes the global generator of {name}, also in evaluation mode"
        seed_generators(2)
        torch.set_default_dtype(torch.float64)
        output = model.hidden(token_ids)
        if not torch.equal(output, expected):
            difference = max_difference(output, expected)
            return (
                f"the output changes by {difference:.2g} with other random generators and the default dtype float64. "
                "Usual cause: a tensor that is made without `dtype=x.dtype`, or a draw from a global generator"
            )
        torch.set_default_dtype(torch.float32)
        torch.set_num_threads(2)
        difference = max_difference(model.hidden(token_ids), expected)
        if difference > TOLERANCE:
            return f"the output changes by {difference:.2g} with 2 threads instead of 1"
    return HOLDS


@contextmanager
def restored_settings() -> Iterator[None]:
    """Restore generators and settings of the process."""
    states = torch.get_rng_state(), random.getstate(), np.random.get_state()
    dtype, threads, precision = torch.get_default_dtype(), torch.get_num_threads(), torch.get_float32_matmul_precision()
    environment = dict(os.environ)
    torch.set_default_dtype(torch.float32)
    try:
        with chdir(os.curdir):
            yield
    finally:
        torch.set_rng_state(states[0])
        random.setstate(states[1])
        np.random.set_state(states[2])
        torch.set_default_dtype(dtype)
        torch.set_num_threads(threads)
        torch.set_float32_matmul_precision(precision)
        if os.environ != environment:
            os.environ.clear()
            os.environ.update(environment)


def seed_generators(seed: int) -> None:
    torch.manual_seed(seed)
    random.seed(seed)
    np.random.seed(seed)  # the global generator is what a component may read


def generator_states() -> dict[str, Any]:
    numpy_state: Any = np.random.get_state()
    return {
        "torch": torch.get_rng_state().tolist(),
        "Python": random.getstate(),
        "NumPy": (numpy_state[1].tolist(), *numpy_state[2:]),
    }


def external_reads(function: Callable[[], Any], *, folder: Path | None = None) -> list[str]:
    """Return the reads of clocks, files, the environment and thread counts during a call, with their places.

    Reads by torch and NumPy themselves, and by imports, do not count. With `folder`, only reads by the code in it
    count, and it may open files; a call of `hash` counts as well, as the hashes of text differ between processes.
    """
    reads: list[str] = []

    def profile(frame: FrameType, event: str, argument: Any) -> None:
        name = _external_name(frame, event, argument)
        place = _caller(frame) if name else None
        if place is not None and _counts(place, name, folder):
            reads.append(f"`{name}` ({Path(place.f_code.co_filename).name}, line {place.f_lineno})")

    previous, collects_garbage = sys.getprofile(), gc.isenabled()
    gc.disable()  # `gc.callbacks` of other libraries may read clocks
    sys.setprofile(profile)
    try:
        function()
    finally:
        sys.setprofile(previous)
        if collects_garbage:
            gc.enable()
    return reads


def _counts(place: FrameType, name: str, folder: Path | None) -> bool:
    if folder is None:
        return name != "hash"
    return name != "open" and folder in Path(place.f_code.co_filename).resolve().parents


def _external_name(frame: FrameType, event: str, argument: Any) -> str:
    """Return the name of a function that reads something other than its arguments; "" for all others."""
    if event == "call" and frame.f_code is _ENVIRONMENT:
        return "os.environ"
    if event != "c_call":
        return ""
    module, name = getattr(argument, "__module__", None), argument.__name__
    if module == "time":
        return f"time.{name}"
    if name in ("now", "today", "utcnow") and isinstance(argument.__self__, type):
        return f"{argument.__self__.__name__}.{name}"
    if name == "open" and module in ("_io", "io", "posix", "nt"):
        return "open"
    # Called by name, not by the `__hash__` of a class of the library.
    is_hash = argument is hash and not frame.f_code.co_filename.startswith(("<frozen", *_LIBRARY))
    return "hash" if is_hash else "torch.get_num_threads" if argument is torch.get_num_threads else ""


def _caller(frame: FrameType | None) -> FrameType | None:
    """Return the innermost frame outside of Python's library; None if it belongs to torch, NumPy or an import."""
    while frame is not None:
        file = frame.f_code.co_filename
        if file.startswith(("<frozen importlib", *_PACKAGES)):
            return None
        if not file.startswith(("<frozen", *_LIBRARY)) or "site-packages" in file:
            return frame
        frame = frame.f_back
    return None


def no_state(case: Case, host: HostModel) -> Verdict:
    """The output for a batch does not depend on earlier batches, of any size and mode; no buffer changes."""
    model = SmallModel(host.spec, case.registry)
    token_ids = model.tokens(2, LENGTH)
    expected = model.hidden(token_ids)
    buffers = {path: buffer.clone() for path, buffer in model.topology.named_buffers()}
    usual_cause = "Usual cause: a value that is kept in the module between passes"
    with torch.random.fork_rng(devices=[]):
        for name, stream in _other_batches(case, host, model):
            fresh_model = SmallModel(host.spec, case.registry)
            difference = max_difference(model.hidden(stream), fresh_model.hidden(stream))
            if difference > TOLERANCE:
                return f"the output for {name} differs by {difference:.2g} after another batch. {usual_cause}"
            model.topology.train()
            model.hidden(stream)
            model.topology.eval()
            output = model.hidden(token_ids)
            if not torch.equal(output, expected):
                difference = max_difference(output, expected)
                return f"the output for a batch changes by {difference:.2g} after {name}. {usual_cause}"
    for path, buffer in model.topology.named_buffers():
        if not torch.equal(buffer, buffers[path]):
            return f"forward passes change the buffer `{path}`; expected a constant"
    return HOLDS


def _other_batches(case: Case, host: HostModel, model: SmallModel) -> Iterator[tuple[str, Stream]]:
    """Yield batches to run between two passes of one batch, with their names."""
    yield "a larger batch", Stream(model.tokens(5, 40).flip(0))
    if not model.has_fixed_length:
        other_ids = tokens(2, LENGTH, "other")
        yield "a batch at other positions", Stream(other_ids, positions=(torch.arange(LENGTH) * 2 + 3).unsqueeze(0))
        if case.all_attentions_declare(host, "documents"):
            documents = torch.arange(LENGTH).unsqueeze(0).expand(2, -1) // 5
            yield "a batch of packed documents", Stream(other_ids, documents=documents)


def inputs_kept(case: Case, host: HostModel) -> Verdict:
    """A component does not change its inputs in place, in float64 and in float32."""
    return next(
        (fault for dtype in (torch.float64, torch.float32) if (fault := _changed_inputs(case, host, dtype))), HOLDS
    )


def _changed_inputs(case: Case, host: HostModel, dtype: torch.dtype) -> str:
    model = SmallModel(host.spec, case.registry)
    model.topology.to(dtype)
    contract = {"attention": Attention, "feedforward": FeedForward, "norm": Norm, "placement": Placement}
    modules = [module for module in model.topology.modules() if isinstance(module, contract[case.entry.slot])]
    changed: list[str] = []
    handles = [module.register_forward_hook(_comparison(changed), with_kwargs=False) for module in modules]
    copies = [module.register_forward_pre_hook(_copy_input) for module in modules]
    try:
        model.hidden(model.tokens(2, LENGTH))
        if case.entry.slot == "norm" and modules:
            modules[0](10 * noise("rows", 2, 5, model.stack().shape.width).to(dtype))
    finally:
        for handle in (*handles, *copies):
            handle.remove()
    return f"the forward pass of {changed[0]} changes its input in place, in {dtype}" if changed else HOLDS


def _copy_input(module: nn.Module, arguments: Any) -> None:
    module.__dict__["_conform_input"] = arguments[0].clone()


def _comparison(changed: list[str]) -> Callable[[nn.Module, Any, Any], None]:
    def compare(module: nn.Module, arguments: Any, output: Any) -> None:
        if not torch.equal(module.__dict__.pop("_conform_input"), arguments[0]):
            changed.append(type(module).__name__)

    return compare


def training_mode(case: Case, host: HostModel) -> Verdict:
    """With a dropout of 0, training mode gives the output of evaluation mode.

    The trait `stochastic: True` declares a component that draws noise in training anyway.
    """
    if case.entry.traits.get("stochastic", False):
        return DOES_NOT_APPLY
    model = SmallModel({**host.spec, "dropout": 0.0}, case.registry)
    token_ids = model.tokens(2, LENGTH)
    expected, outputs = model.hidden(token_ids), list[Tensor]()
    model.topology.train()
    with torch.random.fork_rng(devices=[]):
        for seed in SEEDS:
            torch.manual_seed(seed)
            outputs.append(model.hidden(token_ids))
    difference = max(max_difference(output, expected) for output in outputs)
    if difference > TOLERANCE:
        return (
            f"with a dropout of 0, the output in training mode differs by {difference:.2g} from that in evaluation "
            "mode. Usual cause: dropout with a rate of its own, or statistics of the batch"
        )
    return HOLDS


def process_fault(case: Case, program: str, request: Mapping[str, Any], behaviour: str) -> str:
    """Return a message if a program updates `digest` in another way in each of two new processes.

    It has the `request` and the `registry`. The processes have other hash seeds and languages. A class of this process,
    which they do not know, is not tested.
    """
    if case.topic in case.registry.local:
        return HOLDS
    children = [
        subprocess.Popen(
            [sys.executable, "-c", _CHILD.format(program=program)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={**os.environ, **environment},
            text=True,
        )
        for environment in PROCESS_ENVIRONMENTS
    ]
    text = json.dumps({**request, "files": [str(file) for file in case.registry.files]})
    results = [child.communicate(text, CHILD_SECONDS) for child in children]
    for child, (_, errors) in zip(children, results, strict=True):
        if child.returncode and "error[unknown-component]" not in errors:  # its plugin is known to this process
            return f"a new process fails: {(errors.strip().splitlines() or ['no message'])[-1]}"
    if results[0][0] != results[1][0]:
        return f"two processes {behaviour}. Usual cause: the order of a set, `hash`, or the environment"
    return HOLDS
