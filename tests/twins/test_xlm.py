"""Rows of several languages, against the `transformers` library's XLM: what `test_parity` does not look at."""

from collections.abc import Callable
from functools import partial

import pytest
import torch
from tests.twins.cases import CASES, VOCABULARY
from tests.twins.double import keep_double
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


def test_rows_of_several_languages_score_as_those_of_the_twin_and_teach_its_table_as_much(
    shake: Callable[[nn.Module], nn.Module], monkeypatch: pytest.MonkeyPatch
) -> None:
    keep_double(monkeypatch)
    theirs = shake(CASES["xlm"][0].made)
    ours = paribus.convert(theirs).eval()
    stream = Stream(TOKENS, torch.where(TEXT, 0, PADDING), languages=LANGUAGES)
    run = BatchForward(ours.topology, Batch({"body": stream}, {}, PLACE[:3])).of("mlm")
    found = ours.objective("mlm").logits(run.hidden(), run.unembed)[TEXT]
    expected = theirs(TOKENS, attention_mask=TEXT.long(), langs=LANGUAGES).logits[TEXT]
    same(found, expected)
    assert (found - theirs(TOKENS, attention_mask=TEXT.long(), langs=0 * LANGUAGES).logits[TEXT]).abs().max() > 0.1
    weights = torch.linspace(-1, 1, found.numel(), dtype=torch.float64).view(found.shape)
    (found * weights).sum().backward()
    (expected * weights).sum().backward()
    taught = theirs.get_parameter("transformer.lang_embeddings.weight").grad
    same(ours.get_parameter("embedding.languages.weight").grad, taught)
    assert taught is not None
    assert (taught.abs().sum(1) > 0).all()
