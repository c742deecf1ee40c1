"""The witness in a script: what it records, the draws of its weights, and that it needs no other package."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from paribus.errors import DataError
from paribus.program import witness as witness_module
from paribus.program.witness import FULL_BYTES, Witness
from paribus.program.witness_file import WITNESS_FILE, read_witness

New = Callable[[], Witness]
TOKENS = torch.ones(2, 3, dtype=torch.int64)


@pytest.fixture
def new(tmp_path: Path) -> New:
    """Return a new witness; each writes to the same file, which is empty at first."""

    def new_witness() -> Witness:
        for path in tmp_path.glob(f"{WITNESS_FILE}*"):
            path.unlink()
        return Witness(str(tmp_path / WITNESS_FILE))

    return new_witness


def seen(witness: Witness) -> Any:
    """Return what a witness has recorded at the end of its script."""
    witness._write_batches()
    return read_witness(Path(witness._path).parent)


def test_outside_of_a_study_nothing_is_written(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv(witness_module.FILE, raising=False)
    w = witness_module.witness()
    w.model(object())  # whatever it is
    w.batch(object())
    w.log(1, loss=2.0)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("dtype", [torch.int64, torch.float32, torch.bfloat16, torch.bool])
@pytest.mark.parametrize("shape", [(0, 3), (4, 5)])
def test_equal_batches_have_equal_digests(new: New, dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    x = torch.arange(shape[0] * shape[1]).reshape(shape).to(dtype)
    digests = set()
    for tensor in (x, x.clone(), x.t().contiguous().t()):
        (w := new()).batch(tensor, tensor)
        digests.add(seen(w)["batches"]["train"]["digest"])
    assert len(digests) == 1


@given(place=st.integers(0, 63), kind=st.sampled_from(["value", "order", "shape", "dtype", "nested"]))
def test_any_other_batch_has_another_digest(place: int, kind: str) -> None:
    x, y = torch.arange(64), torch.arange(64) + 1
    other: Any = {
        "value": (torch.where(torch.arange(64) == place, -1, x), y),
        "order": (y, x),
        "shape": (x.reshape(8, 8), y),
        "dtype": (x.to(torch.int32), y),
        "nested": ({"x": x}, y),
    }[kind]
    digests = set()
    for batch in ((x, y), other):
        batches = witness_module._Batches()
        batches.add(batch, {})
        digests.add(batches.digest)
    assert len(digests) == 2


def test_a_large_batch_is_digested_by_a_sample() -> None:
    x = torch.zeros(4 * FULL_BYTES)
    digests = set()
    for value in (x, x + 1):
        batches = witness_module._Batches()
        batches.add((value,), {})
        digests.add(batches.digest)
    assert len(digests) == 2
    assert batches.tokens == len(x)  # of inputs that are no integers, examples


@pytest.mark.parametrize(
    ("batch", "named", "tokens", "targets"),
    [
        ((TOKENS, torch.tensor([[1, -100, 2]] * 2)), {}, 6, 4),
        (([TOKENS, torch.ones(2)],), {}, 6, 2),
        ((torch.ones(2, 3), torch.ones(2, dtype=torch.int64)), {}, 2, 2),
        (({"input_ids": TOKENS, "attention_mask": torch.tensor([[1, 1, 0]] * 2)},), {}, 4, None),
        ((), {"x": np.ones((2, 3), dtype=np.int32), "y": np.ones(2)}, 6, 2),
        (("text",), {}, None, None),
        ((TOKENS, torch.full((2,), 156, dtype=torch.uint8)), {}, 6, 2),
        (({"input_ids": TOKENS, "attention_mask": torch.full((2, 3), float("-inf"))},), {}, None, None),
    ],
)
def test_tokens_and_targets_are_counted(
    new: New, batch: tuple[Any, ...], named: dict[str, Any], tokens: int | None, targets: int | None
) -> None:
    w = new()
    for _ in range(3):
        w.batch(*batch, **named)
    recorded = seen(w)["batches"]["train"]
    expected = [None if count is None else 3 * count for count in (tokens, targets)]
    assert [recorded["count"], recorded["tokens"], recorded["targets"]] == [3, *expected]
    assert sorted(recorded["digests"]) == ["1", "2"]


def test_texts_in_arrays_are_compared_by_their_values() -> None:
    digests = []
    for _ in range(2):
        batches = witness_module._Batches()
        batches.add((np.array(["a" * 40, "".join(["b"] * 40)], dtype=object),), {})
        digests.append(batches.digest)
    assert digests[0] == digests[1]


@pytest.mark.parametrize(
    "tensor",
    [
        torch.randn(3, dtype=torch.complex64),
        torch.ones(3, dtype=torch.uint16),
        torch.eye(3).to_sparse(),
        torch.tensor(2.0),
    ],
)
def test_tensors_of_every_type_are_described(new: New, tensor: torch.Tensor) -> None:
    (w := new()).model({"it": tensor})
    assert seen(w)["tensors"]["it"]["shape"] == list(tensor.shape)


@pytest.mark.parametrize("model", [nn.LazyLinear(3), nn.Linear(3, 3, device="meta")])
def test_a_model_without_values_is_an_error(new: New, model: nn.Module) -> None:
    with pytest.raises(ValueError, match="no values yet"):
        new().model(model)


@pytest.mark.parametrize("sign", [1, -1])
def test_draws_of_one_sign_are_told_from_others(new: New, sign: int) -> None:
    def signs(values: torch.Tensor) -> str:
        (w := new()).model({"it": values})
        found: str = seen(w)["tensors"]["it"]["signs"]
        return found

    assert signs(sign * torch.rand(64)) != signs(sign * torch.rand(64))
    x = sign * (torch.rand(64) + 0.1)
    assert signs(x) == signs(3 * x)


def test_two_models_with_the_same_names_need_names(new: New) -> None:
    w = new()
    w.model(nn.Linear(2, 2))
    with pytest.raises(ValueError, match="name"):
        w.model(nn.Linear(2, 2))
    w.model(nn.Linear(2, 2), name="other")
    assert len(seen(w)["tensors"]) == 4


def test_an_object_without_values_is_no_batch(new: New) -> None:
    with pytest.raises(TypeError, match="object"):
        new().batch(object())


def test_tensors_are_named_as_in_the_model_itself(new: New) -> None:
    """In a model that is wrapped for several processes or compiled, names have a prefix."""
    model = nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3))
    wrapped = nn.ModuleDict({"module": nn.ModuleDict({"_orig_mod": model})})
    (w := new()).model(model)
    names = seen(w)["tensors"]
    (w := new()).model(wrapped)
    assert seen(w)["tensors"] == names
    assert names["0.weight"]["shape"] == [3, 2]
    assert names["1.running_mean"]["buffer"]
    assert names["1.weight"]["signs"] == ""  # a constant


def test_arrays_in_mappings_are_a_model(new: New) -> None:
    (w := new()).model({"layer": [np.ones(2), {"b": np.zeros(3)}], "name": "mine"}, "policy")
    assert list(seen(w)["tensors"]) == ["policy.layer.0", "policy.layer.1.b"]


class JaxArray:
    """An array of which only numpy's protocol is known, as those of JAX; a key of its generator has not even that."""

    def __init__(self, values: Any, dtype: str = "") -> None:
        self.values = np.asarray(values)
        self.shape, self.dtype = self.values.shape, dtype or str(self.values.dtype)

    def __array__(self) -> Any:
        if self.dtype.startswith("key<"):
            raise TypeError("a key has no array")
        return self.values


def test_arrays_of_jax_and_keys_of_its_generator_are_recorded(new: New, monkeypatch: pytest.MonkeyPatch) -> None:
    paths = [(SimpleNamespace(key="params"), SimpleNamespace(idx=0)), (SimpleNamespace(name="key"),)]
    leaves = [JaxArray([1.0, -2.0]), JaxArray([1, 2], "key<fry>")]
    tree_util = SimpleNamespace(
        tree_flatten_with_path=lambda model: (list(zip(paths, leaves, strict=True)) if model else [], None)
    )
    random = SimpleNamespace(key_data=lambda key: key.values)
    monkeypatch.setitem(sys.modules, "jax", SimpleNamespace(tree_util=tree_util, random=random))
    w = new()
    w.model({"params": leaves[:1], "key": leaves[1]})
    w.batch(*leaves)
    tensors = seen(w)["tensors"]
    assert list(tensors) == ["params.0", "key"]
    assert tensors["key"]["buffer"]
    with pytest.raises(TypeError, match="no weights"):
        w.model({}, "empty")


@pytest.mark.thorough
def test_a_module_a_state_and_parameters_of_flax_have_the_same_weights(new: New) -> None:
    jax = pytest.importorskip("jax", reason="jax is not installed: pip install jax flax")
    nnx = pytest.importorskip("flax.nnx", reason="flax is not installed: pip install jax flax")
    recorded = []
    for seed in (1, 1, 2):
        model = nnx.Sequential(nnx.Linear(3, 4, rngs=nnx.Rngs(seed)), nnx.Dropout(0.1, rngs=nnx.Rngs(seed)))
        for form in (model, nnx.state(model), nnx.to_pure_dict(nnx.state(model))):
            w = new()
            w.model(form)
            x = jax.random.randint(jax.random.key(seed), (2, 3), 0, 9)
            w.batch(x, x)
            recorded.append(seen(w))
    assert all(it["tensors"] == recorded[0]["tensors"] for it in recorded[:6])
    assert recorded[0]["tensors"]["layers.0.kernel"]["signs"] != recorded[6]["tensors"]["layers.0.kernel"]["signs"]
    batches = [it["batches"]["train"] for it in recorded]
    assert batches[0] == batches[3]
    assert batches[0]["digest"] != batches[6]["digest"]
    assert (batches[0]["tokens"], batches[0]["targets"]) == (6, 6)


def test_weights_that_are_recorded_after_a_batch_are_late(new: New) -> None:
    w = new()
    w.batch(torch.ones(1))
    w.model(nn.Linear(1, 1))
    assert seen(w)["late"] == 1
    w = new()
    w.batch(torch.ones(1), split="validation")
    w.model(model := nn.Linear(1, 1))
    w.batch(torch.ones(1))
    w.model(model)  # again, which adds nothing
    assert seen(w)["late"] == 0


def test_the_batches_of_all_processes_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def record(last: int) -> Any:
        for rank in (0, 1):
            monkeypatch.setenv("RANK", str(rank))
            monkeypatch.setattr(os, "getpid", lambda rank=rank: 1000 + rank)
            w = Witness(str(tmp_path / WITNESS_FILE))
            w.batch(torch.tensor([1, rank * last]), torch.tensor([1.0]))
            w.log(1, loss=2.0)
        Witness(str(tmp_path / WITNESS_FILE))._write_batches()  # a worker that has recorded nothing
        recorded = seen(w)
        for path in tmp_path.iterdir():
            path.unlink()
        return recorded["batches"]["train"]

    first, second = record(2), record(3)
    assert (first["count"], first["tokens"], first["targets"]) == (1, 4, 2)
    assert first["digest"] != second["digest"]
    assert first["digests"]["1"] != second["digests"]["1"]


@pytest.mark.parametrize("rank", [0, 1])
def test_a_sharded_tensor_is_compared_on_every_rank(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rank: int) -> None:
    def record(parts: list[torch.Tensor]) -> Any:
        for number, part in enumerate(parts):
            monkeypatch.setenv("RANK", str(number))
            monkeypatch.setattr(os, "getpid", lambda number=number: 1000 + number)
            (w := Witness(str(tmp_path / WITNESS_FILE))).model({"it": part})
        recorded = seen(w)
        for path in tmp_path.iterdir():
            path.unlink()
        return recorded["tensors"]["it"]

    draws = torch.randn(2, 5)
    tensor = record(list(draws))
    changed = draws.clone()
    changed[rank] *= -1
    assert record(list(draws)) == tensor
    assert record(list(changed))["value"] != tensor["value"]
    assert record(list(changed))["signs"] != tensor["signs"]
    assert record([draws[0], draws[1, :3]])["shape"] == [[5], [3]]
    assert record([draws[0], draws[0]]) == record([draws[0]])  # replicas


@pytest.mark.parametrize("text", ["{", "[]", '{"batches": 1}', '{"tensors": {}, "after": "x"}'])
def test_a_damaged_file_is_an_error(tmp_path: Path, text: str) -> None:
    (tmp_path / WITNESS_FILE).write_text(text + "\n")
    with pytest.raises(DataError, match=r"invalid-(line|witness)"):
        read_witness(tmp_path)


class Swapped(nn.Module):
    """A model of which one module may be another one."""

    def __init__(self, swap: nn.Module) -> None:
        super().__init__()
        self.first, self.swap, self.last = nn.Embedding(5, 4), swap, nn.Linear(4, 4)
        self.layer = nn.TransformerEncoderLayer(4, 2, 8)
        self.gain = nn.Parameter(torch.full((4,), 2.0))


@pytest.mark.parametrize("swap", [nn.Identity(), nn.Linear(4, 7), nn.LSTM(4, 4), nn.Conv1d(4, 4, 3)])
def test_a_swap_shifts_no_other_weight(new: New, swap: nn.Module) -> None:
    models = [Swapped(nn.Linear(4, 4)), Swapped(swap)]
    states = []
    for model in models:
        new().initialise(model, 3)
        states.append(torch.get_rng_state())
    baseline, variant = (dict(model.named_parameters()) for model in models)
    shared = [name for name in baseline if name in variant and not name.startswith("swap.")]
    assert len(shared) > 10
    assert all(torch.equal(baseline[name], variant[name]) for name in shared)
    assert torch.equal(*states)
    assert variant["gain"].tolist() == [2.0] * 4
    before = baseline["first.weight"].clone()
    new().initialise(models[0], 4)
    assert not torch.equal(before, baseline["first.weight"])


class Undrawn(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(9))


class Scaled(nn.Linear):
    def __init__(self) -> None:
        super().__init__(64, 64)
        nn.init.normal_(self.weight, std=1.0)


def changed(module: nn.Module, change: Callable[[Any], Any]) -> nn.Module:
    """Return a module whose weights a script has changed after it was made."""
    with torch.no_grad():
        change(module)
    return module


@pytest.mark.parametrize(
    ("model", "word"),
    [
        (Undrawn(), "was not drawn"),
        (Scaled(), "standard deviation"),
        (changed(nn.BatchNorm2d(64), lambda it: it.weight.zero_()), "standard deviation"),
        (changed(nn.Linear(64, 3), lambda it: it.bias.fill_(-4.6)), "standard deviation"),
        (changed(nn.LSTM(8, 64), lambda it: it.bias_ih_l0[64:128].fill_(1)), "standard deviation"),
        (changed(nn.Linear(4, 4), lambda it: it.weight.mul_(1e-4)), "standard deviation"),
        (changed(nn.Linear(8, 8), lambda it: it.weight.add_(3)), "standard deviation"),
        (changed(nn.Embedding(9, 8), lambda it: it.weight[0].zero_()), "rows of zeros"),
    ],
)
def test_weights_that_are_not_drawn_as_in_the_script_are_an_error(new: New, model: nn.Module, word: str) -> None:
    with pytest.raises(ValueError, match=word):
        new().initialise(nn.Sequential(model), 1)


def test_usual_modules_are_never_refused(new: New) -> None:
    """The draws of 50 seeds: a trial must not fail for its seed."""
    for seed in range(50):
        torch.manual_seed(seed)
        model = nn.Sequential(
            nn.Linear(8, 1), nn.Linear(1, 1), nn.Embedding(5, 4, padding_idx=0), nn.LSTM(3, 3), nn.Conv1d(2, 2, 3)
        )
        before = [parameter.detach().clone() for parameter in model.parameters()]
        new().initialise(model, seed)
        assert all(parameter.isfinite().all() for parameter in model.parameters())
        assert not any(torch.equal(*pair) for pair in zip(before, model.parameters(), strict=True))


def test_a_wrapped_model_has_the_same_draws(new: New) -> None:
    plain, wrapped = (nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4)) for _ in range(2))
    new().initialise(plain, 1)
    new().initialise(nn.ModuleDict({"module": nn.ModuleDict({"_orig_mod": wrapped})}), 1)
    assert all(torch.equal(*pair) for pair in zip(plain.parameters(), wrapped.parameters(), strict=True))


def test_a_function_may_draw_the_weights(new: New) -> None:
    def init(module: nn.Module) -> None:
        if isinstance(module, Scaled):
            nn.init.normal_(module.weight, std=1.0)
            nn.init.zeros_(module.bias)

    scaled, norm = Scaled(), nn.LayerNorm(64)
    nn.init.zeros_(scaled.bias)
    new().initialise(nn.Sequential(scaled, norm), 1, init)
    assert float(scaled.weight.detach().std()) > 0.9
    assert norm.weight.tolist() == [1.0] * 64


def test_a_function_with_names_draws_residual_layers_as_nanogpt_does(new: New) -> None:
    layers = {"c_fc": nn.Linear(64, 64), "c_proj": nn.Linear(64, 64)}
    nn.init.normal_(layers["c_proj"].weight, std=0.02 / 2)
    names = []

    def init(module: nn.Module, name: str) -> None:
        names.append(name)
        if isinstance(module, nn.Linear):
            module.reset_parameters()
            if name.endswith("c_proj"):
                nn.init.normal_(module.weight, std=0.02 / 2)

    new().initialise(nn.ModuleDict(layers), 1, init)
    assert names == ["c_proj", "c_fc", ""]
    assert 0.008 < float(layers["c_proj"].weight.detach().std()) < 0.012


def test_a_function_with_a_default_gets_no_name(new: New) -> None:
    def init(module: nn.Linear, gain: float = 1.0) -> None:
        nn.init.uniform_(module.weight, -gain, gain)
        nn.init.zeros_(module.bias)

    layer = nn.Linear(64, 64)
    init(layer)
    new().initialise(layer, 1, init)
    assert float(layer.weight.detach().std()) > 0.5


def test_models_of_transformers_are_drawn(new: New) -> None:
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(vocab_size=50, n_embd=16, n_layer=1, n_head=2, bos_token_id=0, eos_token_id=0)
    models = [GPT2LMHeadModel(config), GPT2LMHeadModel(config)]
    for model in models:
        new().initialise(model, 5)
    assert all(torch.equal(*pair) for pair in zip(*(model.parameters() for model in models), strict=True))


def test_a_copy_of_the_file_works_without_paribus_and_torch(tmp_path: Path) -> None:
    copy = tmp_path / "witness.py"
    copy.write_text(Path(witness_module.__file__).read_text())
    (tmp_path / "script.py").write_text(
        "import sys; sys.path.insert(0, sys.argv[1]); from witness import witness; w = witness()\n"
        "w.seed_everything(1); w.batch('a text'); w.log(3, {'val/loss': 2}, other=1.5)\n"
        "print(*sorted({'torch', 'numpy', 'paribus'} & set(sys.modules)))"
    )
    environment = {witness_module.FILE: str(tmp_path / WITNESS_FILE)}
    command = [sys.executable, "-I", str(tmp_path / "script.py"), str(tmp_path)]
    printed = subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout
    assert printed == "\n"
    assert read_witness(tmp_path)["batches"]["train"]["count"] == 1
