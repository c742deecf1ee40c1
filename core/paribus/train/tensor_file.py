"""A file of tensors and one JSON document, sealed with its hash: an ordinary safetensors file, and nothing to unpickle.

The hash stands in the header, and is that of the whole file with zeros in the hash's own place, so that no bit of the
file is left out and any reader of safetensors still opens it.
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
    """Replace what is at `path` by these tensors and this document, whole or not at all."""
    text = canonical_json({"body": document, "schema": SCHEMA}).decode()
    metadata = {"format": "pt", "paribus": text, "sha256": _BLANK.decode()}
    data = memoryview(safetensors.torch.save(_apart(tensors), metadata))
    head = _ordered(_header(data))
    body = data[8 + int.from_bytes(data[:8], "little") :]
    at = _seal_at(head)
    write_bytes(path, head[:at], digest(head, body).encode() + head[at + len(_BLANK) :], body, files=files)


def _ordered(header: bytes) -> bytes:
    """The beginning of a file, with the metadata in order: safetensors has it in another each time it is asked."""
    said = json.loads(header)
    said["__metadata__"] = dict(sorted(said["__metadata__"].items()))
    text = json.dumps(said, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % _ALIGNED)
    return len(text).to_bytes(8, "little") + text


def read_tensors(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """The tensors, on the CPU, and the document, refused unless the file is to the bit what was written."""
    data = read_bytes(path)
    try:
        at = _seal_at(data)
        view, end = memoryview(data), at + len(_BLANK)
        if digest(view[:at], _BLANK, view[end:]).encode() != data[at:end]:
            raise damaged_error(path, "it does not have the hash that it was sealed with")
        body, schema = _document(data)
        tensors = safetensors.torch.load(data)
    except (ValueError, SafetensorError) as error:
        raise damaged_error(path, str(error)) from error
    if schema != SCHEMA:
        message = f"this file is written in schema {schema!r}, which this version of paribus does not read"
        raise DamagedError(Problem(code="unknown-schema", location=str(path), message=message, valid=str(SCHEMA)))
    return tensors, body


def digest_tensors(tensors: Mapping[str, Tensor], document: Json) -> str:
    """SHA-256 of a document and of each tensor's name, type, shape and bytes, in the order of the names."""
    hashed = hashlib.sha256(canonical_json(document))
    for name in sorted(tensors):
        tensor = tensors[name]
        hashed.update(canonical_json([name, str(tensor.dtype), list(tensor.shape)]))
        # numpy has no bfloat16, and neither views a 0-dim tensor as bytes
        hashed.update(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return hashed.hexdigest()


def pack(value: object, place: str, tensors: dict[str, Tensor]) -> Json:
    """A value as JSON that `unpack` makes into the same value again. Its tensors go into `tensors`, by their place."""
    if isinstance(value, Tensor):
        assert place not in tensors, place
        tensors[place] = value
        return {"tensor": place, "device": value.device.type}
    if isinstance(value, float) and not math.isfinite(value):
        return {"float": str(float(value))}
    if value is None or isinstance(value, str | int | float):
        return value
    if isinstance(value, list | tuple):
        items = [pack(item, f"{place}/{index}", tensors) for index, item in enumerate(value)]
        return {"tuple" if isinstance(value, tuple) else "list": items}
    if isinstance(value, Mapping) and all(isinstance(key, str) for key in value):
        return {"dict": {key: pack(item, f"{place}/{key}", tensors) for key, item in value.items()}}
    message = f"a checkpoint cannot hold a {type(value).__name__}"
    valid = "tensors, numbers, strings, None, and lists, tuples and string-keyed mappings of these"
    raise StoreError(Problem(code="not-saved", path=place, message=message, valid=valid))


def unpack(packed: Any, tensors: Mapping[str, Tensor], device: torch.device) -> Any:
    """What was packed. A tensor goes back to the CPU if it was there (AdamW's step counts are), else to `device`."""
    if not isinstance(packed, dict):
        return packed
    if "tensor" in packed:
        # A copy: the optimizer works in place, and what was loaded may be restored once more.
        tensor = tensors[packed["tensor"]]
        return tensor.to(device if packed["device"] == device.type else packed["device"], copy=True)
    if "float" in packed:
        return float(packed["float"])
    if "dict" in packed:
        return {key: unpack(item, tensors, device) for key, item in packed["dict"].items()}
    (kind, items), *_ = packed.items()
    return {"list": list, "tuple": tuple}[kind](unpack(item, tensors, device) for item in items)


def _apart(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The tensors on the CPU, contiguous, and none in the memory of another, which safetensors refuses."""
    apart: dict[str, Tensor] = {}
    seen: set[int] = set()
    for name, tensor in tensors.items():
        alone = tensor.detach().cpu().contiguous()
        if alone.untyped_storage().data_ptr() in seen:
            alone = alone.clone()
        seen.add(alone.untyped_storage().data_ptr())
        apart[name] = alone
    return apart


def _header(data: bytes | memoryview) -> bytes:
    return bytes(data[8 : 8 + int.from_bytes(data[:8], "little")])


def _seal_at(data: bytes | memoryview) -> int:
    found = _header(data).find(SEAL)
    if found < 0:
        raise ValueError("it has no seal")
    return 8 + found + len(SEAL)


def _document(data: bytes) -> tuple[dict[str, Any], Json]:
    """The document in the header, and its schema. The hash was right; a forger can see to that as well."""
    header = parse_json(_header(data))
    metadata = header.get("__metadata__") if isinstance(header, dict) else None
    text = metadata.get("paribus") if isinstance(metadata, dict) else None
    document = parse_json(text.encode()) if isinstance(text, str) else None
    body = document.get("body") if isinstance(document, dict) else None
    if not isinstance(document, dict) or not isinstance(body, dict):
        raise ValueError("it holds no document")
    return body, document.get("schema")
