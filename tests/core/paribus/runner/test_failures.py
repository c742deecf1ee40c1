from __future__ import annotations

import errno
import json
import os

import pytest
import torch

from paribus.errors import EXIT_DATA, EXIT_FAILED, EXIT_STORE, DataError, Problem, StoreError
from paribus.models.distributed import run_distributed
from paribus.runner.outcomes import EXIT_MEMORY, EXIT_RETRY, MAX_LENGTH, Failure, describe_failure, one_line


def raised(error: BaseException, cause: BaseException | None = None) -> Failure:
    try:
        raise error from cause
    except BaseException as caught:
        return describe_failure(caught)


def test_an_exception_is_reported_with_class_first_line_and_place() -> None:
    failure = raised(ValueError("no\nand more"))
    assert failure[:2] == ("failed", f"ValueError: no ({failure.frame})")
    assert failure.frame.startswith(f"{__file__}:")
    assert failure.frame.endswith(", in raised")
    assert failure.code == EXIT_FAILED
    assert raised(RuntimeError()).reason.startswith(f"RuntimeError ({__file__}:")


def test_the_reported_frame_is_the_caller_of_torch() -> None:
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied") as caught:
        torch.nn.Linear(2, 2)(torch.ones(1, 3))
    assert describe_failure(caught.value).frame.endswith(", in test_the_reported_frame_is_the_caller_of_torch")


def test_the_reported_frame_is_that_of_the_component_that_calls_a_library() -> None:
    def document(*_: object) -> dict[str, object]:
        return dict(json.loads("{"))

    with pytest.raises(json.JSONDecodeError, match="Expecting property name") as caught:
        run_distributed({}, document)  # by the engine, as a trial does
    assert describe_failure(caught.value).frame.endswith(", in document")


def test_a_user_error_keeps_its_problems_and_exit_code() -> None:
    problems = (Problem(code="a", message="one"), Problem(code="b", message="two"))
    failure = raised(DataError(*problems))
    assert failure.reason == "error[a]: one; error[b]: two"
    assert failure.code == EXIT_DATA


@pytest.mark.parametrize(
    "error",
    [
        MemoryError(),
        OSError(errno.ENOMEM, os.strerror(errno.ENOMEM)),
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.50 GiB. GPU 0 has …"),
        RuntimeError("[enforce fail at alloc_cpu.cpp:124] DefaultCPUAllocator: can't allocate memory: you tried …"),
        RuntimeError("CUDA error: out of memory"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_every_error_of_memory_is_recognised(error: BaseException) -> None:
    for failure in (raised(error), raised(ValueError("building the batch"), error)):
        assert (failure.state, failure.code) == ("out-of-memory", EXIT_MEMORY)
        assert "make `data.batch`, `dims.length` or `dims.width` smaller, or run fewer trials at once" in failure.reason


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("CUDA out of memory. Tried to allocate 2.50 GiB. GPU 0", "2.50 GiB"),
        ("can't allocate memory: you tried to allocate 1024 bytes. Error code 12", "1024 bytes"),
    ],
)
def test_an_error_of_memory_names_the_requested_size(text: str, size: str) -> None:
    assert raised(RuntimeError(text)).reason.startswith(f"out of memory when {size} more were requested: ")


def test_a_real_error_of_memory_is_recognised() -> None:
    with pytest.raises(RuntimeError, match="can't allocate memory") as caught:
        torch.empty(1 << 60, dtype=torch.uint8)
    assert describe_failure(caught.value).state == "out-of-memory"


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO, errno.EMFILE], ids=lambda code: errno.errorcode[code])
def test_an_error_of_a_disk_is_retried(code: int) -> None:
    error = OSError(code, os.strerror(code))
    for failure in (raised(error), raised(StoreError(Problem(code="cannot-write", message="1 byte")), error)):
        assert (failure.state, failure.code) == ("failed", EXIT_RETRY)


def test_a_permanent_error_is_not_retried() -> None:
    assert raised(FileNotFoundError(errno.ENOENT, "gone")).code == EXIT_FAILED
    assert raised(StoreError(Problem(code="other-machine", message="threads"))).code == EXIT_STORE


def test_messages_are_escaped_and_shortened() -> None:
    assert one_line(ValueError("\x1b[31mred")) == r"ValueError: \u001b[31mred"
    assert len(one_line(ValueError("x" * 10_000))) == MAX_LENGTH + 1
