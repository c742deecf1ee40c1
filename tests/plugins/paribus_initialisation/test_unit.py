"""Initialisation of vectors with length 1."""

import pytest
import torch

import paribus


@pytest.mark.parametrize("tie", ["true", "false"])
def test_vectors_along_the_stream_have_length_1(tie: str) -> None:
    spec = paribus.spec(
        "gpt-tiny", "initialisation=unit", "position=rope", f"embedding.tie={tie}", "dims.head_width=24"
    )
    for path, parameter in paribus.assemble(spec).named_parameters():
        if parameter.ndim == 2:
            writes = path.endswith((".o.weight", ".outer.weight"))
            lengths = parameter.norm(dim=0 if writes else 1)
            torch.testing.assert_close(lengths, torch.ones(parameter.shape[writes]), rtol=1e-5, atol=0, msg=path)
