"""Warm start: equal tensors are copied bitwise, convertible ones are converted, and all others are reported."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from tests.fixtures.problems import raises_problem
from torch import Tensor

from paribus.errors import PluginError, StoreError
from paribus.models.lightning_module import Model
from paribus.models.warm_start import TensorTransfer, WeightTransfer, transfer_weights
from paribus.parts.heads import Heads
from paribus.parts.weight_conversion import ConvertedTensor

Assemble = Callable[..., Model]
Shake = Callable[[Model], Model]


def paths(fates: tuple[TensorTransfer, ...]) -> set[str]:
    return {fate.path for fate in fates}


def adopted(model: Model, source: Model) -> tuple[Model, WeightTransfer]:
    adapted = model.double().eval()
    return adapted, transfer_weights(adapted, source)


def scores(model: Model, rows: int = 16) -> Tensor:
    tokens = torch.arange(3 * rows).reshape(3, rows) % 40
    with torch.no_grad():
        logits: Tensor = model(tokens)[0]
    return logits


@pytest.mark.parametrize(
    ("source_attention", "target_attention"),
    [
        ("attention=mha", "attention={name: gqa, kv_heads: 4}"),
        ("attention=mha", "attention={name: restricted, window: 16}"),
        ("attention={name: mha, scores: {bias: false}}", "attention={name: mha, scores: {bias: true}}"),
        ("attention=mha", "attention={name: mha, scores: {qk_norm: false}}"),
        ("dims.groups=1", "dims.groups=null"),
        ("dims.groups=null", "seed=7"),
        ("embedding.tie=true", "embedding.tie=false"),
        ("position=learned", "position={name: learned, length: 24}"),
        ("position=learned", "position={name: learned, offset: 2}"),
    ],
)
def test_lossless_conversions_keep_the_logits_bitwise(
    assemble: Assemble, shake: Shake, source_attention: str, target_attention: str
) -> None:
    source = shake(assemble("gpt-tiny", source_attention))
    keep = (
        [source_attention]
        if source_attention.partition(".")[0] not in target_attention and "position" in source_attention
        else []
    )
    model, report = adopted(assemble("gpt-tiny", *keep, target_attention), source)
    assert not torch.equal(scores(assemble("gpt-tiny", target_attention).double().eval()), scores(source))
    assert torch.equal(scores(model), scores(source))
    assert report.of("dropped") == ()


@pytest.mark.parametrize(
    ("source_attention", "target_attention"), [("mqa", "mha"), ("{name: gqa, kv_heads: 2}", "mha"), ("mqa", "gqa")]
)
def test_repeated_heads_keep_the_logits(
    assemble: Assemble, shake: Shake, source_attention: str, target_attention: str
) -> None:
    source = shake(assemble("gpt-tiny", f"attention={source_attention}"))
    model, report = adopted(assemble("gpt-tiny", f"attention={target_attention}"), source)
    assert (scores(model) - scores(source)).abs().max() < 1e-12
    assert {fate.path.split(".")[-2] for fate in report.of("converted")} == {"k", "v"}
    assert report.of("new") == report.of("dropped") == ()


def test_fewer_heads_are_the_means_of_groups(assemble: Assemble, shake: Shake) -> None:
    source = shake(assemble("bert-tiny", "attention=mha"))
    model, report = adopted(assemble("bert-tiny", "attention={name: gqa, kv_heads: 2}"), source)
    source_state, state = source.state_dict(), model.state_dict()
    for layer in (0, 1):
        for side in "kv":
            for kind in ("weight", "bias"):
                name = f"body.layers.{layer}.attention.heads.{side}.{kind}"
                heads = [source_state[name][4 * head : 4 * head + 4] for head in range(4)]
                expected = torch.cat([(heads[0] + heads[1]) / 2, (heads[2] + heads[3]) / 2])
                torch.testing.assert_close(state[name], expected, rtol=0, atol=1e-15)
    assert {fate.how for fate in report.of("converted")} == {"4 heads averaged in groups of 2"}
    assert len(report.of("kept")) + len(report.of("converted")) == len(source.parameter_info)
    for fate in report.of("kept"):
        assert torch.equal(state[fate.path], source_state[fate.path])


def test_head_counts_that_do_not_divide_each_other_are_averaged(assemble: Assemble, shake: Shake) -> None:
    sizes = ("dims.width=24", "dims.heads=6")
    source = shake(assemble("gpt-tiny", *sizes, "attention={name: gqa, kv_heads: 2}"))
    model, _ = adopted(assemble("gpt-tiny", *sizes, "attention={name: gqa, kv_heads: 3}"), source)
    name = "body.layers.0.attention.heads.v.weight"
    one, two = source.state_dict()[name].chunk(2)
    torch.testing.assert_close(model.state_dict()[name], torch.cat([one, (one + two) / 2, two]), rtol=0, atol=1e-15)


def test_other_placements_keep_the_norms_by_their_paths(assemble: Assemble, shake: Shake) -> None:
    source = shake(assemble("gpt-tiny", "placement=pre"))
    model, report = adopted(assemble("gpt-tiny", "placement=post"), source)
    assert {fate.path.rpartition(".")[0] for fate in report.of("dropped")} == {"body.norm"}
    assert report.of("new") == report.of("converted") == ()
    norm_paths = [path for path in paths(report.of("kept")) if "placement.norms" in path]
    assert len(norm_paths) == 8
    assert all(torch.equal(model.state_dict()[path], source.state_dict()[path]) for path in norm_paths)


def test_newly_shared_layers_take_the_first_and_report_dropped_tensors(assemble: Assemble, shake: Shake) -> None:
    source = shake(assemble("gpt-tiny"))
    model, report = adopted(assemble("gpt-tiny", "dims.groups=1"), source)
    assert {path.split(".")[2] for path in paths(report.of("dropped"))} == {"1"}
    state, source_state = model.state_dict(), source.state_dict()
    name = "attention.heads.q.weight"
    assert torch.equal(state[f"body.layers.1.{name}"], source_state[f"body.layers.0.{name}"])


def test_a_newly_tied_head_is_reported(assemble: Assemble, shake: Shake) -> None:
    source = shake(assemble("gpt-tiny", "embedding.tie=false"))
    _, report = adopted(assemble("gpt-tiny"), source)
    assert paths(report.of("dropped")) == {"embedding.head.weight"}


def test_a_dropped_bias_is_reported_and_a_new_one_is_zero(assemble: Assemble, shake: Shake) -> None:
    source = shake(assemble("gpt-tiny"))
    _, report = adopted(assemble("gpt-tiny", "attention.scores.bias=false"), source)
    assert paths(report.of("dropped")) == {
        f"body.layers.{layer}.attention.heads.{side}.bias" for layer in (0, 1) for side in "qkvo"
    }
    _, report = adopted(assemble("gpt-tiny"), shake(assemble("gpt-tiny", "attention.scores.bias=false")))
    assert {fate.how for fate in report.of("new")} == {"all 0"}


def test_a_shorter_position_table_keeps_its_first_rows(assemble: Assemble, shake: Shake) -> None:
    source = shake(assemble("gpt-tiny", "position=learned"))
    model, report = adopted(assemble("gpt-tiny", "position=learned", "dims.length=8"), source)
    assert torch.equal(scores(model, 8), scores(source, 8))
    (fate,) = report.of("converted")
    assert fate.how == "the first 8 of 16 rows kept"


def test_a_longer_position_table_appends_new_rows(assemble: Assemble, shake: Shake) -> None:
    source = shake(assemble("gpt-tiny", "position=learned"))
    fresh = assemble("gpt-tiny", "position=learned", "dims.length=24").double()
    model, report = adopted(assemble("gpt-tiny", "position=learned", "dims.length=24"), source)
    assert torch.equal(scores(model), scores(source))
    name = "body.position.0.table.weight"
    assert torch.equal(model.state_dict()[name][16:], fresh.state_dict()[name][16:])
    assert report.of("converted")[0].how == "the first 16 of 16 rows kept, 8 new"


def test_a_larger_vocabulary_keeps_the_rows_of_existing_ids(assemble: Assemble, shake: Shake) -> None:
    source = shake(assemble("bert-tiny"))
    model, report = adopted(assemble("bert-tiny", "dims.vocabulary=48"), source)
    assert paths(report.of("converted")) == {"embedding.tokens.weight", "objectives.mlm.bias"}
    assert (scores(model)[..., :40] - scores(source)).abs().max() < 1e-12


def test_a_position_table_never_becomes_a_distance_table(assemble: Assemble, shake: Shake) -> None:
    source = shake(assemble("bert-tiny", "position={name: learned, length: 64}"))
    disentangled = assemble("bert-tiny", "position={name: disentangled, distance: 32}")
    name = "body.position.0.table.weight"
    assert disentangled.state_dict()[name].shape == source.state_dict()[name].shape
    _, report = adopted(disentangled, source)
    assert name in paths(report.of("new"))


def test_a_model_with_other_objectives_keeps_its_body(assemble: Assemble, shake: Shake) -> None:
    source = shake(assemble("bert-tiny"))
    model, report = adopted(assemble("bert-tiny", "topology=decoder", "objective=clm"), source)
    assert {path.partition(".")[0] for path in paths(report.of("dropped"))} == {"objectives"}
    assert report.of("new") == report.of("converted") == ()
    assert model.trained == ("clm",)


def test_every_parameter_of_both_models_is_in_the_report(assemble: Assemble, shake: Shake) -> None:
    source = shake(assemble("bert-tiny", "dims.layers=3"))
    model, report = adopted(assemble("bert-tiny", "attention=mqa", "norm=rmsnorm", "position=t5"), source)
    transferred = [fate for fate in report.transfers if fate.kind != "dropped"]
    assert len({fate.path for fate in transferred}) == len(transferred)
    assert sum(fate.size for fate in transferred) == sum(parameter.numel() for parameter in model.parameters())
    names = dict(source.named_parameters()).keys()
    assert names == paths(report.of("kept")) | paths(report.of("converted")) & names | paths(report.of("dropped"))


def test_tensors_in_another_precision_are_reported_as_rounded(assemble: Assemble, shake: Shake) -> None:
    source, model = shake(assemble("gpt-tiny")), assemble("gpt-tiny")
    assert {fate.how for fate in transfer_weights(model, source).of("kept")} == {"rounded to float32"}
    name = "embedding.tokens.weight"
    assert torch.equal(model.state_dict()[name], source.state_dict()[name].float())


@pytest.mark.parametrize(
    ("name", "shape", "values"),
    [
        (
            "k.weight",
            (3, 16),
            ("k.weight", "(3, 16)", "(8, 16)"),
        ),
        (
            "w.weight",
            (8, 16),
            ("w.weight", "(8, 16)"),
        ),
    ],
)
def test_a_conversion_to_an_unknown_tensor_is_a_plugin_error(
    assemble: Assemble, monkeypatch: pytest.MonkeyPatch, name: str, shape: tuple[int, int], values: tuple[str, ...]
) -> None:
    monkeypatch.setattr(
        Heads, "convert_weights", lambda module, source: {name: ConvertedTensor(torch.zeros(shape), "anyhow")}
    )
    with raises_problem(PluginError, "wrong-shape", *values):
        transfer_weights(assemble("gpt-tiny", "attention={name: gqa, kv_heads: 2}"), assemble("gpt-tiny"))


def test_a_source_with_nan_is_rejected_by_tensor_name(assemble: Assemble) -> None:
    source, model = assemble("gpt-tiny"), assemble("gpt-tiny")
    original = model.state_dict()["embedding.tokens.weight"].clone()
    with torch.no_grad():
        source.topology.embedding.get_parameter("tokens.weight")[3, 1] = float("nan")
    with raises_problem(StoreError, "not-finite", "embedding.tokens.weight"):
        transfer_weights(model, source)
    assert torch.equal(model.state_dict()["embedding.tokens.weight"], original)
