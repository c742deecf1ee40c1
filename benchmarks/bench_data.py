"""P9: time to encode a corpus, compared with its tokenizer alone; time to make batches, compared with Hugging Face's
collators and with a training step; fill of packed rows."""

from __future__ import annotations

import json
import os
import sysconfig
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, final

import numpy as np
import pytest
import torch
from benchmarks.claims import Claim
from benchmarks.paired import Estimate, ratio

import paribus
from paribus import Vocabulary
from paribus.datamodule.data import Data
from paribus.datamodule.packing import PackedDocuments
from paribus.datamodule.token_store import SplitTokens, encode_corpus
from paribus.models.lightning_module import Model
from paribus.parts.random_draws import Draw
from paribus_text.byte_pair import BytePair
from paribus_text.text import Text

BATCH, LENGTH, WORDS = 32, 128, 8192
FASTER = 20.0
SHARE = 0.01
FILL = 0.97
ENCODED = 0.8  # of the rate of the tokenizer alone
ENCODED_BYTES = 2 << 20
OBJECTIVES = {"mlm": "encoder-tiny", "clm": "gpt-tiny", "permutation": "xlnet-tiny"}
STEPS = ("bert-tiny", "encoder-tiny", "gpt-tiny")
ROUND = 32  # batches in each round: a single one is too short to time, and several are made at once


@pytest.mark.parametrize("unit", ["files", "paragraphs"])
def test_encoding_against_the_tokenizer_alone(bench: Any, unit: str, tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setenv("TOKENIZERS_PARALLELISM", "false")
    texts = sources(ENCODED_BYTES)
    if unit == "paragraphs":
        texts = [part for text in texts for part in text.split("\n\n") if part.strip()]
    (tmp_path / "texts.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    tokenizer = BytePair()
    tokenizer.train(texts, WORDS)

    def encode() -> None:
        with TemporaryDirectory(dir=tmp_path) as cache:
            encode_corpus(
                Text(path=(str(tmp_path / "texts.jsonl"),)),
                BytePair(),
                spec={},
                size=None,
                cache=Path(cache),
                learned=tokenizer.state(),
                allow_overlap=True,
                processes=1,
            )

    def encode_twice() -> None:
        encode()
        encode()

    def tokenize() -> None:
        for start in range(0, len(texts), 256):
            tokenizer._library.encode_batch_fast(texts[start : start + 256], add_special_tokens=False)  # type: ignore[union-attr]  # it is trained

    contestants = {"ours": encode, "twice": encode_twice, "theirs": tokenize, "twin": tokenize}
    times = bench.rounds(contestants, minimum=6, maximum=12)
    size = sum(len(text.encode()) for text in texts) / 1e6
    documents = f"{len(texts):,} documents of {1e3 * size / len(texts):.1f} kB"
    bench.claim(
        Claim(
            "P9",
            f"encode_batch_fast alone / encoding a corpus, {documents}",
            ratio(times["theirs"], times["ours"]),
            limit=ENCODED,
            at_most=False,
            twin=ratio(times["twin"], times["theirs"]),
            contrast=ratio(times["theirs"], times["twice"]),
            note=f"{size / float(np.median(times['ours'])):.1f} MB per CPU second",
        )
    )


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_a_collator_against_theirs(bench: Any, objective: str) -> None:
    data = paribus.data(paribus.spec(OBJECTIVES[objective], f"data.batch={BATCH}", f"dims.length={LENGTH}"))
    hf_collator = HfCollator(objective, data)
    paribus_batches = batches(data)
    times = bench.rounds(
        {"ours": paribus_batches, "twin": paribus_batches, "theirs": hf_collator, "theirs again": hf_collator},
        minimum=8,
        maximum=60,
    )
    bench.claim(
        Claim(
            "P9",
            f"{type(hf_collator.collate).__name__} / {objective}, {BATCH} examples of {LENGTH} rows",
            ratio(times["theirs"], times["ours"]),
            limit=FASTER,
            at_most=False,
            twin=ratio(times["twin"], times["ours"]),
            contrast=ratio(times["theirs again"], times["theirs"]),
            note=f"{1e6 * float(np.median(times['ours'])) / ROUND:.0f} µs a batch",
        )
    )


def test_a_collator_against_theirs_at_its_best(bench: Any) -> None:
    data = paribus.data(paribus.spec("encoder-tiny", f"data.batch={BATCH}", f"dims.length={LENGTH}"))
    hf_collator = HfCollator("mlm", data, tensors=True)
    times = bench.rounds({"ours": batches(data), "theirs": hf_collator}, minimum=8, maximum=60)
    claim_name = "the same, where it is handed tensors and told which tokens are special / mlm"
    bench.claim(Claim("", claim_name, ratio(times["theirs"], times["ours"])))


@pytest.mark.parametrize("preset", STEPS)
def test_the_share_of_data_in_a_step(bench: Any, preset: str) -> None:
    spec = paribus.spec(preset, "trainer.max_steps=100000")
    model, data = paribus.assemble(spec), paribus.data(spec)
    train = Training(model, data)
    hf_collator = HfCollator("mlm", data, count=1)
    contestants = {"batches": batches(data), "step": train, "twin": train, "theirs": hf_collator}
    times = bench.rounds(contestants, minimum=20, maximum=200)
    batch, step = (float(np.median(times[name])) for name in ("batches", "step"))
    bench.claim(
        Claim(
            "P9",
            f"a batch / a step on it, {preset}",
            ratio(times["batches"], times["step"]).times(1 / ROUND),
            limit=SHARE,
            twin=ratio(times["twin"], times["step"]),
            contrast=ratio(times["theirs"], times["step"]),
            note=f"{1e6 * batch / ROUND:.0f} µs of {1e3 * step:.1f} ms",
        )
    )


def test_how_full_packed_rows_are(bench: Any) -> None:
    shares: dict[str, float] = {}

    def fill() -> None:
        docs = paribus.data(paribus.spec("gpt-tiny", "tokenizer=bpe")).encoded
        for length in (128, 512, 1024):
            shares[f"python-docs in pieces, rows of {length}"] = PackedDocuments(
                docs.train, docs.vocabulary, length
            ).fill
        rng = np.random.default_rng(0)
        for spread in (0.6, 1.0, 1.6):
            lengths = rng.lognormal(5.0, spread, 100_000).astype(np.int64) + 1
            rows = PackedDocuments(documents(lengths), Vocabulary(WORDS, {"eos": 0}), 512)
            shares[f"log-normal lengths, spread {spread:g}, rows of 512"] = rows.fill

    bench.once(fill)
    for claim_name, share in shares.items():
        figure = Estimate(share, share, share)
        bench.claim(Claim("P9", f"fill: {claim_name}", figure, unit="", limit=FILL, at_most=False))


def sources(size: int) -> list[str]:
    """Return the sources of Python's own library, up to `size` bytes."""
    texts: list[str] = []
    for path in sorted(Path(sysconfig.get_path("stdlib")).rglob("*.py")):
        text = path.read_text(encoding="utf-8", errors="ignore").replace("\0", "")
        if text.strip() and size > 0:
            texts.append(text)
            size -= len(text)
    return texts


def documents(lengths: np.ndarray[Any, np.dtype[np.int64]]) -> SplitTokens:
    """Return documents of one sentence each."""
    bounds = np.concatenate(([0], np.cumsum(lengths)))
    return SplitTokens(np.ones(bounds[-1], np.uint16), bounds, np.arange(len(bounds)))


def batches(data: Data, count: int = ROUND) -> Callable[[], None]:
    """Return a function that makes the next batches, complete with masks and counts."""
    step = 0

    def make() -> None:
        nonlocal step
        for _ in range(count):
            data.step(step)
            step += 1

    return make


@final
class Training:
    """Training steps on batches that were made in advance."""

    def __init__(self, model: Model, data: Data) -> None:
        self.model = model
        self.batches = [data.step(step) for step in range(8)]
        configured: Any = model.configure_optimizers()
        self.optimizer, self.rates = configured["optimizer"], configured["lr_scheduler"]["scheduler"]
        self.index = 0

    def __call__(self) -> None:
        loss = self.model.loss(self.batches[self.index % len(self.batches)])
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        self.rates.step()
        self.index += 1


@final
class HfCollator:
    """Collator of transformers on rows of the same size: lists of ids as from a dataset, or tensors."""

    def __init__(self, objective: str, data: Data, *, tensors: bool = False, count: int = ROUND) -> None:
        os.environ.setdefault("TRANSFORMERS_NO_ADVISORY_WARNINGS", "1")
        self.collate = collator(objective)
        self.count = count
        self.index = 0
        draws = (Draw(0, 0, torch.arange(batch_index * BATCH, (batch_index + 1) * BATCH)) for batch_index in range(8))
        length = data.train_examples.length
        self.batches: list[Sequence[Mapping[str, Any]]] = []
        for draw in draws:
            rows = draw.below("rows", WORDS - 5, length) + 5
            examples: Sequence[Any] = list(rows) if tensors else rows.tolist()
            extra = {"special_tokens_mask": torch.zeros(length, dtype=torch.long)} if tensors else {}
            self.batches.append([{"input_ids": row, **extra} for row in examples])

    def __call__(self) -> None:
        for _ in range(self.count):
            self.collate([dict(row) for row in self.batches[self.index % len(self.batches)]])
            self.index += 1


def collator(objective: str) -> Any:
    """Return the collator of an objective, with a tokenizer of the same vocabulary size."""
    from tokenizers import Tokenizer, models
    from transformers import (
        DataCollatorForLanguageModeling,
        DataCollatorForPermutationLanguageModeling,
        PreTrainedTokenizerFast,
    )

    names = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
    words = {name: index for index, name in enumerate([*names, *(f"w{index}" for index in range(len(names), WORDS))])}
    keys = ("pad_token", "unk_token", "cls_token", "sep_token", "mask_token")
    library = Tokenizer(models.WordLevel(words, unk_token="[UNK]"))
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=library, **dict(zip(keys, names, strict=True)))
    if objective == "permutation":
        return DataCollatorForPermutationLanguageModeling(tokenizer)
    return DataCollatorForLanguageModeling(tokenizer, mlm=objective == "mlm")
