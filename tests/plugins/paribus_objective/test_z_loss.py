"""Z-loss, compared with its closed form."""

import pytest
import torch
from torch.nn import functional

import paribus
from paribus.parts import chunked_loss

WEIGHT = 0.03
TOKENS = torch.randint(40, 290, (3, 17), generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize(
    ("preset", "name"),
    [
        ("gpt2-tiny", "clm"),
        ("bert-tiny", "mlm"),
        ("gpt2-tiny", "prefix-lm"),
        ("t5-tiny", "span-corruption"),
    ],
)
def test_the_z_loss_is_a_term_beside_the_cross_entropy(preset: str, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chunked_loss, "MIN_CLASSES", 2)
    monkeypatch.setattr(chunked_loss, "CHUNK_LOGITS", {"cpu": 2000})
    changes = ("tokenizer=wordpiece", "dims.vocabulary=300", f"objective={{name: {name}, z: {WEIGHT}}}", "dropout=0")
    model = paribus.assemble(paribus.spec(preset, *changes)).double()
    batch, objective = model.batch(TOKENS), model.objective(name)
    run = model.run(batch, [name]).of(name)
    labels = run.targets["labels"]
    logits = objective.logits(objective.scored_hidden(run), run.unembed)[labels != paribus.IGNORED]  # type: ignore[operator]  # both have it
    logits = logits.detach()
    plain = functional.cross_entropy(logits, labels[labels != paribus.IGNORED])
    square = logits.logsumexp(-1).square().mean()
    torch.testing.assert_close(model.loss(batch), plain + WEIGHT * square)

    metrics = model.metrics([name])
    with torch.no_grad():
        model.observe(batch, metrics, [name])
    assert float(metrics[f"val/{name}/loss"].compute()) == pytest.approx(float(plain))
    assert float(metrics[f"val/{name}/z"].compute()) == pytest.approx(float(square))
