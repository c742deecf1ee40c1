"""Safetensors files with one JSON document and a SHA-256 of the whole file: nothing is unpickled.

The hash is in the header. It covers the whole file, with zeros in place of the hash itself. Any reader of safetensors
can open the file.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import safetensors.torch
import torch
from safetensors import SafetensorError
from torch import Tensor

from paribus.errors import Problem, StoreError
from paribus.storage.atomic import (
    FILES,
    DamagedError,
    Files,
    Json,
    canonical_json,
    damaged_error,
    digest,
    parse_json,
    read_bytes,
    write_bytes,
)
from paribus.storage.saved_model import SEAL

SCHEMA: Final = 1

_ALIGNED: Final = 8
_BLANK: Final = b"0" * 64


def write_tensors(
    path: Path, tensors: Mapping[str, Tensor], document: Mapping[str, Json], *, files: Files = FILES
) -> None:
    """Replace the file at `path` atomically by one with these tensors and this document."""
    text = canonical_json({"body": document, "schema": SCHEMA}).decode()
    metadata = {"format": "pt", "paribus": text, "sha256": _BLANK.decode()}
    data = memoryview(safetensors.torch.save(_separate_storage(tensors), metadata))
    head = _sorted_header(_header(data))
    body = data[8 + int.from_bytes(data[:8], "little") :]
    seal_start = _seal_start(head)
    write_bytes(
        path, head[:seal_start], digest(head, body).encode() + head[seal_start + len(_BLANK) :], body, files=files
    )


def _sorted_header(header: bytes) -> bytes:
    """Return the start of a file with the metadata sorted by key: their order in safetensors varies between calls."""
    fields = json.loads(header)
    fields["__metadata__"] = dict(sorted(fields["__metadata__"].items()))
    text = json.dumps(fields, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % _ALIGNED)
    return len(text).to_bytes(8, "little") + text


def read_tensors(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Return the tensors, on the CPU, and the document; raise `DamagedError` if any bit of the file has changed."""
    data = read_bytes(path)
    try:
        seal_start = _seal_start(data)
        view, end = memoryview(data), seal_start + len(_BLANK)
        if digest(view[:seal_start], _BLANK, view[end:]).encode() != data[seal_start:end]:
            raise damaged_error(path, "it does not have the hash that it was written with")
        body, schema = _document(data)
        tensors = safetensors.torch.load(data)
    except (ValueError, SafetensorError) as error:
        raise damaged_error(path, str(error)) from error
    if schema != SCHEMA:
        message = f"this file is written in schema {schema!r}, which this version of paribus does not read"
        raise DamagedError(Problem(code="unknown-schema", location=str(path), message=message, valid=str(SCHEMA)))
    return tensors, body


def contents_digest(tensors: Mapping[str, Tensor], document: Json) -> str:
    """Return the SHA-256 of a document and of each tensor's name, type, shape and bytes, in the order of the names."""
    sha = hashlib.sha256(canonical_json(document))
    for name in sorted(tensors):
        tensor = tensors[name]
        sha.update(canonical_json([name, str(tensor.dtype), list(tensor.shape)]))
        # numpy has no bfloat16, and neither views a 0-dim tensor as bytes
        sha.update(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return sha.hexdigest()


def pack(value: object, path: str, tensors: dict[str, Tensor]) -> Json:
    """Return a value as JSON, which `unpack` converts back. Its tensors are added to `tensors`, by their path."""
    if isinstance(value, Tensor):
        assert path not in tensors, path
        tensors[path] = value
        return {"tensor": path, "device": value.device.type}
    if isinstance(value, float) and not math.isfinite(value):
        return {"float": str(float(value))}
    if value is None or isinstance(value, str | int | float):
        return value
    if isinstance(value, list | tuple):
        items = [pack(item, f"{path}/{index}", tensors) for index, item in enumerate(value)]
        return {"tuple" if isinstance(value, tuple) else "list": items}
    if isinstance(value, Mapping) and all(isinstance(key, str) for key in value):
        return {"dict": {key: pack(item, f"{path}/{key}", tensors) for key, item in value.items()}}
    message = f"a checkpoint cannot hold a {type(value).__name__}"
    valid = "tensors, numbers, strings, None, and lists, tuples and string-keyed mappings of these"
    raise StoreError(Problem(code="cannot-save", path=path, message=message, valid=valid))


def unpack(packed: Any, tensors: Mapping[str, Tensor], device: torch.device) -> Any:
    """Return a packed value. A tensor moves to the CPU if it was there (AdamW's step counts are), else to `device`."""
    if not isinstance(packed, dict):
        return packed
    if "tensor" in packed:
        # A copy: the optimizer works in place, and the loaded tensors may be restored again.
        tensor = tensors[packed["tensor"]]
        return tensor.to(device if packed["device"] == device.type else packed["device"], copy=True)
    if "float" in packed:
        return float(packed["float"])
    if "dict" in packed:
        return {key: unpack(item, tensors, device) for key, item in packed["dict"].items()}
    (kind, items), *_ = packed.items()
    return {"list": list, "tuple": tuple}[kind](unpack(item, tensors, device) for item in items)


def _separate_storage(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the tensors on the CPU, contiguous and without shared memory, which safetensors rejects."""
    separate: dict[str, Tensor] = {}
    storages: set[int] = set()
    for name, tensor in tensors.items():
        copy = tensor.detach().cpu().contiguous()
        if copy.untyped_storage().data_ptr() in storages:
            copy = copy.clone()
        storages.add(copy.untyped_storage().data_ptr())
        separate[name] = copy
    return separate


def _header(data: bytes | memoryview) -> bytes:
    return bytes(data[8 : 8 + int.from_bytes(data[:8], "little")])


def _seal_start(data: bytes | memoryview) -> int:
    offset = _header(data).find(SEAL)
    if offset < 0:
        raise ValueError("it has no hash in its header")
    return 8 + offset + len(SEAL)


def _document(data: bytes) -> tuple[dict[str, Any], Json]:
    """Return the document in the header and its schema. A correct hash does not prove that the document is valid."""
    header = parse_json(_header(data))
    metadata = header.get("__metadata__") if isinstance(header, dict) else None
    text = metadata.get("paribus") if isinstance(metadata, dict) else None
    document = parse_json(text.encode()) if isinstance(text, str) else None
    body = document.get("body") if isinstance(document, dict) else None
    if not isinstance(document, dict) or not isinstance(body, dict):
        raise ValueError("it has no document")
    return body, document.get("schema")
