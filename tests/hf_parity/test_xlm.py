"""Parity of XLM with several languages in a sequence, beyond `test_parity`."""

from collections.abc import Callable
from functools import partial

import pytest
import torch
from tests.hf_parity.cases import CASES, VOCABULARY
from tests.hf_parity.float64 import keep_float64
from torch import nn

import paribus
from paribus import PADDING, Stream
from paribus.assembly.forward_pass import BatchForward
from paribus.parts.batch import Batch

pytest.importorskip("transformers")

same = partial(torch.testing.assert_close, rtol=0, atol=1e-9)
PLACE = torch.arange(11)
TEXT = torch.tensor([[11], [4], [7]]) > PLACE
TOKENS = torch.randint(7, VOCABULARY, (3, 11), generator=torch.Generator().manual_seed(5)).where(TEXT, 0)
LANGUAGES = (PLACE // 3 % 3).expand(3, -1)


def test_scores_and_gradients_of_language_embeddings_match(
    randomise: Callable[[nn.Module], nn.Module], monkeypatch: pytest.MonkeyPatch
) -> None:
    keep_float64(monkeypatch)
    hf_model = randomise(CASES["xlm"][0].hf_model)
    model = paribus.convert(hf_model).eval()
    stream = Stream(TOKENS, torch.where(TEXT, 0, PADDING), languages=LANGUAGES)
    run = BatchForward(model.topology, Batch({"body": stream}, {}, PLACE[:3])).of("mlm")
    scores = model.objective("mlm").logits(run.hidden(), run.unembed)[TEXT]
    expected = hf_model(TOKENS, attention_mask=TEXT.long(), langs=LANGUAGES).logits[TEXT]
    same(scores, expected)
    assert (scores - hf_model(TOKENS, attention_mask=TEXT.long(), langs=0 * LANGUAGES).logits[TEXT]).abs().max() > 0.1
    weights = torch.linspace(-1, 1, scores.numel(), dtype=torch.float64).view(scores.shape)
    (scores * weights).sum().backward()
    (expected * weights).sum().backward()
    hf_gradient = hf_model.get_parameter("transformer.lang_embeddings.weight").grad
    same(model.get_parameter("embedding.languages.weight").grad, hf_gradient)
    assert hf_gradient is not None
    assert (hf_gradient.abs().sum(1) > 0).all()
