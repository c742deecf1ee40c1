"""Whole training runs beside other libraries: the same model, text, optimizer and number of steps, from the start of
a process to its end, with an evaluation.

    python benchmarks/whole_runs.py --rounds 5 --output benchmarks/results/whole-runs.json

Needs the extra `peers`. Each run is a process with one thread. The runners take turns in each round, in rotating order,
and the ratios are of runs of one round. The loop runs twice in a round, which shows the noise. The validation losses
are of the same tokens: they show that the runs do the same work.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, final

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))

from benchmarks import machine  # noqa: E402  # a script finds the package by the line above
from benchmarks.floors import DecoderLayer  # noqa: E402  # as above
from benchmarks.paired import ratio  # noqa: E402  # as above

LR, BETAS, DECAY, CLIP, WARMUP, FLOOR = 1e-3, (0.9, 0.95), 0.1, 1.0, 0.1, 0.1
VALIDATION = 256  # examples
RUNNERS = ("loop", "loop again", "lightning", "transformers", "paribus")
LABELS = {
    "loop": "a loop like nanoGPT's",
    "loop again": "the same loop again",
    "lightning": "a plain Lightning module",
    "transformers": "Hugging Face's Trainer and GPT-2",
    "paribus": "`paribus train`",
}


class Size(NamedTuple):
    """Size of the model and of the run."""

    width: int = 128
    layers: int = 4
    heads: int = 4
    length: int = 128
    batch: int = 16
    steps: int = 400

    def words(self) -> list[str]:
        """Return the words of a spec of this size."""
        dims = {name: getattr(self, name) for name in ("width", "layers", "heads", "length")}
        return [
            "gpt2-tiny",
            *(f"dims.{name}={value}" for name, value in dims.items()),
            f"data.batch={self.batch}",
            f"data.validation={VALIDATION}",
            "data.evaluations=1",
            f"trainer.max_steps={self.steps}",
            f"optimizer={{name: adamw, lr: {LR}, beta1: {BETAS[0]}, beta2: {BETAS[1]}, weight_decay: {DECAY}}}",
            f"schedule={{name: warmup-cosine, warmup: {WARMUP}, floor: {FLOOR}}}",
        ]


class Text(NamedTuple):
    """Encoded text."""

    train: Any  # (N,) uint16
    val: Any
    vocabulary: int

    def example(self, split: str, start: int, length: int) -> tuple[Tensor, Tensor]:
        """Return the inputs and labels of an example."""
        piece = torch.from_numpy(getattr(self, split)[start : start + length + 1].astype(np.int64))
        return piece[:-1], piece[1:]

    def validation(self, size: Size) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield the batches that are evaluated."""
        count = min(VALIDATION, (len(self.val) - 1) // size.length)
        for first in range(0, count, size.batch):
            rows = range(first, min(first + size.batch, count))
            examples = [self.example("val", row * size.length, size.length) for row in rows]
            yield torch.stack([tokens for tokens, _ in examples]), torch.stack([labels for _, labels in examples])


def read_text(folder: Path) -> Text:
    """Read the text lazily, as a memory map."""
    vocabulary = int((folder / "vocabulary").read_text())
    train, val = (np.load(folder / f"{split}.npy", mmap_mode="r") for split in ("train", "val"))
    return Text(train, val, vocabulary)


def write_text(folder: Path, size: Size) -> None:
    """Write the tokens of the corpus that `paribus train` reads, and fill its cache."""
    from paribus.registry import installed
    from paribus.specs import resolved
    from paribus.train.assemble import load_corpus

    registry = installed()
    text = load_corpus(resolved(*size.words(), registry=registry), registry)
    np.save(folder / "train.npy", np.asarray(text.train.ids, np.uint16))
    np.save(folder / "val.npy", np.asarray(text.val.ids, np.uint16))
    (folder / "vocabulary").write_text(str(text.vocabulary.size))


@final
class Decoder(nn.Module):
    """GPT-2, with the layers of the hand-written model that steps are compared with."""

    def __init__(self, size: Size, vocabulary: int) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, size.width)
        self.positions = nn.Embedding(size.length, size.width)
        self.layers = nn.ModuleList(DecoderLayer(size.width, size.heads) for _ in range(size.layers))
        self.norm = nn.LayerNorm(size.width)
        for name, parameter in self.named_parameters():
            if parameter.ndim == 2:
                is_output = name.endswith(("o.weight", "outer.weight"))
                nn.init.normal_(parameter, std=0.02 / (math.sqrt(2 * size.layers) if is_output else 1))
            elif name.endswith("bias"):
                nn.init.zeros_(parameter)

    def forward(self, tokens: Tensor, labels: Tensor) -> Tensor:
        x = self.tokens(tokens) + self.positions.weight[: tokens.shape[1]]
        for layer in self.layers:
            x = layer(x)
        logits = functional.linear(self.norm(x), self.tokens.weight)
        return functional.cross_entropy(logits.flatten(0, 1), labels.flatten())


def optimizer(model: nn.Module) -> torch.optim.Optimizer:
    matrices = [parameter for parameter in model.parameters() if parameter.ndim >= 2]
    vectors = [parameter for parameter in model.parameters() if parameter.ndim < 2]
    groups = [{"params": matrices, "weight_decay": DECAY}, {"params": vectors, "weight_decay": 0.0}]
    return torch.optim.AdamW(groups, lr=LR, betas=BETAS)


def factor(step: int, steps: int) -> float:
    """Return the factor of the learning rate: a linear warm-up, then half a cosine."""
    warmup = max(1, round(WARMUP * steps))
    if step < warmup:
        return (step + 1) / warmup
    return FLOOR + (1 - FLOOR) * 0.5 * (1 + math.cos(math.pi * (step - warmup) / max(1, steps - warmup)))


def mean_loss(losses: Sequence[tuple[Tensor, int]]) -> float:
    return sum(float(loss) * count for loss, count in losses) / sum(count for _, count in losses)


# -- runners ---------------------------------------------------------------------------------------------------------


def run_loop(folder: Path, size: Size) -> float:
    text = read_text(folder)
    model = Decoder(size, text.vocabulary)
    updates, generator = optimizer(model), np.random.default_rng(0)
    for step in range(size.steps):
        for group in updates.param_groups:
            group["lr"] = LR * factor(step, size.steps)
        starts = generator.integers(0, len(text.train) - size.length - 1, size.batch)
        examples = [text.example("train", int(start), size.length) for start in starts]
        loss = model(torch.stack([tokens for tokens, _ in examples]), torch.stack([labels for _, labels in examples]))
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), CLIP)
        updates.step()
        updates.zero_grad(set_to_none=True)
        if step % 10 == 0:
            print(step, loss.item(), file=sys.stderr)
    model.eval()
    with torch.no_grad():
        return mean_loss([(model(*batch), len(batch[0])) for batch in text.validation(size)])


@final
class Blocks(torch.utils.data.Dataset[Any]):
    """Examples of a split."""

    def __init__(self, folder: Path, split: str, size: Size) -> None:
        self.text, self.split, self.size = read_text(folder), split, size
        count = (len(getattr(self.text, split)) - 1) // size.length
        self.count = count if split == "train" else min(VALIDATION, count)

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        tokens, labels = self.text.example(self.split, index * self.size.length, self.size.length)
        return {"input_ids": tokens, "labels": labels}


def run_lightning(folder: Path, size: Size) -> float:
    from lightning import LightningModule, Trainer
    from torch.utils.data import DataLoader

    class Module(LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.model = Decoder(size, read_text(folder).vocabulary)

        def training_step(self, batch: Mapping[str, Tensor], index: int) -> Tensor:
            loss: Tensor = self.model(batch["input_ids"], batch["labels"])
            self.log("loss", loss)
            return loss

        def validation_step(self, batch: Mapping[str, Tensor], index: int) -> None:
            self.log("val", self.model(batch["input_ids"], batch["labels"]), batch_size=len(batch["input_ids"]))

        def configure_optimizers(self) -> Any:
            updates = optimizer(self.model)
            schedule = torch.optim.lr_scheduler.LambdaLR(updates, lambda step: factor(step, size.steps))
            return {"optimizer": updates, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}

    trainer = Trainer(
        accelerator="cpu", max_steps=size.steps, gradient_clip_val=CLIP, logger=False, enable_checkpointing=False,
        enable_progress_bar=False, enable_model_summary=False, limit_val_batches=0,
    )  # fmt: skip
    module = Module()
    trainer.fit(module, DataLoader(Blocks(folder, "train", size), size.batch, shuffle=True))
    trainer.limit_val_batches = 1.0
    (metrics,) = trainer.validate(module, DataLoader(Blocks(folder, "val", size), size.batch), verbose=False)
    return float(metrics["val"])


def run_transformers(folder: Path, size: Size) -> float:
    from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

    text = read_text(folder)
    config = GPT2Config(
        vocab_size=text.vocabulary, n_positions=size.length, n_embd=size.width, n_layer=size.layers,
        n_head=size.heads, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0,
    )  # fmt: skip

    def collate(examples: Sequence[Mapping[str, Tensor]]) -> dict[str, Tensor]:
        tokens = torch.stack([example["input_ids"] for example in examples])
        labels = torch.stack([example["labels"] for example in examples])
        return {"input_ids": tokens, "shift_labels": labels, "labels": labels}

    arguments = TrainingArguments(
        output_dir=str(folder / "transformers"), max_steps=size.steps, per_device_train_batch_size=size.batch,
        per_device_eval_batch_size=size.batch, learning_rate=LR, adam_beta1=BETAS[0], adam_beta2=BETAS[1],
        weight_decay=DECAY, max_grad_norm=CLIP, lr_scheduler_type="cosine_with_min_lr",
        lr_scheduler_kwargs={"min_lr_rate": FLOOR}, warmup_steps=round(WARMUP * size.steps), use_cpu=True,
        report_to=[], save_strategy="no", disable_tqdm=True, logging_steps=10, remove_unused_columns=False,
    )  # fmt: skip
    trainer = Trainer(
        model=GPT2LMHeadModel(config),
        args=arguments,
        train_dataset=Blocks(folder, "train", size),
        eval_dataset=Blocks(folder, "val", size),
        data_collator=collate,
    )
    trainer.train()
    return float(trainer.evaluate()["eval_loss"])


CHILDREN: Mapping[str, Callable[[Path, Size], float]] = {
    "loop": run_loop,
    "loop again": run_loop,
    "lightning": run_lightning,
    "transformers": run_transformers,
}


# -- measurement -----------------------------------------------------------------------------------------------------


class Run(NamedTuple):
    """Result of a process."""

    wall: float
    cpu: float
    peak_bytes: int
    loss: float  # of the validation split


def run(name: str, folder: Path, size: Size) -> Run:
    with tempfile.TemporaryDirectory() as store:
        if name == "paribus":
            command = [sys.executable, "-m", "paribus", "train", *size.words(), "--store", store, "--json"]
        else:
            command = [sys.executable, __file__, "--child", name, "--folder", str(folder), "--size", json.dumps(size)]
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}
        output = Path(store) / "output"
        start = time.perf_counter()
        with (
            output.open("w") as file,
            subprocess.Popen(command, stdout=file, stderr=subprocess.DEVNULL, env=environment) as process,
        ):
            _, status, usage = os.wait4(process.pid, 0)
            process.returncode = os.waitstatus_to_exitcode(status)
        wall = time.perf_counter() - start
        text = output.read_text()
    if process.returncode:
        raise SystemExit(f"{name} failed with the exit status {process.returncode}: {text[-500:]}")
    loss = json.loads(text)["metrics"]["val/clm/loss"] if name == "paribus" else float(text.split()[-1])
    return Run(wall, usage.ru_utime + usage.ru_stime, usage.ru_maxrss * 1024, loss)


def measured(size: Size, rounds: int, folder: Path) -> dict[str, list[Run]]:
    """Return the runs of each runner, round by round, after a short one of each that fills the caches."""
    write_text(folder, size)
    for name in RUNNERS:
        run(name, folder, size._replace(steps=2))
    runs: dict[str, list[Run]] = {name: [] for name in RUNNERS}
    for number in range(rounds):
        offset = number % len(RUNNERS)
        for name in (*RUNNERS[offset:], *RUNNERS[:offset]):
            runs[name].append(run(name, folder, size))
            print(f"round {number + 1}: {name}: {runs[name][-1].cpu:.1f} s of CPU", file=sys.stderr, flush=True)
    return runs


def table(runs: Mapping[str, Sequence[Run]], size: Size) -> list[str]:
    """Return the medians, and the ratios of CPU time to the loop of the same round, as Markdown."""
    lines = ["| run | wall s | CPU s | of the loop's CPU | tokens/s | peak memory | validation loss |"]
    lines.append("| --- |" + " ---: |" * 6)
    reference = [run.cpu for run in runs["loop"]]
    for name, results in runs.items():
        wall, cpu, peak, loss = (float(np.median(column)) for column in zip(*results, strict=True))
        share = "1" if name == "loop" else ratio([run.cpu for run in results], reference).rounded()
        tokens = size.steps * size.batch * size.length / wall
        cells = (f"{wall:.1f}", f"{cpu:.1f}", share, f"{tokens:,.0f}", f"{peak / 2**20:.0f} MiB", f"{loss:.3f}")
        lines.append(f"| {' | '.join((LABELS[name], *cells))} |")
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=Size().steps)
    parser.add_argument("--output", type=Path)
    parser.add_argument("--child", choices=CHILDREN, help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--size", type=json.loads, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        torch.set_num_threads(1)
        torch.manual_seed(0)
        print(CHILDREN[options.child](options.folder, Size(*options.size)))
        return
    size = Size(steps=options.steps)
    with tempfile.TemporaryDirectory() as folder:
        runs = measured(size, options.rounds, Path(folder))
    for line in table(runs, size):
        print(line)
    if options.output:
        document = {
            "machine": {**machine.described(), "threads": "1"},
            "commit": machine.commit(),
            "size": size._asdict(),
            "runs": {name: [run._asdict() for run in results] for name, results in runs.items()},
        }
        options.output.write_text(json.dumps(document, indent=1) + "\n")


if __name__ == "__main__":
    main()
