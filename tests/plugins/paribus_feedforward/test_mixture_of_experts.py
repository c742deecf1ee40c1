"""Mixture of experts, compared with loops, closed forms, Mixtral and Switch."""

from collections.abc import Callable
from functools import partial

import pytest
import torch
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

import paribus
from paribus import FeedForward, Load, Shape
from paribus.assembly.cost import model_cost
from paribus.registry import installed
from paribus.specs.components import with_new_options
from paribus_feedforward.gated_linear_unit import GatedLinearUnit
from paribus_feedforward.mixture_of_experts import MixtureOfExperts, Router, balance_loss
from paribus_feedforward.multi_layer_perceptron import MultiLayerPerceptron

Expert = Callable[[Shape], FeedForward]
PLAIN: Expert = partial(MultiLayerPerceptron, inner=5)


def random_input(*shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(4), dtype=torch.float64)


def one_by_one(moe: MixtureOfExperts, x: Tensor) -> Tensor:
    """Run token by token and expert by expert, as in the papers."""
    module = torch.zeros_like(x)
    for b in range(x.shape[0]):
        for t in range(x.shape[1]):
            token = x[b, t].view(1, 1, -1)
            scores = moe.router.weight @ x[b, t]
            shares = (1 / (1 + (-scores).exp()) if moe.sigmoid else scores.exp() / scores.exp().sum()).tolist()
            steps = [0] * len(shares) if moe.bias_steps is None else moe.bias_steps.tolist()
            best = sorted(range(len(shares)), key=lambda e: -shares[e] - moe.bias_rate * steps[e])[: moe.top]
            total = sum(shares[e] for e in best) if moe.softmax == "chosen" else 1.0
            for e in best:
                module[b, t] += moe.scale * shares[e] / total * moe.experts[e](token)[0].flatten()
            if moe.shared is not None:
                module[b, t] += moe.shared(token)[0].flatten()
    return module


@pytest.mark.parametrize(("experts", "top", "softmax"), [(4, 2, "chosen"), (4, 1, "all"), (5, 3, "all"), (2, 2, "all")])
@pytest.mark.parametrize("router", [Router(), Router("sigmoid", 2.5, 0.05), Router(bias_rate=0.1)], ids=str)
def test_matches_its_formula(experts: int, top: int, softmax: str, router: Router, shape: Shape) -> None:
    shared = partial(GatedLinearUnit, inner=3) if router.scale != 1 else None
    moe = MixtureOfExperts(
        shape, expert=PLAIN, experts=experts, top=top, softmax=softmax, router=router, shared=shared  # type: ignore[arg-type]  # a literal
    ).double()  # fmt: skip
    moe.prepare(no_draws)
    if moe.bias_steps is not None:
        moe.bias_steps += torch.arange(experts)
    x = random_input(2, 9, 6)
    torch.testing.assert_close(moe(x)[0], one_by_one(moe, x), atol=1e-12, rtol=0)


def no_draws(name: str, shape: tuple[int, ...]) -> Tensor:
    raise AssertionError("biases start at 0")


def mixture_with_bias(shape: Shape, rate: float) -> MixtureOfExperts:
    """Return a mixture of two experts with `top` 1 in a training step, whose scores are the first two channels."""
    router = Router("sigmoid", bias_rate=rate)
    moe = MixtureOfExperts(shape, expert=PLAIN, experts=2, top=1, softmax="all", balance=0.0, router=router).double()
    moe.router.weight.data = torch.eye(2, 6, dtype=torch.float64)
    moe.prepare(no_draws)
    moe.in_step = True
    return moe


def test_a_bias_grows_by_its_rate_until_half_of_the_tokens_have_another_expert(shape: Shape) -> None:
    """All tokens prefer the first expert, half of them by 0.25 and half by 0.45: 2 rate steps > 0.25 moves a half."""
    moe = mixture_with_bias(shape, 0.02)
    x = torch.zeros(1, 8, 6, dtype=torch.float64)
    x[..., 0] = torch.logit(torch.tensor([0.75] * 4 + [0.95] * 4, dtype=torch.float64))  # sigmoids; the second: 0.5
    loads = []
    for _ in range(10):
        moe(x)
        assert moe.step_counts is not None
        loads.append(moe.step_counts.tolist())
        moe.after_step(lambda share: share)
    assert loads == [[8, 0]] * 7 + [[4, 4]] * 3
    assert moe.bias_steps.tolist() == [-7, 7]


def test_loads_of_a_step_are_summed_over_passes_and_processes_and_evaluation_adds_none(shape: Shape) -> None:
    moe = mixture_with_bias(shape, 0.5)
    first, second = (torch.eye(6, dtype=torch.float64)[index].expand(1, 3, 6) for index in (0, 1))
    moe(first)
    moe(second[:, :2])
    moe.in_step = False
    moe(second)
    moe.after_step(lambda share: share + torch.tensor([0, 3]))  # another process has three of the second expert
    assert moe.bias_steps.tolist() == [1, -1]
    moe.after_step(lambda share: share)
    assert moe.bias_steps.tolist() == [1, -1]


def test_a_shared_expert_is_a_component_or_null() -> None:
    spec = paribus.spec("gpt-tiny", "feedforward=moe", "feedforward.shared=glu")
    assert spec["feedforward"]["shared"]["name"] == "glu"
    assert paribus.spec("gpt-tiny", "feedforward=moe")["feedforward"]["shared"] is None
    older = {key: value for key, value in spec["feedforward"].items() if key != "shared"}  # of an older version
    assert with_new_options({"feedforward": older}, installed().index)["feedforward"]["shared"] is None


def test_the_bias_of_a_frozen_router_stays(shape: Shape) -> None:
    moe = mixture_with_bias(shape, 0.5).requires_grad_(False)
    moe(torch.ones(1, 3, 6, dtype=torch.float64))
    moe.after_step(lambda share: share)
    assert moe.bias_steps.tolist() == [0, 0]


def test_an_expert_gets_only_the_tokens_routed_to_it(shape: Shape) -> None:
    moe = MixtureOfExperts(shape, expert=PLAIN, experts=4, top=2).double()
    visible: dict[int, Tensor] = {}
    for place, expert in enumerate(moe.experts):
        expert.register_forward_pre_hook(lambda _, inputs, place=place: visible.update({place: inputs[0]}))
    x = random_input(2, 9, 6)
    moe(x)
    chosen = moe.router(x).topk(2).indices
    for place in range(4):
        assert torch.equal(visible[place].squeeze(0), x[(chosen == place).any(-1)])
    assert sum(inputs.shape[1] for inputs in visible.values()) == 2 * 18


def test_an_unused_expert_has_a_gradient_of_0(shape: Shape) -> None:
    moe = MixtureOfExperts(shape, expert=PLAIN, experts=4, top=2).double()
    moe.router.weight.data.zero_()
    moe.router.weight.data[0], moe.router.weight.data[3] = 2.0, 1.0  # positive inputs always choose these two
    y, added = moe(random_input(2, 9, 6).abs())
    (y.sum() + added).backward()
    grads = [moe.get_parameter(f"experts.{place}.inner.weight").grad for place in range(4)]
    assert [bool(grad.any()) for grad in grads if grad is not None] == [True, False, False, True]


@pytest.mark.parametrize(("top", "softmax"), [(2, "chosen"), (1, "all")])
def test_the_router_gets_a_gradient_from_the_experts(top: int, softmax: str, shape: Shape) -> None:
    moe = MixtureOfExperts(shape, expert=PLAIN, top=top, softmax=softmax, balance=0.0).double()  # type: ignore[arg-type]  # a literal
    x = random_input(1, 4, 6)
    y, added = moe(x)
    assert added is None
    (grad,) = torch.autograd.grad(y.square().sum(), [moe.router.weight])
    nudge = 1e-6 * random_input(4, 6)
    loss_before = one_by_one(moe, x).square().sum()
    moe.router.weight.data += nudge
    updated = one_by_one(moe, x).square().sum()
    assert (updated - loss_before).item() == pytest.approx((grad * nudge).sum().item(), rel=1e-3)


def test_the_balance_loss_is_smallest_for_uniform_routing() -> None:
    even = torch.eye(4, dtype=torch.float64).repeat(3, 1)
    assert balance_loss(even, torch.tensor([3, 3, 3, 3])).item() == pytest.approx(1)
    left = torch.eye(4, dtype=torch.float64)[:1].repeat(12, 1)
    assert balance_loss(left, torch.tensor([12, 0, 0, 0])).item() == pytest.approx(4)


def test_the_balance_gradient_unloads_a_crowded_expert(shape: Shape) -> None:
    moe = MixtureOfExperts(shape, expert=PLAIN, top=1, softmax="all").double()
    moe.router.weight.data.zero_()
    moe.router.weight.data[2] = 0.1
    x = random_input(1, 32, 6).abs()
    added = moe(x)[1]
    assert added is not None
    (grad,) = torch.autograd.grad(added, [moe.router.weight])
    stepped_weight = moe.router.weight.detach() - grad
    loss_before, updated = (
        torch.softmax(x @ weight.T, -1).mean((0, 1))[2] for weight in (moe.router.weight, stepped_weight)
    )
    assert updated < loss_before


@pytest.mark.parametrize("top", [1, 2, 3])
def test_auxiliary_losses_match_mixtral_and_switch(top: int, shape: Shape) -> None:
    from transformers.models.mixtral.modeling_mixtral import load_balancing_loss_func as of_mixtral
    from transformers.models.switch_transformers.modeling_switch_transformers import (
        load_balancing_loss_func as of_switch,
    )
    from transformers.models.switch_transformers.modeling_switch_transformers import router_z_loss_func

    moe = MixtureOfExperts(shape, expert=PLAIN, top=top, softmax="all", balance=0.5).double()
    x = random_input(2, 9, 6)
    scores = moe.router(x.flatten(0, 1))
    balance = moe(x)[1]
    assert balance is not None
    # Mixtral counts each choice as a token, so its loss of uniform routing is `top`.
    assert balance.item() == pytest.approx(0.5 * of_mixtral((scores,), 4, top).item() / top, rel=1e-6)
    if top == 1:
        shares = scores.softmax(-1)
        reference = of_switch(shares.unsqueeze(0), shares.argmax(-1).unsqueeze(0))
        assert balance.item() == pytest.approx(0.5 * reference.item(), rel=1e-6)
    moe.z, moe.balance = 0.25, 0.0
    small = moe(x)[1]
    assert small is not None
    torch.testing.assert_close(small, 0.25 * router_z_loss_func(moe.router(x)))


def test_matches_the_block_of_mixtral(shape: Shape) -> None:
    from transformers.models.mixtral.modeling_mixtral import MixtralConfig, MixtralSparseMoeBlock

    config = MixtralConfig(
        hidden_size=6, intermediate_size=5, num_local_experts=4, num_experts_per_tok=2, experts_implementation="eager"
    )
    reference = MixtralSparseMoeBlock(config).double()
    moe = MixtureOfExperts(shape, expert=partial(GatedLinearUnit, inner=5)).double()
    reference.gate.weight.data = moe.router.weight.data
    both = [torch.cat([e.gate.weight, e.inner.weight]) for e in moe.experts]  # type: ignore[union-attr, list-item]  # a GLU's
    reference.experts.gate_up_proj.data = torch.stack(both).data
    reference.experts.down_proj.data = torch.stack([e.outer.weight for e in moe.experts]).data  # type: ignore[misc, union-attr]  # a GLU's
    x = random_input(2, 9, 6)
    # Mixtral routes in float32, in any precision.
    torch.testing.assert_close(moe(x)[0], reference(x), atol=1e-6, rtol=1e-6)


@pytest.mark.parametrize("top", [1, 2])
def test_cost_counts_used_experts_only(top: int, shape: Shape) -> None:
    shared = partial(MultiLayerPerceptron, inner=3)
    moe = MixtureOfExperts(shape, expert=PLAIN, experts=4, top=top, softmax="all", shared=shared)
    with FlopCounterMode(display=False) as counter:
        moe(torch.randn(1, 7, 6))
    used = 2 * 2 * 7 * 6 * (top * 5 + 3)
    assert moe.cost(Load(queries=7, keys=7)).flops == counter.get_total_flops() == used + 2 * 7 * 6 * 4


@pytest.mark.thorough
def test_parameters_count_all_experts_and_flops_the_used_ones() -> None:
    def parameters_and_flops(*overrides: str) -> tuple[int, int]:
        spec = paribus.spec("gpt-tiny", "dims.layers=1", *overrides)
        line = next(x for x in model_cost(paribus.assemble(spec).assembled, 64).lines if x.path == "body.feedforward")
        return line.parameters, line.flops

    parameters, flops = parameters_and_flops("feedforward=mlp")
    router = 8 * 64
    many = ("feedforward=moe", "feedforward.experts=8", "feedforward.expert.activation=gelu-tanh")
    assert parameters_and_flops(*many) == (8 * parameters + router, 2 * flops + 2 * 64 * router)


def test_a_model_adds_the_losses_of_its_layers() -> None:
    spec = paribus.spec("gpt-tiny", "dims.width=16", "feedforward=moe", "feedforward.expert=glu", "feedforward.z=0.001")
    model = paribus.assemble(spec)
    output = model.topology.run({"body": paribus.Stream(torch.arange(24).view(2, 12))}, "body")
    assert output.auxiliary is not None
    assert 0.02 <= output.auxiliary.item() < 0.1
    (output.hidden.square().sum() + output.auxiliary).backward()
    input_token = {path: p.grad for path, p in model.named_parameters() if path.split(".")[3:4] == ["feedforward"]}
    assert len(input_token) == 2 * (1 + 4 * 3)
    assert all(grad is not None for grad in input_token.values())


def test_nested_mixtures_add_their_losses(shape: Shape) -> None:
    inner = partial(MixtureOfExperts, expert=PLAIN, experts=3, top=2)
    moe = MixtureOfExperts(shape, expert=inner, experts=4, top=2, balance=0.0).double()
    x = random_input(2, 9, 6)
    y, added = moe(x)
    torch.testing.assert_close(y, one_by_one(moe, x), atol=1e-12, rtol=0)
    assert added is not None
    assert added.item() >= 4 * 0.01 * 0.9
    moe.router.weight.data[:] = torch.tensor([[2.0], [1.0], [0.0], [0.0]])  # two experts are unused
    y, added = moe(x.abs())
    assert added is not None
    assert torch.isfinite(added)


def test_routing_is_in_float32_for_bfloat16_inputs(shape: Shape) -> None:
    moe = MixtureOfExperts(shape, expert=PLAIN).bfloat16()
    y, added = moe(random_input(2, 9, 6).bfloat16())
    assert added is not None
    assert (y.dtype, added.dtype) == (torch.bfloat16, torch.float32)


def test_top_above_the_number_of_experts_is_rejected(shape: Shape) -> None:
    with pytest.raises(ValueError, match="got 3"):
        MixtureOfExperts(shape, expert=PLAIN, experts=2, top=3)


def test_a_router_without_a_gradient_is_rejected(shape: Shape) -> None:
    with pytest.raises(ValueError, match="softmax: all"):
        MixtureOfExperts(shape, expert=PLAIN, top=1)
