"""µP and CompleteP: the tables of the papers, the package `mup`, and changes of logits over widths."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from tests.fixtures.problems import raises_problem
from torch import Tensor, nn
from torch.nn import functional

import paribus
from paribus import OptimizerFactors, ParameterInfo, Role, SpecError, Stream
from paribus.evidence.digests import optimizer_options, unscaled_rates
from paribus_initialisation.maximal_update import MaximalUpdate

WIDE, DEEP, QUERY, LR, EPS = 4.0, 2.0, 0.5, 0.01, 1e-3
SIZES = ("dims.width=64", "dims.heads=2", "dims.layers=4", "dims.vocabulary=300", "embedding.tie=false", "dropout=0")
SCHEME = "initialisation={name: mup, base_width: 16, base_layers: 2, base_head_width: 8}"
STEPS = ("trainer.max_steps=10", "schedule=constant", f"optimizer={{lr: {LR}, eps: {EPS}, weight_decay: 0.5}}")
ROLES: dict[
    Role, tuple[float, float, float]
] = {  # standard deviation, rate, eps, where all widths are 4 times the base
    "embedding": (1.0, 1.0, 1 / 4),
    "vector": (1.0, 1.0, 1 / 4),
    "key": (1 / 2, 1 / 4, 1 / 4),
    "inner": (1 / 2, 1 / 4, 1 / 4),
    "residual": (1 / 2, 1 / 4, 1 / 4),
    "head": (1 / 4, 1 / 4, 1.0),
}


@pytest.mark.parametrize("role", ROLES)
def test_each_role_has_the_factors_of_table_3(
    role: Role, parameter_info: Callable[..., ParameterInfo], unit: Tensor
) -> None:
    path = "embedding.head.weight" if role == "head" else "body.layers.0.some.weight"
    scheme, about = MaximalUpdate(base_width=50, std=3.0), parameter_info(role, gain=0.5, path=path)
    std, rate, eps = ROLES[role]
    torch.testing.assert_close(scheme.draw(unit, about), unit * (3.0 * std * 0.5))
    assert scheme.optimizer_factors(about) == OptimizerFactors(rate, 1 / rate, eps)


def test_a_head_between_vectors_of_the_stream_is_no_output(parameter_info: Callable[..., ParameterInfo]) -> None:
    dense = parameter_info("head", shape=(200, 200), path="objectives.mlm.dense.weight")._replace(width=0)
    assert MaximalUpdate(base_width=50).optimizer_factors(dense).lr == 1 / 4
    assert MaximalUpdate(base_width=50).draw(torch.ones(200, 200), dense)[0, 0] == pytest.approx(0.02 / 2)


def model_of(*words: str) -> Any:
    return paribus.assemble(paribus.spec("gpt-tiny", *SIZES, *STEPS, *words)).double()


def logits_of(model: Any, tokens: Tensor) -> Any:
    return model.topology.embedding.unembed(model.topology.run({"body": Stream(tokens)}, "body").hidden)


def train(model: Any, optimizer: torch.optim.Optimizer, *, scale: float = 1.0, steps: int = 3) -> tuple[Tensor, Tensor]:
    """Return the logits before and after some steps; a forward pass multiplies them by `scale`."""
    tokens = torch.randint(0, 300, (4, 16), generator=torch.Generator().manual_seed(0))
    first = scale * logits_of(model, tokens).detach()
    for _ in range(steps):
        logits = scale * logits_of(model, tokens)
        optimizer.zero_grad()
        functional.cross_entropy(logits[:, :-1].flatten(0, 1), tokens[:, 1:].flatten()).backward()
        optimizer.step()
    return first, scale * logits_of(model, tokens).detach()


def explicit_factor(path: str) -> float:
    """Return the factor of an output in the forward pass of the papers."""
    module = path.split(".")[-2]
    return {"q": QUERY, "o": 1 / DEEP, "outer": 1 / DEEP, "head": 1 / WIDE}.get(module, 1.0)


def test_steps_equal_those_of_completep_with_factors_in_the_forward_pass() -> None:
    """Dey et al. 2025, table 1: the AdamW of each tensor, and factors of branches, scores and logits."""
    model, explicit = model_of(SCHEME), model_of(SCHEME)
    groups = []
    for path, parameter in explicit.named_parameters():
        parameter.data /= explicit_factor(path)
        in_layer, is_matrix = ".layers." in path, parameter.ndim == 2
        rate = 1 / WIDE if in_layer and is_matrix else 1.0
        eps, decay = EPS / WIDE / (DEEP if in_layer else 1), 0.5 / rate if is_matrix else 0.0
        groups.append({"params": [parameter], "lr": LR * rate, "weight_decay": decay, "eps": eps})
    for path, module in explicit.named_modules():
        if isinstance(module, nn.Linear) and ".layers." in path:
            factor = explicit_factor(f"{path}.weight")
            module.register_forward_hook(lambda module, inputs, output, factor=factor: factor * output)
    optimizer = torch.optim.AdamW(groups, betas=(0.9, 0.95))
    first, expected = train(explicit, optimizer, scale=1 / WIDE)
    start, actual = train(model, model.configure_optimizers()["optimizer"])
    torch.testing.assert_close(start, first)
    torch.testing.assert_close(actual, expected, rtol=0, atol=1e-9)
    assert (actual - start).abs().max() > 1e-3


@pytest.mark.parametrize("words", [(), ("optimizer={name: lion, lr: 1e-3}",)], ids=["adamw", "lion"])
def test_the_base_size_is_trained_as_with_the_normal_initialisation(words: tuple[str, ...]) -> None:
    base = "initialisation={name: mup, base_width: 64, base_layers: 4, base_head_width: 32}"
    outputs = [
        train(model, model.configure_optimizers()["optimizer"])[1]
        for model in (model_of(scheme, *words) for scheme in (base, "initialisation=normal"))
    ]
    assert torch.equal(*outputs)


@pytest.mark.thorough
@pytest.mark.parametrize("optimizer", ["adamw", "lion", "ademamix", "stable-adamw"])
def test_changes_of_logits_do_not_grow_with_the_width(optimizer: str) -> None:
    """Coordinate check of Yang et al. 2022: mean absolute changes after four steps, over widths of 32 to 256."""
    changes: dict[str, list[float]] = {}
    for scheme in ("{name: mup, base_width: 32}", "normal"):
        for width in (32, 64, 128, 256):
            sizes = (f"dims.width={width}", f"dims.heads={width // 16}", "dims.layers=2")
            words = (f"initialisation={scheme}", f"optimizer={{name: {optimizer}, lr: 0.003}}")
            model = model_of(*sizes, *words).float()
            start, end = train(model, model.configure_optimizers()["optimizer"], steps=4)
            changes.setdefault(scheme, []).append(float((end - start).abs().mean()))
    constant, growing = changes.values()
    assert max(constant) < 2.5 * min(constant)
    assert constant[-1] < 1.2 * constant[0]
    assert growing[-1] > 3 * growing[0]


def test_rates_and_decays_equal_those_of_the_package_mup() -> None:
    package = pytest.importorskip("mup")
    base, wider, model = (model_of(f"dims.width={width}", SCHEME) for width in (16, 32, 64))
    scheme = MaximalUpdate(base_width=16)
    for module in (base, wider, model):  # as plain modules: a copy of a Lightning module has no shapes
        module.shapes = nn.ParameterDict({path.replace(".", "-"): each for path, each in module.named_parameters()})
    package.set_base_shapes(model.shapes, base.shapes, delta=wider.shapes, rescale_params=False)
    names = {id(parameter): path for path, parameter in model.named_parameters() if not path.startswith("shapes")}
    groups = package.MuAdamW([{"params": [*model.shapes.values()]}], lr=LR, weight_decay=0.5).param_groups
    for group in groups:
        for parameter in group["params"]:
            about = model.parameter_info[names[id(parameter)]]
            factors = scheme.optimizer_factors(about)
            if about.role != "head":  # its factor 1/m is in the forward pass of the package
                assert group["lr"] == pytest.approx(LR * factors.lr), about.path
                assert group["weight_decay"] == pytest.approx(0.5 * factors.weight_decay), about.path
    assert len(groups) == 2


@pytest.mark.parametrize(
    ("word", "values"), [("optimizer=muon", ("mup", "muon", "adamw")), ("embedding.tie=true", ("mup", "embedding.tie"))]
)
def test_other_steps_and_tied_tables_are_refused(word: str, values: tuple[str, ...]) -> None:
    with raises_problem(SpecError, "does-not-fit", *values):
        paribus.spec("gpt-tiny", "embedding.tie=false", SCHEME, word)


def test_a_certificate_compares_rates_and_decays_without_the_factors() -> None:
    digests = []
    for words in (["initialisation=normal"], [SCHEME], [SCHEME, "dims.layers=2"]):
        model = paribus.assemble(paribus.spec("gpt-tiny", *SIZES, *STEPS, *words))
        configured: Any = model.configure_optimizers()
        digests.append((unscaled_rates(configured["optimizer"]), optimizer_options(model, configured["optimizer"])))
    (rates, options), scaled, shallow = digests
    assert scaled == (rates, options)
    assert shallow == (rates, {path: options[path] for path in shallow[1]})
