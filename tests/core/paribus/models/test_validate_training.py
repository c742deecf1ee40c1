"""A spec that `paribus check` accepts takes a training step, and is evaluated: no rule comes later."""

import random

import pytest

from paribus.assembly.metric_names import placeholder_vocabulary
from paribus.datamodule.synthetic_corpus import encode_synthetic_corpus
from paribus.errors import DataError, SpecError
from paribus.models.assemble import build_data, build_model, validate_training
from paribus.models.evaluate import evaluate
from paribus.registry import Registry, installed
from paribus.specs import resolved

TINY = sorted(name for name in installed().index.presets if name.endswith("tiny"))
SIZES = ("dims.width=16", "dims.layers=3", "dims.heads=2", "data.batch=4", "data.validation=4", "trainer.max_steps=2")
CHANGES = (
    "evaluate=[mlm,sop]",
    "evaluate=[mlm]",
    "evaluate=clm",
    "evaluate=[nsp]",
    "objective=[mlm,sop]",
    "objective=clm",
    "objective=span",
    "objective=[mlm,clm]",
    "attention=restricted",
    "attention=linear",
    "attention={name: gqa, kv_heads: 3}",
    "position=rope",
    "position=alibi",
    "position=[learned,rope]",
    "placement=sandwich",
    "feedforward={name: moe, experts: 2}",
    "embedding={name: tokens, segments: 1}",
    "tokenizer=bytes",
    "tokenizer={name: bytes, sentinels: 0}",
    "data.documents=packed",
    "data.documents=apart",
    "data.bucket=2",
    "trainer.accumulate_grad_batches=8",
    "trainer.accumulate_grad_batches=2",
    "dims.groups=1",
    "dims.heads=3",
    "optimizer=lamb",
    "measure=[entropy]",
    "measure=[induction]",
    "topology=decoder",
    "topology=encoder",
)


LARGER = {
    "bytenet-tiny": ("dims.layers=5",),
    "kimi-linear-tiny": ("dims.layers=4",),
    "qwen3-next-tiny": ("dims.layers=4",),
    "olmo3-tiny": ("dims.layers=4",),
}  # one for each of their attentions


@pytest.mark.thorough
@pytest.mark.parametrize("preset", TINY)
def test_an_accepted_spec_takes_a_step(preset: str, components: Registry) -> None:
    rng, accepted = random.Random(preset), 0
    for draw in range(12):
        words = rng.sample(CHANGES, min(draw, 2))  # first the preset, then one change
        try:
            spec = resolved(preset, *SIZES, *LARGER.get(preset, ()), *words, registry=components)
            validate_training(spec, components, placeholder_vocabulary(spec, components.index))
        except SpecError:
            continue
        try:
            text = encode_synthetic_corpus(spec, components)
            model, data = build_model(spec, components, text.vocabulary), build_data(spec, components, text)
            model.loss(data.step(0)).backward()
            evaluate(model, data)
        except DataError:  # of a file, or of what only the text of a corpus tells
            continue
        except Exception as error:
            raise AssertionError(f"{preset} {' '.join(words)}") from error
        accepted += 1
    assert accepted
