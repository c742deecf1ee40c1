"""Simulated accelerator: a torch device whose tensors have values, on a machine that has only a CPU.

A tensor of this device wraps a tensor of the CPU. Whatever mixes the two devices raises torch's error, and whatever
makes the CPU wait for the device is recorded with its place in the code. So forward and backward passes, optimizer
steps and whole trials run as they would on a GPU, with the values of the CPU.

Not simulated: speed, memory, the kernels of a GPU, several devices.
"""

from __future__ import annotations

import math
import sys
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any, Final, NamedTuple, Self, final

import torch
from torch import Tensor
from torch.utils import backend_registration
from torch.utils._mode_utils import no_dispatch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.weak import WeakIdKeyDictionary

from paribus.testing import simulated_operations

NAME: Final = "simulated"
_SETUP: Final = "_setup_privateuseone_for_python_backend"  # torch 2.10 and newer
_TORCH: Final = str(Path(torch.__file__).parent)
_OWN: Final = (__file__, simulated_operations.__file__)
_KIT: Final = str(Path(__file__).parent)
_WRAPPERS: Final = ("/_ops.py", "/_tensor.py", "/_compile.py", "/_dynamo/eval_frame.py", "/utils/_contextlib.py")

_LIBRARY: Final = torch.library.Library("aten", "IMPL")

aten = torch.ops.aten


@final
class Wait(NamedTuple):
    """Place in the code where the CPU waits for the device."""

    operation: str  # "aten._local_scalar_dense"
    reason: str
    place: str  # "/home/user/model.py:12, in forward"

    def __str__(self) -> str:
        return f"{self.place}: {self.reason} ({self.operation})"


def unavailable_reason() -> str:
    """Return the reason why this process cannot simulate a device; empty if it can."""
    if not hasattr(backend_registration, _SETUP):
        return f"torch {torch.__version__} has no devices that are written in Python; 2.10 and newer do"
    name = torch._C._get_privateuse1_backend_name()
    if name not in ("privateuseone", NAME):
        return f"another package has registered the device `{name}`"
    return ""


@final
class SimulatedTensor(Tensor):
    """Tensor of the simulated device."""

    host: Tensor  # its values, on the CPU

    @staticmethod
    def __new__(cls, values: Tensor) -> Self:
        tensor: Self = Tensor._make_wrapper_subclass(
            cls,
            values.size(),
            strides=values.stride(),
            storage_offset=values.storage_offset(),
            dtype=values.dtype,
            layout=values.layout,
            device=torch.device(NAME, 0),
        )
        tensor.host = values
        return tensor

    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]  # as torch's subclasses do

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]  # torch's stub lacks the operation
        cls, operation: Any, types: Sequence[type], args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        return SimulatedDevice.current().run(operation, args, dict(kwargs or {}))

    def tolist(self) -> Any:
        return self.cpu().tolist()

    def numpy(self, *, force: bool = False) -> Any:
        if not force:
            raise TypeError(f"can't convert {NAME}:0 device type tensor to numpy; use Tensor.cpu() first")
        return self.detach().cpu().numpy(force=True)

    def __format__(self, spec: str) -> str:
        return format(self.item(), spec) if not self.dim() else object.__format__(self, spec)

    def __repr__(self, *, tensor_contents: Any = None) -> str:  # type: ignore[override]  # torch's stub is partial
        return f"{self.host!r} on {NAME}"

    def __deepcopy__(self, memo: dict[int, Any]) -> Tensor:
        if id(self) not in memo:
            memo[id(self)] = _with_properties_of(self, SimulatedTensor(self.host.detach().clone()))
        copied: Tensor = memo[id(self)]
        return copied


def _with_properties_of(original: Tensor, copied: Tensor) -> Tensor:
    if getattr(original, "_is_param", False):
        copied._is_param = True  # what makes a subclass a parameter
    return copied.requires_grad_(original.requires_grad)


class GeneratorFactory:
    """Takes the place of `torch.Generator`, which torch cannot make for a device written in Python."""

    def __new__(cls, device: Any = "cpu") -> Any:
        if torch.device(device).type != NAME:
            return _GENERATOR(device)
        generator = _GENERATOR()
        SimulatedDevice.current().generators[_address(generator)] = generator
        return generator


_GENERATOR: Final = torch.Generator


def _address(generator: torch.Generator) -> int:
    """Return what identifies a generator: torch makes new Python objects for it."""
    address: int = generator._cdata  # type: ignore[attr-defined]  # torch's stub lacks it
    return address


@final
class SimulatedDevice(TorchDispatchMode):
    """Context in which the device `simulated` exists; `waits` are the places where the CPU waited for it."""

    _current: SimulatedDevice | None = None

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch leaves it untyped
        self.waits: list[Wait] = []
        self.synchronizations = 0  # requested by name
        self.generators: dict[int, torch.Generator] = {}  # of the device, by address: generators of the CPU
        self.pinned = WeakIdKeyDictionary()  # tensors of the CPU in page-locked memory
        self._pending: list[tuple[Tensor, Tensor]] = []  # copies to the CPU that are not complete, and their values

    @classmethod
    def current(cls) -> SimulatedDevice:
        if cls._current is None:
            raise RuntimeError(f"a tensor of the device `{NAME}` is used outside of `simulated_device()`")
        return cls._current

    def __torch_dispatch__(
        self, operation: Any, types: Sequence[type], args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        return self.run(operation, args, dict(kwargs or {}))

    def run(self, operation: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run an operation, on the values of its tensors if it has tensors of the device."""
        if operation is aten.is_pinned.default:
            return args[0] in self.pinned
        if operation is aten._pin_memory.default:
            return self._pin(args[0])
        items = [*_flat(args), *_flat(kwargs.values())]
        simulated = [item for item in items if isinstance(item, SimulatedTensor)]
        target = None if kwargs.get("device") is None else torch.device(kwargs["device"]).type
        if not simulated and target != NAME:
            return operation(*args, **kwargs)
        if torch.is_inference_mode_enabled() and operation._can_decompose():
            with self:  # without autograd, torch does not divide such an operation before it comes here
                return operation.decompose(*args, **kwargs)
        _check_generator(kwargs.get("generator"))
        if target is None and operation not in simulated_operations.BETWEEN_DEVICES:
            _check_devices(operation, items)
        if simulated:
            simulated_operations.check_determinism(operation, simulated)
            simulated_operations.check_kernel(operation, simulated)
        call = simulated_operations.Call(args, kwargs, is_simulated, self.pinned.__contains__)
        reason = simulated_operations.wait_reason(operation, call)
        if reason:
            self.waits.append(Wait(str(operation).removesuffix(".default"), reason, place()))
            self.complete_copies()
        result = simulated_operations.run(operation, tuple(map(_values, args)), _on_cpu(kwargs))
        if target == "cpu":
            is_pending = operation is aten._to_copy.default and not reason
            return self._incomplete(result) if is_pending else result
        return _returned(operation, args, kwargs, result, simulated)

    def complete_copies(self) -> None:
        """Fill the tensors of the CPU that copies without waiting have not filled yet."""
        for incomplete, values in self._pending:
            incomplete.copy_(values)
        self._pending.clear()

    def _incomplete(self, values: Tensor) -> Tensor:
        """Return the result of a copy without waiting: meaningless until the CPU waits for the device."""
        incomplete = ~values if values.dtype == torch.bool else torch.full_like(values, _meaningless(values.dtype))
        self._pending.append((incomplete, values))
        return incomplete

    def _pin(self, tensor: Tensor) -> Tensor:
        pinned = tensor.clone()
        self.pinned[pinned] = True
        return pinned


def _on_cpu(kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Return keyword arguments with values instead of tensors, and the CPU instead of the device."""
    values = {name: _values(item) for name, item in kwargs.items()}
    return values if values.get("device") is None else {**values, "device": torch.device("cpu")}


def _returned(
    operation: Any, args: Sequence[Any], kwargs: Mapping[str, Any], result: Any, simulated: Sequence[SimulatedTensor]
) -> Any:
    """Return the result of an operation as tensors of the device, or its input where it changes that."""
    if operation is aten.copy_.default:
        return args[0]
    if torch.Tag.inplace_view in operation.tags:
        with no_dispatch():  # the wrapper gets the new shape as well
            operation(*args, **kwargs)
    # A view of a tensor that is not an inference tensor is none either.
    is_inference = torch.is_inference_mode_enabled() and not (operation.is_view and not args[0].is_inference())
    with torch.inference_mode(is_inference):
        return _wrapped(result, {id(item.host): item for item in simulated})


def _meaningless(dtype: torch.dtype) -> float:
    return math.nan if dtype.is_floating_point else torch.iinfo(dtype).min


def _check_generator(generator: torch.Generator | None) -> None:
    """Raise torch's error for a generator of the CPU."""
    if generator is not None and _address(generator) not in SimulatedDevice.current().generators:
        found = generator.device.type
        raise RuntimeError(f"Expected a '{NAME}' device type for generator but found '{found}'")


def _check_devices(operation: Any, items: Sequence[Any]) -> None:
    """Raise torch's error for tensors of both devices; a number of the CPU is accepted by most operations."""
    others = [item for item in items if isinstance(item, Tensor) and not is_simulated(item)]
    numbers = [other for other in others if not other.dim()]
    is_written = bool(others) and items[0] is others[0] and operation._schema.is_mutable
    if is_written or len(numbers) < len(others) or len(numbers) > simulated_operations.accepted_numbers(operation):
        sizes = " and ".join(str(tuple(other.shape)) for other in others)
        raise RuntimeError(
            f"Expected all tensors to be on the same device, but found at least two devices, {NAME}:0 and cpu! "
            f"({operation} with a tensor of the CPU of size {sizes})"
        )


def _flat(arguments: Iterable[Any]) -> Iterator[Any]:
    """Yield arguments of an operation, and the items of lists among them."""
    for argument in arguments:
        if isinstance(argument, (list, tuple)):
            yield from argument
        else:
            yield argument


def _values(argument: Any) -> Any:
    """Replace tensors of the device by their values."""
    if isinstance(argument, (list, tuple)):
        return [_values(item) for item in argument]
    return argument.host if isinstance(argument, SimulatedTensor) else argument


def is_simulated(tensor: Any) -> bool:
    return isinstance(tensor, SimulatedTensor)


def _wrapped(result: Any, inputs: Mapping[int, SimulatedTensor]) -> Any:
    """Wrap tensors; an operation in place returns its input."""
    if isinstance(result, Tensor):
        return inputs[id(result)] if id(result) in inputs else SimulatedTensor(result)
    if isinstance(result, (list, tuple)):
        return type(result)(_wrapped(item, inputs) for item in result)
    return result


def place() -> str:
    """Return the innermost line of code outside of torch, or in it where the conformance kit has called it."""
    in_torch = ""
    for frame, line in traceback.walk_stack(sys._getframe(1)):
        path, name = frame.f_code.co_filename, frame.f_code.co_name
        if path.startswith("<") or path in _OWN or (path.startswith(_TORCH) and path.endswith(_WRAPPERS)):
            continue
        if not path.startswith((_TORCH, _KIT)):
            return f"{path}:{line}, in {name}"
        in_torch = in_torch or (f"{path}:{line}, in {name}" if path.startswith(_TORCH) else "")
        if path.startswith(_KIT):
            break
    return in_torch or "an unknown place"


# -- registration ---------------------------------------------------------------------------------------------------


def _backend() -> ModuleType:
    """Return the module `torch.simulated`, whose functions torch and Lightning call."""
    module = ModuleType(f"torch.{NAME}")
    functions: dict[str, Callable[..., Any]] = {
        "is_available": lambda: SimulatedDevice._current is not None,
        "is_initialized": lambda: True,
        "device_count": lambda: 1,
        "current_device": lambda: 0,
        "set_device": lambda device: None,
        "synchronize": _synchronize,
        "manual_seed": lambda seed: None,  # draws are those of the CPU's generator
        "manual_seed_all": lambda seed: None,
        "get_rng_state": lambda device=None: torch.get_rng_state(),
        "set_rng_state": lambda state, device=None: torch.set_rng_state(state),
        "get_amp_supported_dtype": lambda: [torch.bfloat16, torch.float16],
        "get_device_name": lambda device=None: "simulated device",
        "max_memory_allocated": lambda device=None: 0,
        "reset_peak_memory_stats": lambda device=None: None,
        "_is_in_bad_fork": lambda: False,
        "_lazy_init": lambda: None,
    }
    for name, function in functions.items():
        setattr(module, name, function)
    return module


def _read(tensor: SimulatedTensor) -> float:
    """Return a value that torch reads without asking the mode."""
    current = SimulatedDevice.current()
    current.waits.append(Wait("aten._local_scalar_dense", simulated_operations.READS, place()))
    current.complete_copies()
    return tensor.host.item()


def _synchronize(device: object = None) -> None:
    current = SimulatedDevice._current
    if current is not None:  # torch's profiler waits for every device that is registered
        current.synchronizations += 1
        current.complete_copies()


def _register() -> None:
    """Register the device with torch, once in a process; it is available only within `simulated_device`."""
    if torch._C._get_privateuse1_backend_name() == NAME:
        return
    # The first backward pass starts a thread for each device that is registered: none, so that processes may fork.
    with torch.enable_grad():
        torch.zeros((), requires_grad=True).mul(1).backward()
    getattr(backend_registration, _SETUP)(NAME, backend_module=_backend())
    # `torch.tensor` reads the tensors of a list in C++, where no mode of Python sees it.
    _LIBRARY.impl("_local_scalar_dense", _read, "PrivateUse1")


@contextmanager
def simulated_device() -> Iterator[SimulatedDevice]:
    """Simulate the device `simulated` within the block."""
    reason = unavailable_reason()
    if reason:
        raise RuntimeError(reason)
    _register()
    import torch._dynamo  # which torch imports at the first optimizer, and not with another class of generators

    if SimulatedDevice._current is not None:
        raise RuntimeError("devices cannot be simulated within each other")
    swaps = torch.__future__.get_swap_module_params_on_conversion()
    lifts = torch._C._only_lift_cpu_tensors()
    SimulatedDevice._current = device = SimulatedDevice()
    torch.__future__.set_swap_module_params_on_conversion(True)  # module.to(device) keeps parameters that are shared
    torch.Generator = GeneratorFactory  # type: ignore[misc]  # until the end of the block
    torch._C._set_only_lift_cpu_tensors(True)  # torch.tensor(data, device=…) copies from the CPU by an operation
    try:
        with torch.autograd.set_multithreading_enabled(False), device:
            yield device
    finally:
        torch.Generator = _GENERATOR  # type: ignore[misc]  # as before
        torch._C._set_only_lift_cpu_tensors(lifts)
        torch.__future__.set_swap_module_params_on_conversion(swaps)
        SimulatedDevice._current = None
