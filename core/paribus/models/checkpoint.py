"""Checkpoints of a trial: one file with a hash per step, from which an interrupted trial resumes bitwise.

A checkpoint is data: tensors and JSON. No code in it is run. A damaged checkpoint is reported and set aside.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final, final

import torch
from torch import Tensor, nn

from paribus.errors import Problem, StoreError
from paribus.models.distributed import full_tensor
from paribus.models.states import (
    check_optimizer,
    distinct_tensors,
    fill_model,
    fill_optimizer,
    named_tensors,
    pack_optimizer,
    tied_names,
)
from paribus.models.tensor_file import contents_digest, pack, read_tensors, unpack, write_tensors
from paribus.storage.atomic import (
    DAMAGED_SUFFIX,
    FILES,
    DamagedError,
    Files,
    Json,
    damaged_error,
    make_folder,
    quarantine,
    remove_temporary_files,
)

CHECKPOINT_COUNT: Final = 2

_NAME: Final = re.compile(r"step-(\d{8,18})\.safetensors")
_CPU: Final = torch.device("cpu")
_PARTS: Final = {"aliases", "extra", "fingerprint", "generators", "identity", "kind", "optimizer", "step"}


@final
@dataclass(frozen=True, kw_only=True)
class Checkpoint:
    """Undamaged checkpoint of a trial, for `restore`."""

    path: Path
    step: int
    generators: Mapping[str, Tensor]
    extra: Mapping[str, Any]
    notes: tuple[str, ...] = ()  # one line for each newer checkpoint that could not be used
    tensors: Mapping[str, Tensor] = field(repr=False)
    document: Mapping[str, Any] = field(repr=False)


@final
@dataclass(frozen=True)
class UnusableCheckpoints:
    """Notes about checkpoints of which none can be used, to be shown before a trial restarts."""

    notes: tuple[str, ...]


def environment_fingerprint(device: torch.device) -> dict[str, str]:
    """Return the properties of this machine that must be equal for a trial to resume bitwise."""
    return {"torch": torch.__version__, "threads": str(torch.get_num_threads()), "device": device.type}


def save(
    folder: Path,
    step: int,
    *,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    generators: Mapping[str, Tensor],
    extra: Mapping[str, Json],
    identity: str,
    fingerprint: Mapping[str, str],
    write: bool = True,
    files: Files = FILES,
) -> Path:
    """Write the checkpoint of a step, and delete all older ones but the newest. The caller holds the trial's lock.

    Where the model is sharded, all processes must call this, and the first of them with `write`.
    """
    assert step >= 0, step
    named = named_tensors(model)
    tensors = {f"model/{name}": full_tensor(tensor) for name, tensor in distinct_tensors(named).items()}
    document: dict[str, Json] = {
        "kind": "checkpoint",
        "identity": identity,
        "fingerprint": dict(fingerprint),
        "step": step,
        "aliases": tied_names(named),
        "optimizer": pack_optimizer(optimizer, model, tensors),
        "generators": pack(dict(generators), "generators", tensors),
        "extra": pack(dict(extra), "extra", tensors),
    }
    path = folder / f"step-{step:08d}.safetensors"
    if not write:
        return path
    make_folder(folder, files=files)
    remove_temporary_files(folder, files=files)  # the temporary file of a killed writer is as big as a checkpoint
    write_tensors(path, tensors, document, files=files)
    older = [checkpoint for saved_step, checkpoint in _list_checkpoints(folder) if saved_step < step]
    for checkpoint in older[CHECKPOINT_COUNT - 1 :]:
        with suppress(OSError):  # the checkpoint is safe; the next save tries again
            files.unlink(checkpoint)
    return path


def load_latest(
    folder: Path, identity: str, fingerprint: Mapping[str, str], *, files: Files = FILES
) -> Checkpoint | UnusableCheckpoints | None:
    """Return the newest undamaged checkpoint of this trial, `UnusableCheckpoints` if none is usable, or None."""
    notes: list[str] = []
    for step, path in _list_checkpoints(folder):
        try:
            loaded = _load(path, step, identity)
        except DamagedError as error:
            notes.append(_set_aside(path, error, files))
            continue
        _check_fingerprint(path, loaded.document["fingerprint"], fingerprint)
        if notes:
            notes.append(f"going on from the checkpoint of step {step}")
        return replace(loaded, notes=tuple(notes))
    if not notes:  # set aside by a run that ended before its first checkpoint
        notes = [f"{path.name} was set aside earlier" for path in sorted(folder.glob(f"step-*{DAMAGED_SUFFIX}"))]
    return (
        UnusableCheckpoints((*notes, "no checkpoint of this trial can be used: it begins again at step 0"))
        if notes
        else None
    )


def restore(loaded: Checkpoint, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """Restore a checkpoint into a model and an optimizer with equal names, shapes and ties; or change nothing."""
    prefix = "model/"
    packed = loaded.document["optimizer"]
    check_optimizer(optimizer, model, packed, loaded.path)
    tensors = {name.removeprefix(prefix): tensor for name, tensor in loaded.tensors.items() if name.startswith(prefix)}
    fill_model(model, tensors, loaded.document["aliases"], loaded.path)
    fill_optimizer(optimizer, model, packed, loaded.tensors, loaded.path)


def save_weights(
    path: Path, model: nn.Module, metadata: Mapping[str, Json], *, write: bool = True, files: Files = FILES
) -> None:
    """Write a model's tensors by name, with a JSON document; `write` as in `save`."""
    named = named_tensors(model)
    document: dict[str, Json] = {"kind": "weights", "aliases": tied_names(named), "metadata": dict(metadata)}
    tensors = {name: full_tensor(tensor) for name, tensor in distinct_tensors(named).items()}
    if write:
        write_tensors(path, tensors, document, files=files)


def load_weights(path: Path, model: nn.Module) -> dict[str, Any]:
    """Load saved weights into a model with equal names, shapes and ties; return the metadata saved with them."""
    tensors, document = read_tensors(path)
    if document.get("kind") != "weights":
        message = f"expected a file of weights, got one of kind {document.get('kind')!r}"
        raise StoreError(Problem(code="not-a-weights-file", location=str(path), message=message, valid="weights"))
    fill_model(model, tensors, document["aliases"], path)
    metadata: dict[str, Any] = document["metadata"]
    return metadata


def parameter_digest(model: nn.Module) -> str:
    """Return the SHA-256 of a model's parameters and persistent buffers: names, ties, types, shapes and bytes."""
    named = named_tensors(model)
    return contents_digest(
        {name: full_tensor(tensor) for name, tensor in distinct_tensors(named).items()}, tied_names(named)
    )


def optimizer_digest(optimizer: torch.optim.Optimizer, model: nn.Module) -> str:
    """Return the SHA-256 of an optimizer's state and hyperparameters, each by the name of its parameter."""
    tensors: dict[str, Tensor] = {}
    document = pack_optimizer(optimizer, model, tensors)
    return contents_digest(tensors, document)


def _list_checkpoints(folder: Path) -> list[tuple[int, Path]]:
    """Return the checkpoints of a folder, the newest first."""
    matches = ((_NAME.fullmatch(path.name), path) for path in folder.glob("step-*"))
    return sorted(((int(match[1]), path) for match, path in matches if match), reverse=True)


def _load(path: Path, step: int, identity: str) -> Checkpoint:
    tensors, document = read_tensors(path)
    if document.keys() != _PARTS or document["kind"] != "checkpoint" or document["step"] != step:
        raise damaged_error(path, "its contents are not the checkpoint that its file name promises")
    if document["identity"] != identity:
        message = f"this is the checkpoint of another trial, {document['identity']}"
        raise DamagedError(Problem(code="other-trial", location=str(path), message=message, valid=identity))
    return Checkpoint(
        path=path,
        step=step,
        generators=unpack(document["generators"], tensors, _CPU),
        extra=unpack(document["extra"], tensors, _CPU),
        tensors=tensors,
        document=document,
    )


def _set_aside(path: Path, error: DamagedError, files: Files) -> str:
    try:
        aside = f"set aside as {quarantine(path, files=files).name}"
    except StoreError as failed:  # a read-only folder: an older checkpoint may still be usable
        aside = f"not moved, because {failed}"
    return f"{error}; {aside}"


def _check_fingerprint(path: Path, saved: Mapping[str, str], current: Mapping[str, str]) -> None:
    differences = [
        Problem(
            code="other-machine",
            path=name,
            location=str(path),
            message=f"here it is {current.get(name, 'not known')}, so this trial would not go on bitwise",
            valid=saved.get(name, "not known"),
        )
        for name in sorted(saved.keys() | current.keys())
        if saved.get(name) != current.get(name)
    ]
    if differences:
        raise StoreError(*differences)
