from __future__ import annotations

import errno
import itertools
import os
import pickle
import random
import re
import shutil
import signal
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.fixtures.problems import raises_problem
from torch import Tensor, nn

from paribus.errors import EXIT_STORE, StoreError
from paribus.models import checkpoint, tensor_file
from paribus.models.checkpoint import (
    Checkpoint,
    UnusableCheckpoints,
    environment_fingerprint,
    load_latest,
    load_weights,
    optimizer_digest,
    parameter_digest,
    restore,
    save,
    save_weights,
)
from paribus.models.states import fill_model
from paribus.models.tensor_file import pack, read_tensors, unpack, write_tensors
from paribus.storage.atomic import FILES, DamagedError, Files, Json, canonical_json, digest

CPU = torch.device("cpu")
HERE = {"torch": "2.13.0", "threads": "1", "device": "cpu"}
TRIAL = "a" * 64

Make = Callable[[Any], torch.optim.Optimizer]


class Tiny(nn.Module):
    """Model with tensors that are hard to save: a tie, a shared layer, bfloat16, 0-dim, empty, and a buffer."""

    def __init__(self, *, tied: bool = True, width: int = 4, names: tuple[str, str] = ("first", "second")) -> None:
        super().__init__()
        self.embedding = nn.Embedding(6, width)
        self.layers = nn.ModuleDict({name: nn.Linear(width, width) for name in names})
        self.again = self.layers[names[0]]
        self.head = nn.Linear(width, 6, bias=False)
        if tied:
            self.head.weight = self.embedding.weight
        self.narrow = nn.Parameter(torch.randn(3, dtype=torch.bfloat16))
        self.scale = nn.Parameter(torch.tensor(1.5))
        self.nothing = nn.Parameter(torch.empty(0, 3))
        self.register_buffer("counts", torch.arange(4))
        self.register_buffer("flags", torch.tensor([True, False]))
        self.register_buffer("slow", self.embedding.weight.detach()[1:3])  # in the memory of another

    def forward(self, tokens: Tensor) -> Tensor:
        hidden = self.embedding(tokens)
        for layer in (*self.layers.values(), self.again):
            hidden = torch.tanh(layer(hidden))
        out: Tensor = self.head(hidden) * self.scale + self.narrow.float().sum()
        return out


OPTIMIZERS: dict[str, Make] = {
    "adamw": lambda groups: torch.optim.AdamW(groups, lr=1e-2, betas=(0.8, 0.95)),
    "amsgrad": lambda groups: torch.optim.Adam(groups, lr=1e-2, amsgrad=True),
    "tensor-lr": lambda groups: torch.optim.AdamW(groups, lr=torch.tensor(1e-2)),
    "sgd": lambda groups: torch.optim.SGD(groups, lr=1e-2),
    "momentum": lambda groups: torch.optim.SGD(groups, lr=1e-2, momentum=0.9, nesterov=True),
    "adafactor": lambda groups: torch.optim.Adafactor(groups, lr=1e-2),
}


def make_model(
    make: Make = OPTIMIZERS["adamw"], *, seed: int = 0, **options: Any
) -> tuple[Tiny, torch.optim.Optimizer]:
    torch.manual_seed(seed)
    model = Tiny(**options)
    matrices = [parameter for parameter in model.parameters() if parameter.ndim == 2 and parameter.numel()]
    vectors = [parameter for parameter in model.parameters() if parameter.ndim != 2]
    return model, make([{"params": matrices}, {"params": vectors, "weight_decay": 0.0}])


def train(model: Tiny, optimizer: torch.optim.Optimizer, steps: int) -> None:
    for _ in range(steps):
        optimizer.zero_grad()
        tokens = torch.randint(6, (2, 5))
        torch.nn.functional.cross_entropy(model(tokens).flatten(0, 1), tokens.flatten()).backward()
        optimizer.step()


def save_trial(folder: Path, step: int = 1, *, seed: int = 0, **extra_options: Any) -> Path:
    """Save a checkpoint of a trial whose weights are drawn with `seed`."""
    model, optimizer = make_model(seed=seed)
    options = {"model": model, "optimizer": optimizer, "generators": {}, "extra": {}, "identity": TRIAL}
    return save(folder, step, **{**options, "fingerprint": HERE, **extra_options})


def load_trial(folder: Path) -> Checkpoint:
    checkpoint = load_latest(folder, TRIAL, HERE)
    assert isinstance(checkpoint, Checkpoint)
    return checkpoint


def digests(model: nn.Module, optimizer: torch.optim.Optimizer) -> tuple[str, str]:
    return parameter_digest(model), optimizer_digest(optimizer, model)


def faults(code: int) -> Iterator[tuple[Files, list[str]]]:
    """Yield one disk for each call that can fail, until no call is left to fail."""
    for k in itertools.count():
        calls: list[str] = []

        def before(name: str, k: int = k, calls: list[str] = calls) -> None:
            calls.append(name)
            if len(calls) == k + 1:
                raise OSError(code, os.strerror(code))

        yield FILES.with_callback(before), calls
        if len(calls) <= k:
            return


def killing_at(k: int) -> Files:
    """Return a disk that kills this process before its k-th call."""
    calls = itertools.count()

    def before(_: str) -> None:
        if next(calls) == k:
            os.kill(os.getpid(), signal.SIGKILL)

    return FILES.with_callback(before)


def resealed(path: Path, change: Callable[[dict[str, Any]], None], schema: int = tensor_file.SCHEMA) -> None:
    """Forge a file: another document, with a correct hash."""
    tensors, document = read_tensors(path)
    change(document)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tensor_file, "SCHEMA", schema)
        write_tensors(path, tensors, document)


def into_a_folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


# --- round trips ---


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_resumed_run_is_bitwise_equal_to_an_uninterrupted_one(tmp_path: Path, name: str) -> None:
    model, optimizer = make_model(OPTIMIZERS[name])
    train(model, optimizer, 3)
    generators = {"torch": torch.get_rng_state()}
    path = save(
        tmp_path, 3, model=model, optimizer=optimizer, generators=generators, extra={}, identity=TRIAL, fingerprint=HERE
    )
    at_three = digests(model, optimizer)
    train(model, optimizer, 3)
    whole = digests(model, optimizer)

    resumed, resumed_optimizer = make_model(OPTIMIZERS[name], seed=7)
    train(resumed, resumed_optimizer, 2)  # stale state is replaced, not added to
    checkpoint = load_trial(tmp_path)
    assert (checkpoint.path, checkpoint.step, checkpoint.notes) == (path, 3, ())
    restore(checkpoint, resumed, resumed_optimizer)
    assert digests(resumed, resumed_optimizer) == at_three
    assert resumed.head.weight is resumed.embedding.weight
    assert resumed.again is resumed.layers["first"]
    torch.set_rng_state(checkpoint.generators["torch"])
    train(resumed, resumed_optimizer, 3)
    assert digests(resumed, resumed_optimizer) == whole
    restore(checkpoint, resumed, resumed_optimizer)  # training did not change the checkpoint
    assert digests(resumed, resumed_optimizer) == at_three


def test_optimizer_state_keeps_its_types_and_groups(tmp_path: Path) -> None:
    model, optimizer = make_model()
    train(model, optimizer, 1)
    optimizer.param_groups[0]["initial_lr"] = 0.5
    save_trial(tmp_path, model=model, optimizer=optimizer)
    resumed, resumed_optimizer = make_model(seed=1)
    groups = list(resumed_optimizer.param_groups)
    groups[0]["stale"] = True
    restore(load_trial(tmp_path), resumed, resumed_optimizer)
    assert all(now is then for now, then in zip(resumed_optimizer.param_groups, groups, strict=True))
    for now, then in zip(resumed_optimizer.param_groups, optimizer.param_groups, strict=True):
        assert {**now, "params": 0} == {**then, "params": 0}
    assert resumed_optimizer.param_groups[0]["betas"] == (0.8, 0.95)
    assert resumed_optimizer.param_groups[0]["initial_lr"] == 0.5
    state = resumed_optimizer.state[resumed.narrow]
    assert state["step"].shape == ()
    assert state["step"].dtype == torch.float32
    assert state["exp_avg"].dtype == torch.bfloat16


def test_optimizer_state_is_restored_by_parameter_name(tmp_path: Path) -> None:
    model, _ = make_model()
    optimizer = torch.optim.AdamW(model.parameters())
    train(model, optimizer, 2)
    save_trial(tmp_path, model=model, optimizer=optimizer)
    resumed, _ = make_model(seed=1)
    resumed_optimizer = torch.optim.AdamW(reversed(list(resumed.parameters())))
    restore(load_trial(tmp_path), resumed, resumed_optimizer)
    assert digests(resumed, resumed_optimizer) == digests(model, optimizer)
    torch.testing.assert_close(
        resumed_optimizer.state[resumed.scale]["exp_avg"], optimizer.state[model.scale]["exp_avg"], rtol=0, atol=0
    )


def test_an_optimizer_without_state_and_a_model_without_tensors_are_saved(tmp_path: Path) -> None:
    empty = nn.Identity()
    optimizer = torch.optim.SGD([nn.Parameter(torch.ones(1))])
    optimizer.param_groups[0]["params"] = []
    save_trial(tmp_path, model=empty, optimizer=optimizer)
    restore(load_trial(tmp_path), empty, optimizer)
    model, fresh = make_model()
    save_trial(tmp_path / "b", model=model, optimizer=fresh)
    train(model, fresh, 1)
    restore(load_trial(tmp_path / "b"), model, fresh)
    assert not fresh.state


def test_nan_payloads_and_minus_zero_are_saved_bitwise(tmp_path: Path) -> None:
    bits = torch.tensor([0x7FC1, 0x7F81, -0x8000, 0x0001, -0x0001], dtype=torch.int16)
    model = nn.ParameterDict({"odd": nn.Parameter(bits.view(torch.bfloat16))})
    save_weights(tmp_path / "w", model, {})
    restored = nn.ParameterDict({"odd": nn.Parameter(torch.zeros(5, dtype=torch.bfloat16))})
    load_weights(tmp_path / "w", restored)
    assert torch.equal(restored["odd"].view(torch.int16), bits)


def test_generators_and_extras_round_trip(tmp_path: Path) -> None:
    generators = {"torch": torch.get_rng_state(), "data": torch.Generator().manual_seed(3).get_state()}
    extra: dict[str, Any] = {"epoch": 2, "best": float("-inf"), "curve": [1.0, None, True], "nested": {"a": "b"}}
    save_trial(tmp_path, generators=generators, extra=extra)
    checkpoint = load_trial(tmp_path)
    assert checkpoint.extra == extra
    assert checkpoint.generators.keys() == generators.keys()
    assert all(torch.equal(checkpoint.generators[name], generators[name]) for name in generators)


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.lists(inner, max_size=3).map(tuple)
        | st.dictionaries(st.text(max_size=3), inner, max_size=3)
    ),
    max_leaves=8,
)


@given(values)
@settings(max_examples=25)
def test_packing_preserves_values_and_types(value: object) -> None:
    packed = pack(value, "here", {})
    canonical_json(packed)
    unpacked = unpack(packed, {}, CPU)
    assert unpacked == value
    assert repr(unpacked) == repr(value)  # (1,) is not [1], and True is not 1


def test_a_tensor_is_restored_on_the_device_it_was_saved_from() -> None:
    tensors = {"moment": torch.ones(2), "step": torch.tensor(3.0)}
    packed = {"dict": {"moment": {"tensor": "moment", "device": "meta"}, "step": {"tensor": "step", "device": "cpu"}}}
    unpacked = unpack(packed, tensors, torch.device("meta"))  # in place of an accelerator
    assert (unpacked["moment"].device.type, unpacked["step"].device.type) == ("meta", "cpu")
    assert pack(torch.ones(2, device="meta"), "moment", {}) == packed["dict"]["moment"]


@pytest.mark.parametrize("value", [{1: 2}, {"a": [object()]}, torch.float32, b"", {1}])
def test_an_unsupported_value_is_rejected_with_its_path(value: object) -> None:
    with raises_problem(StoreError, "cannot-save", "tensors, numbers"):
        pack(value, "here", {})


def test_extra_state_that_is_not_a_tensor_is_rejected(tmp_path: Path) -> None:
    class Odd(nn.Module):
        def get_extra_state(self) -> object:
            return {"a": 1}

    with raises_problem(StoreError, "cannot-save", "_extra_state"):
        save_weights(tmp_path / "w", Odd(), {})


def test_the_file_can_be_read_by_safetensors(tmp_path: Path) -> None:
    from safetensors import safe_open

    model, _ = make_model()
    save_weights(tmp_path / "w.safetensors", model, {"steps": 3})
    with safe_open(tmp_path / "w.safetensors", framework="pt") as file:
        assert torch.equal(file.get_tensor("embedding.weight"), model.embedding.weight)
        assert "head.weight" not in file.keys()  # noqa: SIM118  # a safetensors file is no mapping
        assert file.metadata()["format"] == "pt"


# --- weights alone ---


def test_weights_are_loaded_with_their_metadata(tmp_path: Path) -> None:
    model, _ = make_model()
    save_weights(tmp_path / "w", model, {"steps": 3, "loss": float("nan")})
    restored, _ = make_model(seed=1)
    assert parameter_digest(restored) != parameter_digest(model)
    assert load_weights(tmp_path / "w", restored) == {"steps": 3, "loss": "nan"}
    assert parameter_digest(restored) == parameter_digest(model)
    assert restored.head.weight is restored.embedding.weight


def test_checkpoints_and_weights_are_distinguished(tmp_path: Path) -> None:
    model, _ = make_model()
    with raises_problem(StoreError, "not-a-weights-file"):
        load_weights(save_trial(tmp_path), model)
    save_weights(tmp_path / "step-00000009.safetensors", model, {})
    assert "its contents are not the checkpoint that its file name promises" in load_trial(tmp_path).notes[0]


# --- mismatches are rejected and change nothing ---


@pytest.mark.parametrize(
    ("options", "values"),
    [
        ({"tied": False}, ("head.weight", "embedding.weight")),
        ({"width": 3}, ("embedding.weight", "[6, 4]", "float32 [6, 3]")),
        (
            {"names": ("first", "third")},
            ("layers.third.bias", "layers.third.weight"),
        ),
        ({"names": ("first", "third")}, ("layers.second.bias", "layers.second.weight")),
    ],
)
def test_a_mismatched_model_is_rejected_with_every_tensor(
    tmp_path: Path, options: dict[str, Any], values: tuple[str, ...]
) -> None:
    save_weights(tmp_path / "w", make_model()[0], {})
    model, _ = make_model(seed=1, **options)
    original_digest = parameter_digest(model)
    with raises_problem(StoreError, "does-not-fit", *values) as caught:
        load_weights(tmp_path / "w", model)
    assert parameter_digest(model) == original_digest
    assert caught.value.exit_code == EXIT_STORE
    assert all("does-not-fit" in line for line in str(caught.value).splitlines())


def test_an_untied_checkpoint_is_not_loaded_into_a_tied_model(tmp_path: Path) -> None:
    save_weights(tmp_path / "w", make_model(tied=False)[0], {})
    with raises_problem(StoreError, "does-not-fit", "head.weight", "embedding.weight"):
        load_weights(tmp_path / "w", make_model()[0])


def test_a_tensor_of_another_dtype_is_rejected(tmp_path: Path) -> None:
    with raises_problem(StoreError, "does-not-fit", "weight", "float64 [1, 2]", "float32 [1, 2]"):
        fill_model(nn.Linear(2, 1, bias=False), {"weight": torch.ones(1, 2).double()}, {}, tmp_path)


@pytest.mark.parametrize(
    ("make", "code", "values"),
    [
        (
            lambda model: torch.optim.SGD(model.parameters()),
            "does-not-fit",
            ("torch.optim.adamw.AdamW", "torch.optim.sgd.SGD"),
        ),
        (lambda model: torch.optim.AdamW(model.parameters()), "does-not-fit", ("2", "1")),
        (
            lambda model: torch.optim.AdamW([{"params": [model.scale]}, {"params": [model.narrow]}]),
            "does-not-fit",
            ("0", "again.weight"),
        ),
        (
            lambda _: torch.optim.AdamW([nn.Parameter(torch.ones(2, 5))]),
            "unknown-parameter",
            ("0", "[2, 5]"),
        ),
    ],
)
def test_a_mismatched_optimizer_is_rejected_and_the_model_is_unchanged(
    tmp_path: Path, make: Callable[[Tiny], torch.optim.Optimizer], code: str, values: tuple[str, ...]
) -> None:
    save_trial(tmp_path)
    model, _ = make_model(seed=1)
    original_digest = parameter_digest(model)
    with raises_problem(StoreError, code, *values):
        restore(load_trial(tmp_path), model, make(model))
    assert parameter_digest(model) == original_digest


def test_optimizer_state_of_an_unknown_tensor_is_rejected() -> None:
    model, optimizer = make_model()
    optimizer.state[torch.ones(1)] = {"step": 1}
    with raises_problem(StoreError, "cannot-save", "1"):
        optimizer_digest(optimizer, model)


@pytest.mark.parametrize(
    ("now", "words"),
    [
        ({**HERE, "torch": "2.14.0"}, r"error\[other-machine\] torch.*2\.14\.0.*2\.13\.0"),
        (
            {**HERE, "threads": "2", "device": "cuda"},
            r"(?s)error\[other-machine\] device.*cuda.*cpu.*error\[other-machine\] threads.*2.*1",
        ),
        ({**HERE, "cpu": "avx2"}, r"error\[other-machine\] cpu.*avx2.*not known"),
        ({"torch": "2.13.0", "threads": "1"}, r"error\[other-machine\] device.*not known.*cpu"),
    ],
)
def test_a_trial_is_not_resumed_in_another_environment(tmp_path: Path, now: Mapping[str, str], words: str) -> None:
    path = save_trial(tmp_path)
    with pytest.raises(StoreError, match=words):
        load_latest(tmp_path, TRIAL, now)
    assert path.exists()


def test_the_environment_fingerprint_describes_this_process() -> None:
    expected = {"torch": torch.__version__, "threads": str(torch.get_num_threads()), "device": "cpu"}
    assert environment_fingerprint(CPU) == expected


# --- selection of a checkpoint ---


def test_a_folder_without_checkpoints_has_none(tmp_path: Path) -> None:
    assert load_latest(tmp_path / "missing", TRIAL, HERE) is None
    (tmp_path / "step-1.txt").touch()
    (tmp_path / ".paribus-1-ab.tmp").touch()
    assert load_latest(tmp_path, TRIAL, HERE) is None


def test_the_newest_two_are_retained_and_temporary_files_removed(tmp_path: Path) -> None:
    (tmp_path / ".paribus-1-ab.tmp").touch()
    for step in (0, 5, 10, 123456789):
        save_trial(tmp_path, step)
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "step-00000010.safetensors",
        "step-123456789.safetensors",
    ]
    assert load_trial(tmp_path).step == 123456789


def test_saving_an_older_step_removes_no_newer_checkpoint(tmp_path: Path) -> None:
    for step in (10, 20):
        save_trial(tmp_path, step)
    save_trial(tmp_path, 5)
    assert len(list(tmp_path.iterdir())) == 3


BAD: dict[str, tuple[Callable[[Path], object], str]] = {
    "empty": (lambda path: path.write_bytes(b""), "it has no hash"),
    "truncated": (lambda path: path.write_bytes(path.read_bytes()[:-7]), "does not have the hash"),
    "zeroed": (lambda path: path.write_bytes(bytes(path.stat().st_size)), "it has no hash"),
    "a folder": (into_a_folder, "Is a directory"),
    "another trial's": (
        lambda path: save_trial(path.parent, 2, identity="b" * 64),
        "other-trial.* the checkpoint of another trial, b{64}; valid: a{64}",
    ),
    "renamed": (
        lambda path: shutil.copy(path.parent / "step-00000001.safetensors", path),
        "that its file name promises",
    ),
    "newer": (lambda path: resealed(path, lambda _: None, schema=2), "unknown-schema.*in schema 2,.*; valid: 1"),
    "more keys": (lambda path: resealed(path, lambda document: document.update(more=1)), "that its file name promises"),
}


@pytest.mark.parametrize("kind", BAD)
def test_a_damaged_checkpoint_is_set_aside_and_the_previous_one_is_used(tmp_path: Path, kind: str) -> None:
    spoil, words = BAD[kind]
    save_trial(tmp_path, 1, seed=1)
    path = save_trial(tmp_path, 2, seed=2)
    spoil(path)
    checkpoint = load_trial(tmp_path)
    assert checkpoint.step == 1
    damage_note, fallback_note = checkpoint.notes
    assert fallback_note == "going on from the checkpoint of step 1"
    assert re.search(words, damage_note)
    (aside,) = tmp_path.glob("step-00000002.safetensors.*.bad")
    assert damage_note.endswith(f"; set aside as {aside.name}")
    assert load_trial(tmp_path).notes == ()
    save_trial(tmp_path, 2, seed=2)
    assert load_trial(tmp_path).step == 2


def test_unusable_checkpoints_are_reported_on_every_run(tmp_path: Path) -> None:
    for step in (1, 2):
        path = save_trial(tmp_path, step)
        path.write_bytes(b"PK")
    first_result = load_latest(tmp_path, TRIAL, HERE)
    assert isinstance(first_result, UnusableCheckpoints)
    assert ["step-00000002" in first_result.notes[0], "step-00000001" in first_result.notes[1]] == [True, True]
    assert first_result.notes[-1] == "no checkpoint of this trial can be used: it begins again at step 0"
    second_result = load_latest(tmp_path, TRIAL, HERE)  # the previous run ended before its first save
    assert isinstance(second_result, UnusableCheckpoints)
    assert second_result.notes[0].endswith(".bad was set aside earlier")
    assert second_result.notes[-1] == first_result.notes[-1]


def test_a_damaged_checkpoint_that_cannot_be_moved_is_skipped(tmp_path: Path) -> None:
    save_trial(tmp_path, 1)
    save_trial(tmp_path, 2).write_bytes(b"")
    files, _ = next(faults(errno.EROFS))
    result = load_latest(tmp_path, TRIAL, HERE, files=files)
    assert isinstance(result, Checkpoint)
    assert result.step == 1
    assert "not moved, because error[cannot-write]" in result.notes[0]
    assert "Read-only file system" in result.notes[0]


def test_a_temporarily_unreadable_checkpoint_is_not_set_aside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = save_trial(tmp_path)

    def refuse(_: Path) -> bytes:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    monkeypatch.setattr(Path, "read_bytes", refuse)
    with raises_problem(StoreError, "cannot-read", "Too many open files"):
        load_latest(tmp_path, TRIAL, HERE)
    assert path.exists()


def test_a_pickle_named_like_a_checkpoint_is_never_executed(tmp_path: Path) -> None:
    marker = tmp_path / "marker"

    class Malicious:
        def __reduce__(self) -> tuple[Any, ...]:
            return marker.touch, ()

    path = tmp_path / "step-00000001.safetensors"
    path.write_bytes(pickle.dumps(Malicious()))
    assert isinstance(load_latest(tmp_path, TRIAL, HERE), UnusableCheckpoints)
    torch.save({"a": Malicious()}, path)
    assert isinstance(load_latest(tmp_path, TRIAL, HERE), UnusableCheckpoints)
    assert not marker.exists()


@pytest.mark.parametrize(
    "header",
    [
        b'{"__metadata__":{"sha256":"%s"}}',
        b'{"__metadata__":{"paribus":"[]","sha256":"%s"}}',
        b'{"__metadata__":{"paribus":"{\\"body\\":[]}","sha256":"%s"}}',
        b'{"__metadata__":[],"sha256":"%s"}',
        b'["sha256":"%s"]',
        b'{"__metadata__":{"paribus":"{\\"body\\":{}}","sha256":"%s"},"a":{"dtype":"F32","shape":[9],"data_offsets":[0,4]}}',
    ],
)
def test_a_forged_header_with_a_correct_hash_is_rejected(tmp_path: Path, header: bytes) -> None:
    blank = header % (b"0" * 64)
    size = len(blank).to_bytes(8, "little")
    path = tmp_path / "forged"
    path.write_bytes(size + header % digest(size + blank).encode())
    with pytest.raises(
        DamagedError, match=r"forged\): this file was cut, edited or damaged: (?!it does not have the hash)"
    ):
        read_tensors(path)


# --- faults ---


def test_every_sampled_flipped_bit_and_truncation_is_detected(tmp_path: Path) -> None:
    path = save_trial(tmp_path)
    data = path.read_bytes()
    draw = random.Random(0)
    for bit in draw.sample(range(8 * len(data)), 300):
        flipped = bytearray(data)
        flipped[bit // 8] ^= 1 << bit % 8
        path.write_bytes(flipped)
        with raises_problem(DamagedError, "damaged"):
            read_tensors(path)
    for length in {0, 1, 7, 8, 9, len(data) - 1, *draw.sample(range(len(data)), 100)}:
        path.write_bytes(data[:length])
        with raises_problem(DamagedError, "damaged"):
            read_tensors(path)
    path.write_bytes(data + b"\0")
    with raises_problem(DamagedError, "damaged"):
        read_tensors(path)


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO])
def test_a_failed_save_leaves_a_valid_checkpoint_and_the_next_save_works(tmp_path: Path, code: int) -> None:
    calls = ["create", "write", "write", "write", "fsync", "close", "rename", "fsync_dir", "unlink"]
    for k, (files, made_calls) in enumerate(faults(code)):
        folder = tmp_path / str(k)
        save_trial(folder, 1)
        save_trial(folder, 2, seed=2)
        if k < calls.index("unlink"):
            with raises_problem(StoreError, "cannot-write", "step-00000003.safetensors"):
                save_trial(folder, 3, seed=3, files=files)
        else:
            save_trial(folder, 3, seed=3, files=files)
            assert made_calls == calls
        checkpoint = load_trial(folder)
        assert (checkpoint.step, checkpoint.notes) == (2 if k <= calls.index("rename") else 3, ())
        model, optimizer = make_model(seed=9)
        restore(checkpoint, model, optimizer)
        assert parameter_digest(model) == parameter_digest(make_model(seed=checkpoint.step)[0])
        save_trial(folder, 3, seed=3)
        assert [path.name for path in sorted(folder.iterdir())] == [
            f"step-0000000{step}.safetensors" for step in (2, 3)
        ]


@pytest.mark.thorough
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")  # the child starts no thread
def test_a_kill_before_any_call_leaves_the_old_or_new_checkpoint(tmp_path: Path) -> None:
    steps: list[int] = []
    for k in itertools.count():
        folder = tmp_path / str(k)
        save_trial(folder, 1)
        child = os.fork()
        if child == 0:
            try:
                save_trial(folder, 2, files=killing_at(k))
            finally:
                os._exit(0)
        _, status = os.waitpid(child, 0)
        checkpoint = load_trial(folder)
        assert checkpoint.notes == ()
        steps.append(checkpoint.step)
        save_trial(folder, 2)
        assert len(list(folder.iterdir())) == 2
        if not os.WIFSIGNALED(status):
            break
    assert steps == [1] * 7 + [2] * 2  # the rename is the seventh of eight calls; the last child was not killed


# --- digests ---


def test_the_parameter_digest_depends_on_names_dtypes_shapes_ties_and_bytes() -> None:
    def weights(**tensors: Tensor) -> str:
        return parameter_digest(nn.ParameterDict({name: nn.Parameter(tensor) for name, tensor in tensors.items()}))

    ones = torch.ones(2, 3)
    tie = nn.ParameterDict({"a": nn.Parameter(ones)})
    tie["b"] = tie["a"]
    digests = [
        weights(a=ones),
        weights(b=ones),
        weights(a=ones.bfloat16()),
        weights(a=ones.T.contiguous()),
        weights(a=ones.nextafter(torch.tensor(2.0))),
        weights(a=torch.zeros(2)),
        weights(a=-torch.zeros(2)),
        weights(a=torch.zeros(2).half()),
        weights(a=torch.zeros(2).bfloat16()),
        weights(a=ones, b=ones),
        parameter_digest(tie),
        weights(),
    ]
    assert len(set(digests)) == len(digests)
    assert weights(a=ones, b=torch.zeros(1)) == weights(b=torch.zeros(1), a=ones.clone())
    assert weights(a=ones.T) == weights(a=ones.T.contiguous())


def test_the_optimizer_digest_depends_on_state_and_hyperparameters() -> None:
    model, optimizer = make_model()
    digests = {optimizer_digest(optimizer, model)}
    train(model, optimizer, 1)
    digests.add(optimizer_digest(optimizer, model))
    optimizer.state[model.scale]["step"] += 1
    digests.add(optimizer_digest(optimizer, model))
    optimizer.param_groups[1]["lr"] = 0.5
    digests.add(optimizer_digest(optimizer, model))
    assert len(digests) == 4
    assert optimizer_digest(optimizer, model) in digests


def test_a_checkpoint_has_exactly_the_declared_parts(tmp_path: Path) -> None:
    document: Mapping[str, Json] = read_tensors(save_trial(tmp_path))[1]
    assert document.keys() == checkpoint._PARTS


def test_equal_weights_are_saved_as_equal_files(tmp_path: Path) -> None:
    model = torch.nn.Linear(2, 2)
    for number in range(8):  # safetensors orders its metadata differently each time
        save_weights(tmp_path / f"{number}", model, {"identity": "one"})
    assert len({(tmp_path / f"{number}").read_bytes() for number in range(8)}) == 1
