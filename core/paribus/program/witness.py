"""A training script's witness: digests of its initial weights and batches, for the certificate of its study.

This file imports the standard library only and uses torch, numpy or JAX where the script has imported them. A script
whose Python has no Paribus may have a copy of it.
"""

from __future__ import annotations

import atexit
import ctypes
import hashlib
import inspect
import json
import math
import os
import random
import sys
import weakref
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final, final

FILE: Final = "PARIBUS_WITNESS"  # variable with the file that the study reads; without it nothing is written
VERSION: Final = 1
TRAINING: Final = "train"
IGNORED: Final = -100  # target without a loss, as in PyTorch
FULL_BYTES: Final = 1 << 19  # of a tensor of a batch; of a larger one, evenly spaced values are digested
DIGITS: Final = 16
DRAWN_FLAG: Final = "_is_hf_initialized"  # of a parameter that transformers does not draw again
STD_ERRORS: Final = 8  # standard errors by which means and spreads of two draws of one distribution never differ
FIRST: Final = 4096  # values whose distance from their mean is digested where all have one sign
FEW: Final = 32  # numbers, whose spread is known roughly
RARE: Final = 1e4  # of such draws, one may be refused
DISTRIBUTED: Final = "module."  # before the names of a model in DistributedDataParallel
WRAPPERS: Final = ("_orig_mod.", "_fsdp_wrapped_module.", "_checkpoint_wrapped_module.")  # in names of wrapped models
RANKS: Final = ("RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "LOCAL_RANK")
INPUTS: Final = ("input_ids", "inputs", "tokens", "x", "pixel_values", "image", "images")
TARGETS: Final = ("labels", "label", "targets", "target", "y")
OTHER_OPTIONS: Final = ("params", "param_names", "foreach", "fused", "capturable", "differentiable", "initial_lr")
PACKAGES: Final = (
    *("torch", "numpy", "jax", "jaxlib", "flax", "tensorflow", "keras", "mlx"),
    *("transformers", "lightning", "pytorch_lightning", "accelerate", "triton", "flash_attn", "xformers"),
)


def witness() -> Witness:
    """Return the witness of this process. Outside of a study it writes nothing."""
    path = os.environ.get(FILE, "")
    if path not in _WITNESSES:
        _WITNESSES[path] = Witness(path)
    return _WITNESSES[path]


@final
class Witness:
    """Writes what a study compares between the trials of a pair to the file that the study has named."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._process = os.getpid()
        self._tensors: dict[str, Any] = {}
        self._splits: dict[str, _Batches] = {}
        self._models: list[tuple[str, Any]] = []  # until the first batch
        self._optimizers: _Optimizers | None = None
        if path:
            atexit.register(self._write_batches)

    @property
    def is_active(self) -> bool:
        """Whether this process runs in a study."""
        return bool(self._path) and os.getpid() == self._process  # not in a worker that loads data

    def model(self, model: Any, name: str = "") -> None:
        """Record the initial weights of a model: call it once, before the first step.

        `model` is a `torch.nn.Module`, a module or a state of Flax, or arrays in nested mappings and sequences. Several
        models of one script need a `name` each.
        """
        if not self.is_active:
            return
        count = self._splits[TRAINING].count if TRAINING in self._splits else 0
        new = {}
        known: set[int] = set()
        for path, value, is_buffer in _named_tensors(model):
            full_name = f"{name}.{path}" if name else path
            flags = {"buffer": is_buffer, "tied": id(value) in known}
            known.add(id(value))
            tensor = {**_describe(full_name, value), **{flag: True for flag, is_set in flags.items() if is_set}}
            if full_name not in self._tensors:
                new[full_name] = tensor
            elif not count and self._tensors[full_name] != tensor:
                raise ValueError(f"Another model has recorded `{full_name}`: give each a name, `model(…, name=…)`.")
        self._tensors |= new
        if new:
            self._write({"tensors": new, "after": count})
        if new and not count:
            self._models.append((name, model))
        self._watch_optimizers()

    def batch(self, *batch: Any, split: str = TRAINING, **named: Any) -> None:
        """Record a batch: `batch(x, y)`, `batch(x=…, y=…)`, or the mapping or pair that a loader yields.

        `x` are the inputs and `y` the targets. Batches of an evaluation have `split="validation"`. Pass tensors before
        they are moved to an accelerator, so that no step waits for a copy.
        """
        if not self.is_active:
            return
        if split == TRAINING and self._models:
            self._check_weights()
        only = batch[0] if len(batch) == 1 and not named else None
        batches = self._splits.setdefault(split, _Batches())
        if isinstance(only, Mapping):
            batches.add((), only)
        else:
            batches.add(tuple(only) if isinstance(only, list | tuple) else batch, named)
        if batches.count & (batches.count - 1) == 0:  # so that trials of different length can be compared
            batches.digests[str(batches.count)] = batches.digest
            self._write_batches()

    def log(self, step: int, values: Mapping[str, Any] | None = None, /, **named: Any) -> None:
        """Write metrics at a step: `log(20, val_loss=2.5)`; `metric: {from: witness}` reads them."""
        if self.is_active and _rank() == 0:
            numbers = {key: float(value) for key, value in {**(values or {}), **named}.items()}
            self._write({"step": int(step), **numbers})
            self._write_batches()

    def seed_everything(self, seed: int) -> None:
        """Seed the generators of Python, and of numpy, torch and TensorFlow if they are imported."""
        random.seed(seed)
        if "numpy" in sys.modules:
            sys.modules["numpy"].random.seed(seed % 2**32)
        if "torch" in sys.modules:
            sys.modules["torch"].manual_seed(seed)
        if "tensorflow" in sys.modules:
            sys.modules["tensorflow"].random.set_seed(seed)

    def initialise(self, model: Any, seed: int, init: Callable[..., Any] | None = None) -> None:
        """Draw the weights of a `torch.nn.Module` anew, each module's from a generator of the seed and its name.

        A module that is swapped then shifts the weights of no other one. `init(module)`, or `init(module, name)`, draws
        the weights of one module, without those of its parts, whose turn comes before. By default it is the model's
        `_init_weights`, or else the `reset_parameters` of each module. A tensor
        that it does not draw, or that the script had drawn at another scale, is an error. Afterwards the global
        generators are seeded, whatever the model has drawn from them.
        """
        torch = sys.modules["torch"]
        parameters = {name: it for name, it in model.named_parameters() if it.is_floating_point()}
        before = {name: parameter.detach().clone() for name, parameter in parameters.items()}
        flagged = [parameter for parameter in parameters.values() if getattr(parameter, DRAWN_FLAG, False)]
        for parameter in flagged:
            setattr(parameter, DRAWN_FLAG, False)
        with torch.no_grad():
            for parameter in parameters.values():
                parameter.fill_(math.nan)  # to find those that are not drawn
            for path, module in reversed(list(model.named_modules())):  # a module may set what its parts have drawn
                name = _plain_name(f"{path}.").removesuffix(".")
                self.seed_everything(int(hashlib.sha256(f"{seed} {name}".encode()).hexdigest()[:15], 16))
                _draw(model, module, name, init)
            for name, parameter in parameters.items():
                _check_drawn(name, before[name], parameter)
        for parameter in flagged:
            setattr(parameter, DRAWN_FLAG, True)
        self.seed_everything(seed)

    def _watch_optimizers(self) -> None:
        """Record the updates of the optimizers of torch, if the script has imported it."""
        module = sys.modules.get("torch.optim.optimizer")
        register = getattr(module, "register_optimizer_step_pre_hook", None)
        if self._optimizers is None and register is not None:
            self._optimizers = _Optimizers()
            register(self._optimizers.before_update)

    def _check_weights(self) -> None:
        """Record the weights that were changed since `model`, such as by a checkpoint; an update is no such change."""
        models, self._models = self._models, []
        if self._optimizers is not None and self._optimizers.updates:
            return
        changed = {}
        for name, model in models:
            for path, value, _ in _named_tensors(model):
                full_name = f"{name}.{path}" if name else path
                known = self._tensors.get(full_name)
                if known is not None and _is_mutable(value) and known["shape"] == [int(it) for it in value.shape]:
                    tensor = _describe(full_name, value)
                    if tensor["type"] == known["type"] and tensor["value"] != known["value"]:
                        changed[full_name] = {**known, **tensor}
        if changed:
            self._write({"tensors": changed, "after": 0, "changed": True})

    def _write_batches(self) -> None:
        if self.is_active and (self._splits or self._tensors):
            splits = {split: batches.to_json() for split, batches in self._splits.items()}
            optimizers = {"optimizers": self._optimizers.to_json()} if self._optimizers is not None else {}
            self._write({"witness": VERSION, "environment": _environment(), "batches": splits, **optimizers})

    def _write(self, line: Mapping[str, Any]) -> None:
        with Path(f"{self._path}.{self._process}").open("a", encoding="utf-8") as file:
            file.write(json.dumps({**line, "rank": _rank()}) + "\n")


_WITNESSES: dict[str, Witness] = {}


def _rank() -> int:
    """Return the number of this process among those that train one model."""
    distributed = getattr(sys.modules.get("torch"), "distributed", None)
    if distributed is not None and distributed.is_available() and distributed.is_initialized():
        return int(distributed.get_rank())
    return next((int(os.environ[name]) for name in RANKS if os.environ.get(name, "").isdecimal()), 0)


@final
class _Batches:
    """Batches of one split so far."""

    def __init__(self) -> None:
        self.count = 0
        self.tokens: int | None = 0  # None if they are unknown in a batch
        self.targets: int | None = 0
        self.digest = ""
        self.digests: dict[str, str] = {}  # after each power of two of batches

    def add(self, batch: tuple[Any, ...], named: Mapping[str, Any]) -> None:
        hashed = hashlib.sha256(self.digest.encode())
        for name, value in (*enumerate(batch), *named.items()):
            for path, leaf in _leaves(value, str(name)):
                hashed.update(path.encode())
                hashed.update(_sampled_digest(leaf))
        self.digest = hashed.hexdigest()[:DIGITS]
        self.count += 1
        inputs = batch[0] if batch else _first(named, INPUTS)
        targets = batch[1] if len(batch) > 1 else _first(named, TARGETS)
        self.tokens = _sum(self.tokens, _count_tokens(inputs, named.get("attention_mask")))
        self.targets = _sum(self.targets, _count_targets(targets))

    def to_json(self) -> dict[str, Any]:
        return dict(vars(self))


@final
class _Optimizers:
    """Updates by the optimizers of torch so far, with their options at the first one and learning rates."""

    def __init__(self) -> None:
        self.updates = 0
        self.options: list[dict[str, Any]] = []  # of each group of parameters
        self.rates: dict[str, list[float]] = {}  # of each group, before each power of two of updates
        self._known: weakref.WeakSet[Any] = weakref.WeakSet()

    def before_update(self, optimizer: Any, *_: Any) -> None:
        """Count an update; called by each optimizer."""
        is_compiling = getattr(getattr(sys.modules["torch"], "compiler", None), "is_compiling", None)
        if is_compiling is not None and is_compiling():
            return  # a compiled count would be compiled again for each number
        self.updates += 1
        if optimizer not in self._known:
            self._known.add(optimizer)
            for group in optimizer.param_groups:
                options = {"optimizer": type(optimizer).__name__, **_plain_options(group)}
                if options not in self.options:
                    self.options.append(options)
        if self.updates & (self.updates - 1) == 0:
            self.rates[str(self.updates)] = [float(group["lr"]) for group in optimizer.param_groups if "lr" in group]

    def to_json(self) -> dict[str, Any]:
        return {"updates": self.updates, "options": self.options, "rates": self.rates}


def _plain_options(group: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of a group of parameters that change its updates: numbers, texts, and pairs of numbers."""
    options: dict[str, Any] = {}
    for key, value in group.items():
        if hasattr(value, "numel") and value.numel() == 1:
            options[key] = float(value)
        elif value is None or isinstance(value, bool | int | float | str):
            options[key] = value
        elif key == "betas":
            options[key] = [float(beta) for beta in value]
    return {key: value for key, value in options.items() if key not in OTHER_OPTIONS}


def _is_mutable(value: Any) -> bool:
    """Return whether a tensor may have changed since it was recorded, and can be read again."""
    if not hasattr(value, "detach"):
        return type(value).__module__ == "numpy"
    return not getattr(value, "is_meta", False) and not hasattr(value, "to_local")


def _sum(total: int | None, count: int | None) -> int | None:
    return None if total is None or count is None else total + count


def _first(named: Mapping[str, Any], names: tuple[str, ...]) -> Any:
    return next((named[name] for name in names if name in named), None)


def _count_tokens(inputs: Any, mask: Any) -> int | None:
    """Return the number of tokens, without padding if there is a mask; of inputs that are no integers, of examples."""
    if mask is not None:
        is_count = any(word in str(getattr(mask, "dtype", "")) for word in ("int", "bool"))
        return int(mask.sum()) if is_count else None
    if not hasattr(inputs, "shape"):
        return None
    return _product(inputs.shape if "int" in str(inputs.dtype) else inputs.shape[:1])


def _count_targets(targets: Any) -> int | None:
    """Return the number of targets, without ignored ones."""
    if not hasattr(targets, "shape"):
        return None
    is_signed = "int" in str(targets.dtype) and "uint" not in str(targets.dtype)
    return int((targets != IGNORED).sum()) if is_signed else _product(targets.shape)


def _product(shape: Any) -> int:
    product = 1
    for size in shape:
        product *= int(size)
    return product


def _named_tensors(model: Any) -> Iterator[tuple[str, Any, bool]]:
    """Yield the name and value of each tensor of a model, and whether it is a buffer."""
    if not hasattr(model, "named_parameters"):
        arrays = [(path, leaf, _is_key(leaf)) for path, leaf in _model_leaves(model) if hasattr(leaf, "shape")]
        if not arrays:
            raise TypeError(
                f"`{type(model).__name__}` has no weights; pass a torch.nn.Module, or arrays in mappings and sequences"
            )
        yield from arrays
        return
    for name, parameter in model.named_parameters(remove_duplicate=False):
        yield _plain_name(name), parameter, False
    for name, buffer in model.named_buffers(remove_duplicate=False):
        yield _plain_name(name), buffer, True


def _model_leaves(model: Any) -> Iterator[tuple[str, Any]]:
    """Yield the values of a model that is none of torch; JAX has more containers, such as modules of Flax."""
    jax = sys.modules.get("jax")
    if jax is None:
        yield from _leaves(model, "")
        return
    for keys, leaf in jax.tree_util.tree_flatten_with_path(model)[0]:
        names = (str(getattr(key, "name", getattr(key, "key", getattr(key, "idx", key)))) for key in keys)
        yield ".".join(names).removesuffix(".value"), leaf


def _is_key(value: Any) -> bool:
    """Return whether a value is a key of JAX's random generator, of which numpy has no array."""
    return str(getattr(value, "dtype", "")).startswith("key<")


def _plain_name(name: str) -> str:
    """Return the name of a tensor in a model that is not wrapped for compilation or several processes."""
    for part in WRAPPERS:
        name = name.replace(part, "")
    return name.removeprefix(DISTRIBUTED)


def _leaves(value: Any, path: str) -> Iterator[tuple[str, Any]]:
    """Yield the values in nested mappings and sequences, with their dotted paths."""
    items: Any = ()
    if isinstance(value, Mapping):
        items = value.items()
    elif isinstance(value, list | tuple):
        items = enumerate(value)
    else:
        yield path, value
    for key, item in items:
        yield from _leaves(item, f"{path}.{key}" if path else str(key))


def _describe(name: str, value: Any) -> dict[str, Any]:
    """Return the shape of a tensor with digests of its values and of their signs; a constant has none of signs."""
    if getattr(value, "is_meta", False) or type(value).__name__.startswith("Uninitialized"):
        raise ValueError(f"`{name}` has no values yet: call `model` after it is made, or after the first pass.")
    tensor = _on_cpu(value)
    return {
        "shape": [int(size) for size in (value if hasattr(value, "to_local") else tensor).shape],
        "type": str(tensor.dtype),
        "value": hashlib.sha256(str(tensor.dtype).encode() + _bytes(tensor)).hexdigest()[:DIGITS],
        "signs": _signs(tensor),
    }


def _signs(tensor: Any) -> str:
    """Return a digest of the signs, or of those of the distances from the mean where all are equal.

    It is empty for constants, and for types without an order.
    """
    try:
        if not _product(tensor.shape) or bool((tensor == tensor.reshape(-1)[:1]).all()):
            return ""
        signs = tensor > 0
        if bool(signs.all()) or not bool(signs.any()):
            first = tensor.reshape(-1)[:FIRST]
            signs = first > first.mean()
        return hashlib.sha256(_bytes(signs)).hexdigest()[:DIGITS]
    except (RuntimeError, TypeError):  # such as complex numbers
        return ""


def _sampled_digest(value: Any) -> bytes:
    """Return a digest of a value; of a large tensor, of evenly spaced values."""
    if value is None or isinstance(value, bool | int | float | str | bytes):
        return repr(value).encode()
    if not hasattr(value, "shape"):
        raise TypeError(f"A batch has tensors, arrays, numbers and texts, but this one has `{type(value).__name__}`.")
    if getattr(value, "is_sparse", False) or getattr(value, "is_nested", False):
        value = value.to_dense() if value.is_sparse else value.to_padded_tensor(0.0)
    flat = (value.detach() if hasattr(value, "detach") else _on_cpu(value)).reshape(-1)
    stride = -(-_product(flat.shape) * flat.dtype.itemsize // FULL_BYTES)
    sample = _on_cpu(flat[::stride] if stride > 1 else flat)
    return hashlib.sha256(f"{value.dtype}{tuple(value.shape)}".encode() + _bytes(sample)).digest()


def _on_cpu(value: Any) -> Any:
    """Return a tensor of torch on the CPU, of a sharded one the part of this process; or an array of numpy."""
    if hasattr(value, "detach"):
        value = value.to_local() if hasattr(value, "to_local") else value
        return (value.to_dense() if value.is_sparse else value).detach().cpu()
    return (sys.modules["jax"].random.key_data(value) if _is_key(value) else value).__array__()


def _bytes(tensor: Any) -> bytes:
    """Return the bytes of a tensor or array; numpy has no array for some types of torch, such as bfloat16."""
    if not hasattr(tensor, "data_ptr"):
        return repr(tensor.tolist()).encode() if tensor.dtype == object else bytes(tensor.tobytes())
    tensor = tensor.contiguous()
    size = tensor.numel() * tensor.element_size()
    return ctypes.string_at(tensor.data_ptr(), size) if size else b""


def _draw(model: Any, module: Any, name: str, init: Callable[..., Any] | None) -> None:
    """Draw the weights of one module."""
    draw = init or getattr(model, "_init_weights", None)
    if init is not None and _takes_name(init):
        init(module, name)
    elif draw is not None:
        draw(module)
    elif next(module.parameters(recurse=False), None) is None:
        return  # one that draws the weights of its parts would tie them to each other
    elif hasattr(module, "reset_parameters"):
        module.reset_parameters()
    elif hasattr(module, "_reset_parameters"):
        module._reset_parameters()


def _takes_name(init: Callable[..., Any]) -> bool:
    """Return whether a function requires two arguments: a module, and its name."""
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    parameters = inspect.signature(init).parameters.values()
    return sum(it.kind in kinds and it.default is it.empty for it in parameters) > 1


def _check_drawn(name: str, before: Any, after: Any) -> None:
    """Raise an error if a tensor was not drawn, or at another scale than the script's own. A constant stays."""
    old, new = (float(values.double().std(correction=0)) for values in (before, after))
    if math.isnan(new):
        if old:
            raise ValueError(
                f"`{name}` was not drawn: neither `_init_weights` nor a `reset_parameters` of its module sets it; "
                "pass an `init(module, name)` that does"
            )
        after.copy_(before)
        return
    if not _is_same_scale(before.double(), after.double(), old, new):
        raise ValueError(
            f"`{name}` is drawn with mean {float(after.mean()):.3g} and standard deviation {new:.3g}; the script "
            f"had {float(before.mean()):.3g} and {old:.3g}, or rows of zeros. Pass an `init(module, name)` that draws "
            "each module as the script does"
        )


def _is_same_scale(before: Any, after: Any, old: float, new: float) -> bool:
    """Return whether two draws may come from one distribution, as far as mean, spread and rows of zeros show it."""
    count = before.numel()
    if count > 1 and not (old and new):  # a constant
        return bool((before == after).all())
    if before.ndim > 1 and bool(((before.flatten(1) == 0).all(1) & (after.flatten(1) != 0).any(1)).any()):
        return False
    if count <= FEW:  # all of a few numbers are small by chance at times
        sizes = sorted(float(values.square().mean()) ** 0.5 for values in (before, after))
        return bool(sizes[0] * 2 * RARE ** (1 / count) >= sizes[1])
    error = STD_ERRORS / count**0.5
    distance = abs(float(before.mean()) - float(after.mean()))
    return bool(abs(math.log(old / new)) <= error and distance <= 2 * error * max(old, new))


def _environment() -> dict[str, Any]:
    """Return the versions and settings of this process that its numbers depend on."""
    environment: dict[str, Any] = {"python": sys.version.split()[0]}
    environment |= {name: getattr(sys.modules[name], "__version__", "") for name in PACKAGES if name in sys.modules}
    torch = sys.modules.get("torch")
    if hasattr(torch, "get_float32_matmul_precision"):
        assert torch is not None
        environment["matmul precision"] = torch.get_float32_matmul_precision()
        environment["deterministic"] = torch.are_deterministic_algorithms_enabled()
        if torch.cuda.is_initialized():
            environment["device"] = torch.cuda.get_device_name()
    return environment
