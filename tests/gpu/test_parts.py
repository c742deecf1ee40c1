"""The checks of `benchmarks/gpu.py` on a CUDA device, part by part."""

from __future__ import annotations

import pytest

pytestmark = pytest.mark.gpu

PARTS = ("device", "trials", "fused", "compiled", "steps", "reduce-overhead", "studies", "cells")


@pytest.mark.parametrize("part", PARTS)
def test_every_check_of_a_part_holds(part: str) -> None:
    from benchmarks.gpu_checks import CHECKS
    from benchmarks.gpu_setup import Bench

    bench = Bench(rehearse=False)
    CHECKS[part](bench)
    checks = bench.results()["checks"]
    assert checks
    assert [f"{row['name']}: {row['detail']}" for row in checks if not row["ok"]] == []
