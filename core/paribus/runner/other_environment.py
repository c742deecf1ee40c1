"""Environment of a rehearsal: a step that depends on its process computes something else in it than in a trial."""

from __future__ import annotations

import datetime
import os
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final

VARIABLE: Final = "PARIBUS_OTHER_ENVIRONMENT"  # set in such a process
HALF_DAY: Final = 12  # hours
KEPT_VARIABLES: Final = (  # beginnings of their names
    "PATH", "HOME", "USER", "LOGNAME", "SHELL", "TERM", "TMP", "TEMP", "LANG", "XDG_", "VIRTUAL_ENV", "CONDA", "PYTHON",
    "PARIBUS_", "HF_", "HUGGINGFACE_", "TRANSFORMERS_", "TOKENIZERS_", "TORCH", "PYTORCH_", "TRITON_", "CUDA", "CUBLAS",
    "CUDNN", "NVIDIA_", "NCCL_", "ROCR_", "ROCM_", "HIP_", "HSA_", "MIOPEN_", "OMP_", "KMP_", "GOMP_", "MKL",
    "OPENBLAS_", "BLIS_", "GOTO_", "VECLIB_", "NUMEXPR_", "NUMBA_", "NPY_", "ATEN_", "DNNL_", "ONEDNN_", "LD_", "DYLD_",
    "GLIBC_", "MALLOC_", "SLURM", "SUBMITIT_", "RAY_", "PBS_", "SGE_", "LSB_", "COV_", "COVERAGE_", "SSL_", "REQUESTS_",
    "CURL_", "HTTP", "http", "NO_PROXY", "no_proxy", "ALL_PROXY", "all_proxy",
)  # fmt: skip


def other_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """Return variables with another hash seed, time zone and locale, and without those of the user.

    The variables of Python, numeric libraries, caches and schedulers remain.
    """
    sign = "-" if time.gmtime().tm_hour >= HALF_DAY else "+"  # on another day
    return {
        **{name: value for name, value in environment.items() if name.startswith(KEPT_VARIABLES)},
        "PYTHONHASHSEED": "2" if environment.get("PYTHONHASHSEED") == "1" else "1",
        "TZ": f"OTHER{sign}12:43:17",  # another hour, minute and second
        "LC_ALL": "C.UTF-8" if environment.get("LC_ALL") == "C" else "C",
        VARIABLE: "1",
    }


@contextmanager
def other_import_clock() -> Iterator[None]:
    """Advance the clocks while plugins are imported, if this process has the other environment.

    A plugin that imports the classes of `datetime` keeps those with the advanced clock.
    """
    if VARIABLE not in os.environ:
        yield
        return
    from paribus.evidence.process_state import advanced_clocks, clock_shift

    shift = clock_shift(time.time())
    classes = datetime.datetime, datetime.date
    with advanced_clocks(shift):
        datetime.datetime, datetime.date = _advanced_datetime(datetime.timedelta(seconds=shift))  # type: ignore[misc]  # until the plugins are imported
        try:
            yield
        finally:
            datetime.datetime, datetime.date = classes  # type: ignore[misc]  # as above


def _advanced_datetime(shift: datetime.timedelta) -> tuple[type[datetime.datetime], type[datetime.date]]:
    """Return classes whose `now` and `today` are advanced, and whose instances are those of the original classes."""
    original, original_date = datetime.datetime, datetime.date

    class AdvancedType(type):
        def __instancecheck__(cls, instance: object) -> bool:
            return isinstance(instance, original if issubclass(cls, original) else original_date)

    class Advanced(original, metaclass=AdvancedType):  # type: ignore[misc,valid-type]  # mypy takes it for a variable
        @classmethod
        def now(cls, tz: datetime.tzinfo | None = None) -> Any:
            return original.now(tz) + shift

        @classmethod
        def utcnow(cls) -> Any:
            return original.now(datetime.UTC).replace(tzinfo=None) + shift

        @classmethod
        def today(cls) -> Any:
            return original.now() + shift

    class AdvancedDate(original_date, metaclass=AdvancedType):  # type: ignore[misc,valid-type]  # as above
        @classmethod
        def today(cls) -> Any:
            return (original.now() + shift).date()

    return Advanced, AdvancedDate
