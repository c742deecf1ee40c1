"""Keyed initialisation: the initial value of a parameter depends on the seed and its path only."""

import copy
import itertools
import re
from collections.abc import Callable, Iterator

import pytest
import torch
from torch import Tensor

from paribus.assembly.initialise import standard_normal
from paribus.models.lightning_module import Model

DRAWN = {"query", "key", "value", "residual", "inner", "embedding", "head", "weight"}

ANYWHERE = "no path"
KEYS_AND_VALUES = r"body\.layers\.\d\.attention\.heads\.[kv]\."
# What changes, what it changes to, and the paths of the tensors that this may add, take away, or give another shape.
SWAPS = {
    "mha → gqa": ("gpt-tiny", ["attention=gqa"], KEYS_AND_VALUES),
    "mha → mqa": ("bert-tiny", ["attention=mqa"], KEYS_AND_VALUES),
    "mha → restricted": ("encoder-tiny", ["attention=restricted", "attention.window=3"], ANYWHERE),
    "pre → post": ("gpt-tiny", ["placement=post"], r"body\.norm\."),
    "post → pre": ("bert-tiny", ["placement=pre"], r"body\.norm\."),
    "learned → rope": ("gpt-tiny", ["position=rope"], r"body\.position\."),
    "rope → learned": ("encoder-tiny", ["position=learned"], r"body\.position\."),
    "rope → alibi": ("encoder-tiny", ["position=alibi"], ANYWHERE),
    "mlp → glu": ("encoder-tiny", ["feedforward=glu"], r"body\.layers\.\d\.feedforward\."),
    "layernorm → rmsnorm": ("encoder-tiny", ["norm=rmsnorm"], r".*norms?\.(\w+\.)?bias"),
    "rmsnorm → none": ("seq2seq-tiny", ["norm=none"], r".*norm"),
    "tied → untied": ("gpt-tiny", ["embedding.tie=false"], r"embedding\.head\."),
    "no segments → segments": ("encoder-tiny", ["embedding.segments=2"], r"embedding\.segments\."),
    "mlm → clm": ("encoder-tiny", ["topology=decoder", "objective=clm"], r"objectives\.mlm\."),
    "mlm, nsp → mlm": ("bert-tiny", ["objective=[mlm]"], r"objectives\.nsp\."),
    "two layers → three": ("gpt-tiny", ["initialisation=normal", "dims.layers=3"], r"body\.layers\.2\."),
    "decoder → encoder-decoder": (
        "gpt-tiny",
        ["topology=encoder-decoder", "objective=span-corruption", "initialisation=normal"],
        r"encoder\.|body\.layers\.\d\.(cross|placement\.norms\.cross)\.",
    ),
}


@pytest.mark.parametrize(("preset", "overrides", "touched"), SWAPS.values(), ids=SWAPS)
def test_replacing_a_component_keeps_every_other_tensor_bitwise_equal(
    preset: str, overrides: list[str], touched: str, assemble: Callable[..., Model]
) -> None:
    same = [override for override in overrides if override.startswith("initialisation")]
    baseline_tensors, variant_tensors = (
        dict(tensors(assemble(preset, *same))),
        dict(tensors(assemble(preset, *overrides))),
    )
    changed = {
        path
        for path in baseline_tensors.keys() | variant_tensors.keys()
        if path not in baseline_tensors
        or path not in variant_tensors
        or baseline_tensors[path].shape != variant_tensors[path].shape
    }
    assert {path for path in changed if not re.match(touched, path)} == set()
    assert touched == ANYWHERE or changed
    assert [
        path
        for path in baseline_tensors.keys() - changed
        if not torch.equal(baseline_tensors[path], variant_tensors[path])
    ] == []


def tensors(model: Model) -> Iterator[tuple[str, Tensor]]:
    yield from model.named_parameters(remove_duplicate=False)


@pytest.mark.parametrize("preset", ["gpt-tiny", "encoder-tiny", "seq2seq-tiny", "bert-tiny"])
def test_initial_weights_depend_on_the_seed_only(preset: str, assemble: Callable[..., Model]) -> None:
    torch.manual_seed(7)
    baseline_tensors = dict(tensors(assemble(preset)))
    generator = torch.get_rng_state()
    torch.rand(13)
    torch.set_num_threads(2)
    try:
        second = dict(tensors(assemble(preset)))
    finally:
        torch.set_num_threads(1)
    assert all(torch.equal(baseline_tensors[path], second[path]) for path in baseline_tensors)
    torch.manual_seed(7)
    assemble(preset)
    assert torch.equal(torch.get_rng_state(), generator)


def test_seeds_with_equal_low_bits_give_different_models(assemble: Callable[..., Model]) -> None:
    models = [assemble("gpt-tiny", f"seed={seed}") for seed in (1, 1 + 2**32, 2, 2**62 + 1)]
    for first_model, second_model in itertools.combinations(models, 2):
        second_tensors = dict(tensors(second_model))
        drawn_paths = [path for path, about in first_model.parameter_info.items() if about.role in DRAWN]
        assert drawn_paths
        assert [
            path for path in drawn_paths if torch.equal(second_tensors[path], first_model.get_parameter(path))
        ] == []


def test_all_tensors_of_a_model_have_different_initial_weights(assemble: Callable[..., Model]) -> None:
    model = assemble("seq2seq-tiny", "embedding.tie=false", "embedding.segments=2")
    starts = {
        path: tensor.flatten()[:4].tolist()
        for path, tensor in tensors(model)
        if model.parameter_info[path].role in DRAWN
    }
    assert len({tuple(start) for start in starts.values()}) == len(starts)


def test_float64_models_have_the_float32_draws(assemble: Callable[..., Model]) -> None:
    single = dict(tensors(assemble("encoder-tiny")))
    torch.set_default_dtype(torch.float64)
    try:
        double = dict(tensors(assemble("encoder-tiny")))
    finally:
        torch.set_default_dtype(torch.float32)
    assert all(tensor.dtype == torch.float64 for tensor in double.values())
    assert all(torch.equal(double[path].float(), single[path]) for path in single)


def test_draws_are_standard_normal() -> None:
    draws = standard_normal(3, "body.layers.0.attention.heads.q.weight", (500, 400)).double().flatten()
    moments = [float((draws**power).mean()) for power in (1, 2, 3, 4)]
    deviations = [n * len(draws) ** -0.5 for n in (1.0, 2**0.5, 15**0.5, 96**0.5)]
    for moment, expected, deviation in zip(moments, (0, 1, 0, 3), deviations, strict=True):
        assert abs(moment - expected) < 4 * deviation


def test_draws_of_different_paths_and_seeds_are_independent() -> None:
    keys = [(0, "a"), (1, "a"), (0, "b"), (2**32, "a"), (0, "aa"), (-1, "a"), (0, "0.a")]
    draws = torch.stack([standard_normal(seed, path, (10_000,)) for seed, path in keys]).double()
    apart = torch.corrcoef(draws) - torch.eye(len(keys))
    assert apart.abs().max() < 5 * 10_000**-0.5


def test_a_scalar_can_be_drawn() -> None:
    assert standard_normal(0, "gate", ()).shape == ()


@pytest.mark.parametrize("scheme", ["normal", "gpt2", "xavier"])
@pytest.mark.parametrize("preset", ["gpt-tiny", "seq2seq-tiny", "bert-tiny"])
def test_a_parameter_is_its_draw_scaled_by_role_and_shape(
    preset: str, scheme: str, assemble: Callable[..., Model]
) -> None:
    model = assemble(preset, f"initialisation={scheme}", "dims.width=12", "feedforward.expand=3", "seed=5")
    parameters = dict(tensors(model))
    assert parameters.keys() == model.parameter_info.keys()
    for path, about in model.parameter_info.items():
        if about.role in DRAWN:
            expected = standard_normal(5, path, about.shape) * scale(
                scheme, about.role, about.shape, preset == "seq2seq-tiny", path
            )
            torch.testing.assert_close(parameters[path], expected, rtol=1e-6, atol=0)
        else:
            assert torch.equal(parameters[path], torch.full(about.shape, float(about.role == "gain"))), path


def scale(scheme: str, role: str, shape: tuple[int, ...], crosses: bool, path: str) -> float:
    """Return the standard deviation by the papers' formulas, for two layers."""
    if scheme == "normal":
        return 0.02
    if scheme == "gpt2":
        branches = 3 * 2 if crosses and path.startswith("body.") else 2 * 2
        return float(0.02 / branches**0.5) if role == "residual" else 0.02
    return float(shape[1] ** -0.5 if role == "embedding" else (2 / (shape[0] + shape[1])) ** 0.5)


def test_every_parameter_has_the_role_of_its_path(assemble: Callable[..., Model]) -> None:
    model = assemble("bert-tiny", "embedding.tie=false", "placement=pre", "feedforward=glu", "feedforward.bias=true")
    places = {
        r"embedding\.(tokens|segments)\.weight|body\.position\.0\.table\.weight": "embedding",
        r"embedding\.head\.weight|objectives\..*\.(dense|scores)\.weight": "head",
        r".*\.heads\.q\.weight": "query",
        r".*\.heads\.k\.weight": "key",
        r".*\.heads\.v\.weight": "value",
        r".*\.heads\.o\.weight|.*\.outer\.weight": "residual",
        r".*\.(gate|inner)\.weight": "inner",
        r".*norms?\.(\w+\.)?weight": "gain",
        r".*bias": "bias",
    }
    for path, about in model.parameter_info.items():
        assert about.role == next(role for place, role in places.items() if re.fullmatch(place, path)), path


def test_a_deep_copy_is_independent_of_the_original(
    assemble: Callable[..., Model], shake: Callable[[Model], Model]
) -> None:
    for preset in ("gpt-tiny", "encoder-tiny", "seq2seq-tiny"):
        model = shake(assemble(preset, "attention=[mha, gqa]"))
        copied = copy.deepcopy(model)
        tokens = torch.arange(20).view(2, 10)
        source = {"source": tokens + 3} if preset == "seq2seq-tiny" else {}
        expected = model(tokens, **source)[0]
        assert torch.equal(copied(tokens, **source)[0], expected)
        module_ids = {id(module) for module in model.modules()}
        assert [path for path, module in copied.named_modules() if id(module) in module_ids] == []
        for parameter in model.parameters():
            parameter.data.zero_()
        assert torch.equal(copied(tokens, **source)[0], expected)
        for layer in copied.topology.get_submodule("body").layers:  # type: ignore[union-attr]  # a Stack has layers
            assert layer.attention.attend.position in set(copied.modules())
