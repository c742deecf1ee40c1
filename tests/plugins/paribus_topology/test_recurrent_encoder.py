"""Recurrent encoder, compared with torch on packed sequences."""

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch

from paribus import Output, Stream
from paribus.models.lightning_module import Model

SOURCES = [[30, 14, 41, 51, 92], [65, 35, 89]]
Recurrent = Callable[..., Model]
PaddedStream = Callable[..., Stream]
same = partial(torch.testing.assert_close, rtol=0, atol=1e-12)


@pytest.mark.few(1)
@pytest.mark.parametrize("ways", [1, 2])
@pytest.mark.parametrize(("cell", "peer"), [("gru-after", torch.nn.GRU), ("lstm", torch.nn.LSTM)])
def test_matches_torch_on_packed_sequences(
    cell: str, peer: Any, ways: int, recurrent: Recurrent, padded_stream: PaddedStream
) -> None:
    model = recurrent("rnnsearch-tiny", f"topology.cell={cell}", f"topology.bidirectional={ways == 2}", "dims.layers=2")
    reference = peer(48, 5, num_layers=2, batch_first=True, bidirectional=ways == 2).double()
    for layer in range(2):
        for way, suffix in enumerate(("", "_reverse")[:ways]):
            path = f"encoder.layers.{layer}.{way}"
            getattr(reference, f"weight_ih_l{layer}{suffix}").data = model.get_parameter(f"{path}.reads.weight").data
            getattr(reference, f"bias_ih_l{layer}{suffix}").data = model.get_parameter(f"{path}.reads.bias").data
            getattr(reference, f"weight_hh_l{layer}{suffix}").data = model.get_parameter(f"{path}.repeats.weight").data
            part = dict(model.named_parameters()).get(f"{path}.repeats.bias")
            getattr(reference, f"bias_hh_l{layer}{suffix}").data.copy_(0 if part is None else part)
    source = padded_stream(SOURCES)
    x = model.get_parameter("encoder.table.tokens.weight")[source.tokens]
    packed = torch.nn.utils.rnn.pack_padded_sequence(x, [5, 3], batch_first=True)
    expected, _ = torch.nn.utils.rnn.pad_packed_sequence(reference(packed)[0], batch_first=True)
    actual = model.topology.run({"encoder": source}, "encoder").hidden
    same(actual[0], expected[0])
    same(actual[1, :3], expected[1, :3])


@pytest.mark.parametrize("bidirectional", ["true", "false"])
@pytest.mark.parametrize("cell", ["gru-after", "lstm"])
def test_the_fused_kernel_matches_the_steps(
    cell: str, bidirectional: str, recurrent: Recurrent, run_both: Callable[..., Output]
) -> None:
    overrides = (f"topology.cell={cell}", f"topology.bidirectional={bidirectional}", "dims.layers=2")
    model = recurrent("rnnsearch-tiny", *overrides)
    source, target = torch.tensor([SOURCES[0], SOURCES[0][::-1]]), Stream(torch.tensor([[79, 32], [38, 46]]))
    fused, stepped = Stream(source), Stream(source, torch.zeros_like(source))
    same(*(model.topology.run({"encoder": stream}, "encoder").hidden for stream in (fused, stepped)))
    same(
        *(run_both(model, stream, target).hidden for stream in (fused, stepped))
    )  # starts from the encoder's final state
