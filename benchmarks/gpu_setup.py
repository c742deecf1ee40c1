"""What the parts of `gpu.py` share: device, results, clock, models and data of random tokens."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any, TypeVar, final

import numpy as np
import torch
from benchmarks import machine
from benchmarks.claims import Claim, microseconds, to_json
from benchmarks.paired import Rounds
from torch import Tensor

from paribus.datamodule.data import Data
from paribus.datamodule.token_store import EncodedCorpus, SplitTokens
from paribus.models.assemble import build_data, build_model
from paribus.models.evaluate import to_device
from paribus.models.lightning_module import Model
from paribus.parts.batch import Batch
from paribus.registry import Registry, installed
from paribus.slots.tokenizer import Vocabulary
from paribus.specs import resolved

T = TypeVar("T")

SPECIALS = ("pad", "unk", "cls", "sep", "mask", "bos", "eos")
FIRST_WORD = 16  # ids below are special tokens and sentinels
NO_TOKENIZER: Any = None  # of random tokens
SMALL_SHARE = 0.01  # of the norm of all gradients: smaller ones are not compared by themselves


@final
class Bench:
    """Device and results of a part: checks that hold or not, claims with figures, raw times."""

    def __init__(self, *, rehearse: bool, save: Callable[[], None] = lambda: None) -> None:
        if not rehearse and not torch.cuda.is_available():
            raise SystemExit("no CUDA device: use --rehearse to run the same code on a CPU with tiny sizes")
        self.rehearse = rehearse
        self.save = save  # called after each result
        self.device = torch.device("cpu" if rehearse else "cuda")
        self._checks: list[dict[str, Any]] = []
        self._claims: list[Claim] = []
        self._times: dict[str, dict[str, list[float]]] = {}
        self._started = time.perf_counter()

    def results(self) -> dict[str, Any]:
        """Return the results so far."""
        return {
            "seconds": time.perf_counter() - self._started,
            "checks": self._checks,
            "claims": to_json(self._claims),
            "microseconds": {name: microseconds(times) for name, times in self._times.items()},
        }

    def pick(self, real: T, tiny: T) -> T:
        """Return the value for a GPU, or that of a rehearsal."""
        return tiny if self.rehearse else real

    def check(self, name: str, ok: bool, detail: object = "") -> None:
        """Record a check."""
        self._checks.append({"name": name, "ok": bool(ok), "detail": str(detail)})
        self.save()

    def attempt(self, name: str, run: Callable[[], tuple[bool, object]]) -> None:
        """Record the check that `run` returns; an error is a check that does not hold."""
        try:
            self.check(name, *run())
        except Exception as error:  # any: other checks follow
            first = next(iter(str(error).splitlines()), "")
            self.check(name, False, f"{type(error).__name__}: {first[:300]}")

    def claim(self, *claims: Claim) -> None:
        """Record claims; in a rehearsal without their goals, which its figures say nothing about."""
        self._claims += [replace(claim, limit=None) for claim in claims] if self.rehearse else claims
        self.save()

    def rounds(
        self, name: str, contestants: Mapping[str, Callable[[], object]], *, count: int, warmup: int = 3
    ) -> dict[str, list[float]]:
        """Return wall seconds of each contestant by round, synchronized; contestants take turns."""
        rounds = Rounds(contestants, self.timed)
        rounds.warm(warmup)
        for _ in range(self.pick(count, 2)):
            rounds()
        self._times[name] = rounds.times
        self.save()
        return rounds.times

    def timed(self, run: Callable[[], object]) -> float:
        self.synchronize()
        started = time.perf_counter()
        run()
        self.synchronize()
        return time.perf_counter() - started

    def synchronize(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize()

    def autocast(self) -> torch.autocast:
        return torch.autocast(self.device.type, torch.bfloat16)

    def machine(self) -> dict[str, Any]:
        if self.device.type != "cuda":
            return {"device": "CPU", **machine.described()}
        properties = torch.cuda.get_device_properties(0)
        return {
            "device": properties.name,
            "memory": properties.total_memory,
            "capability": f"{properties.major}.{properties.minor}",
            "driver": machine.driver(),
            "cuda": torch.version.cuda,
            **machine.described(),
        }


@cache
def registry() -> Registry:
    return installed()


@cache
def vocabulary(size: int) -> Vocabulary:
    specials = {name: index for index, name in enumerate(SPECIALS)}
    sentinels = tuple(range(len(SPECIALS), FIRST_WORD))
    return Vocabulary(size, specials, sentinels, frozenset(range(FIRST_WORD, size, 2)))


@cache
def random_text(size: int, documents: int, mean_length: int) -> EncodedCorpus:
    """Return documents of random tokens, whose lengths vary by a factor of about ten."""

    def side(count: int, seed: int) -> SplitTokens:
        rng = np.random.default_rng(seed)
        words = np.clip(rng.lognormal(np.log(mean_length), 0.6, count), 8, 8 * mean_length).astype(np.int64)
        sentences_each = np.maximum(2, words // 16)
        ends = np.concatenate([[0], np.cumsum(words)])
        sentences = np.concatenate(
            [start + np.linspace(0, length, pieces, endpoint=False, dtype=np.int64)
             for start, length, pieces in zip(ends[:-1], words, sentences_each, strict=True)] + [ends[-1:]]
        )  # fmt: skip
        ids = rng.integers(FIRST_WORD, size, ends[-1])
        return SplitTokens(ids, sentences, np.concatenate([[0], np.cumsum(sentences_each)]))

    return EncodedCorpus(
        NO_TOKENIZER, vocabulary(size), side(documents, 1), side(max(8, documents // 20), 2), "random", "none", {}, 0
    )


def model_and_data(*words: str, size: int = 64, documents: int = 400, mean_length: int = 60) -> tuple[Model, Data]:
    """Return a model with initial weights on the CPU, and data of random tokens."""
    spec = resolved(words[0], *words[1:], f"dims.vocabulary={size}", registry=registry())
    model = build_model(spec, registry(), vocabulary(size))
    return model, build_data(spec, registry(), random_text(size, documents, mean_length))


def random_tokens(folder: Path, size: int, count: int) -> tuple[str, ...]:
    """Write random ids as the files of the corpus `tokens`, and return the overrides of a spec that reads them."""
    rng = np.random.default_rng(0)
    for name, length in (("train", count), ("validation", max(4096, count // 20))):
        rng.integers(1, size, length, dtype=np.uint16).tofile(folder / f"{name}.bin")
    return (
        f"corpus={{name: tokens, path: ['{folder}/train.bin'], validation: ['{folder}/validation.bin']}}",
        f"tokenizer={{name: ids, size: {size}, eos: 0}}",
        f"dims.vocabulary={size}",
    )


def loss_and_gradients(model: Model, *batches: Batch) -> tuple[Tensor, dict[str, Tensor]]:
    """Return the sum of the losses of batches and its gradients, accumulated batch by batch, in float64 on the CPU."""
    model.zero_grad()
    torch.manual_seed(0)
    total = torch.zeros((), dtype=torch.float64)
    for batch in batches:
        loss = model.loss(to_device(batch, model))
        loss.backward()
        total += loss.detach().cpu().double()
    gradients = {
        name: parameter.grad.detach().cpu().double()
        for name, parameter in model.named_parameters()
        if parameter.grad is not None
    }
    return total, gradients


def relative_error(actual: Mapping[str, Tensor], expected: Mapping[str, Tensor]) -> float:
    """Return the largest relative error of a tensor, by norms; infinite if a value is not finite.

    A hundredth of the norm of all tensors is added to that of each: gradients that are zero but for rounding differ.
    """
    if actual.keys() != expected.keys():
        return float("inf")
    norms = {name: float(value.norm()) for name, value in expected.items()}
    floor = SMALL_SHARE * sum(norm**2 for norm in norms.values()) ** 0.5
    error = max(
        float((actual[name] - value).norm()) / ((norms[name] + floor) or 1.0) for name, value in expected.items()
    )
    return error if np.isfinite(error) else float("inf")
