"""Z-loss, compared with its closed form."""

import pytest
import torch
from torch.nn import functional

import paribus
from paribus.parts import chunked_loss
from paribus_objective.z_loss import penalty_logits

WEIGHT = 0.03
TOKENS = torch.randint(40, 290, (3, 17), generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("scale", [0.1, 9.0])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_cross_entropy_of_the_first_class_is_the_squared_log_sum_exp(scale: float, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    logits = (scale * torch.randn(40, 30, dtype=dtype)).requires_grad_()
    total = functional.cross_entropy(penalty_logits(logits), torch.zeros(40, dtype=torch.long), reduction="sum")
    expected = logits.logsumexp(-1).square().sum()
    torch.testing.assert_close(total, expected)
    torch.testing.assert_close(*(torch.autograd.grad(loss, logits)[0] for loss in (total, expected)))


def test_a_log_sum_exp_of_zero_has_no_gradient() -> None:
    logits = torch.zeros(1, 1, requires_grad=True)
    loss = functional.cross_entropy(penalty_logits(logits), torch.tensor([0]))
    torch.testing.assert_close(torch.autograd.grad(loss, logits)[0], torch.zeros(1, 1))


@pytest.mark.parametrize(("preset", "name"), [("gpt2-tiny", "clm"), ("bert-tiny", "mlm")])
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
