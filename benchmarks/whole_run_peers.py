"""Whole training runs of other libraries and by hand: they train, evaluate, and write the weights.

The examples are those of `paribus train`, in files: the same ids, masked at the same positions. The runs by hand have
the hand-written models of `floors.py`, and Hugging Face's Trainer has Hugging Face's.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple, final

import numpy as np
import torch
from benchmarks import floors, hugging_face
from torch import Tensor, nn

from paribus.parts.batch import IGNORED, Batch, Stream

LR, BETAS, DECAY, CLIP, WARMUP, FLOOR = 1e-3, (0.9, 0.95), 0.1, 1.0, 0.1, 0.1
LOGGED = 10  # steps between two logged losses
FIELDS = ("source", "tokens", "pick", "labels")  # of an example, where its model has them


class Family(NamedTuple):
    """Models of a family, and the objective on which they are trained."""

    objective: str
    by_hand: Callable[[int, int, int, int, int], nn.Module]
    hugging_face: Callable[[hugging_face.Size], nn.Module]


FAMILIES: Mapping[str, Family] = {
    "decoder": Family("clm", floors.Decoder, hugging_face.gpt2),
    "encoder": Family("mlm", floors.Encoder, hugging_face.bert),
    "encoder-decoder": Family("span-corruption", floors.EncoderDecoder, hugging_face.bart),
}


class Setting(NamedTuple):
    """Family and size of a model, and size of a run."""

    family: str
    tokenizer: str = "bytes"
    width: int = 128
    layers: int = 4
    heads: int = 4
    length: int = 128
    batch: int = 16
    vocabulary: int = 0  # 0: not known yet
    steps: int = 100

    def size(self) -> hugging_face.Size:
        return hugging_face.Size(self.width, self.layers, self.heads, self.length, self.batch, self.vocabulary)


@final
class Examples(torch.utils.data.Dataset[Any]):
    """Examples of a split, read lazily."""

    def __init__(self, folder: Path, split: str, objective: str) -> None:
        files = {field: folder / f"{split}-{field}.npy" for field in FIELDS}
        self.fields = {field: np.load(file, mmap_mode="r") for field, file in files.items() if file.exists()}
        self.objective = objective

    def __len__(self) -> int:
        return len(self.fields["tokens"])

    def __getitem__(self, index: Any) -> dict[str, Tensor]:
        return {field: torch.from_numpy(rows[index].astype(np.int64)) for field, rows in self.fields.items()}

    def batches(self, size: int) -> Iterator[Batch]:
        for first in range(0, len(self), size):
            yield self.batch(self[first : first + size])

    def collate(self, examples: Iterable[Mapping[str, Tensor]]) -> Batch:
        return self.batch(stacked(examples))

    def batch(self, fields: Mapping[str, Tensor]) -> Batch:
        streams = {"body": Stream(fields["tokens"])}
        if "source" in fields:
            streams["encoder"] = Stream(fields["source"])
        targets = {field: fields[field] for field in ("pick", "labels") if field in fields}
        return Batch(streams, {self.objective: targets}, torch.arange(len(fields["tokens"])))

    def collate_for_transformers(self, examples: Iterable[Mapping[str, Tensor]]) -> dict[str, Tensor]:
        """Return a batch with the names that Hugging Face's models expect."""
        fields = stacked(examples)
        tokens, labels = fields["tokens"], fields["labels"]
        if "source" in fields:
            return {"input_ids": fields["source"], "decoder_input_ids": tokens, "labels": labels}
        if "pick" in fields:
            return {"input_ids": tokens, "labels": floors.every_position(self.batch(fields))}
        return {"input_ids": tokens, "labels": labels, "shift_labels": labels}


def stacked(examples: Iterable[Mapping[str, Tensor]]) -> dict[str, Tensor]:
    rows = list(examples)
    return {field: torch.stack([row[field] for row in rows]) for field in rows[0]}


def label_count(batch: Batch) -> int:
    (targets,) = batch.targets.values()
    return int((targets["labels"] != IGNORED).sum())


def hand_written(setting: Setting) -> nn.Module:
    """Return the hand-written model of a family, initialised as GPT-2 is."""
    size = setting.size()
    model = FAMILIES[setting.family].by_hand(size.width, size.layers, size.heads, size.length, size.vocabulary)
    for name, parameter in model.named_parameters():
        if parameter.ndim == 2:
            is_output = name.endswith(("o.weight", "outer.weight"))
            nn.init.normal_(parameter, std=0.02 / (math.sqrt(2 * size.layers) if is_output else 1))
        elif name.endswith("bias"):
            nn.init.zeros_(parameter)
    return model


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


# -- runs: each takes the folder of the examples and one for its files, and returns the validation loss ----------------


def run_loop(folder: Path, output: Path, setting: Setting) -> float:
    objective = FAMILIES[setting.family].objective
    model = hand_written(setting)
    updates, batches = optimizer(model), Examples(folder, "train", objective).batches(setting.batch)
    for step, batch in zip(range(setting.steps), batches, strict=False):
        for group in updates.param_groups:
            group["lr"] = LR * factor(step, setting.steps)
        loss = model(batch)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), CLIP)
        updates.step()
        updates.zero_grad(set_to_none=True)
        if step % LOGGED == 0:
            print(step, loss.item(), file=sys.stderr)
    torch.save(model.state_dict(), output / "model.pt")
    model.eval()
    total, count = 0.0, 0
    with torch.no_grad():
        for batch in Examples(folder, "val", objective).batches(setting.batch):
            total += float(model(batch)) * label_count(batch)
            count += label_count(batch)
    return total / count


def run_lightning(folder: Path, output: Path, setting: Setting) -> float:
    from lightning import LightningModule, Trainer
    from torch.utils.data import DataLoader

    class Module(LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.model = hand_written(setting)

        def training_step(self, batch: Batch, index: int) -> Tensor:
            loss: Tensor = self.model(batch)
            self.log("loss", loss)
            return loss

        def validation_step(self, batch: Batch, index: int) -> None:
            self.log("val", self.model(batch), batch_size=label_count(batch))

        def configure_optimizers(self) -> Any:
            updates = optimizer(self.model)
            schedule = torch.optim.lr_scheduler.LambdaLR(updates, lambda step: factor(step, setting.steps))
            return {"optimizer": updates, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}

    objective = FAMILIES[setting.family].objective
    train, val = (Examples(folder, split, objective) for split in ("train", "val"))
    trainer = Trainer(
        accelerator="cpu", max_steps=setting.steps, gradient_clip_val=CLIP, logger=False, enable_checkpointing=False,
        enable_progress_bar=False, enable_model_summary=False, limit_val_batches=0,
    )  # fmt: skip
    module = Module()
    trainer.fit(module, DataLoader(train, setting.batch, shuffle=True, collate_fn=train.collate))
    trainer.save_checkpoint(output / "model.ckpt", weights_only=True)
    trainer.limit_val_batches = 1.0
    (metrics,) = trainer.validate(module, DataLoader(val, setting.batch, collate_fn=val.collate), verbose=False)
    return float(metrics["val"])


def run_transformers(folder: Path, output: Path, setting: Setting) -> float:
    from transformers import Trainer, TrainingArguments

    family = FAMILIES[setting.family]
    arguments = TrainingArguments(
        output_dir=str(output / "trainer"), max_steps=setting.steps, per_device_train_batch_size=setting.batch,
        per_device_eval_batch_size=setting.batch, learning_rate=LR, adam_beta1=BETAS[0], adam_beta2=BETAS[1],
        weight_decay=DECAY, max_grad_norm=CLIP, lr_scheduler_type="cosine_with_min_lr",
        lr_scheduler_kwargs={"min_lr_rate": FLOOR}, warmup_steps=round(WARMUP * setting.steps), use_cpu=True,
        report_to=[], save_strategy="no", disable_tqdm=True, logging_steps=LOGGED, remove_unused_columns=False,
        prediction_loss_only=True,
    )  # fmt: skip
    train, val = (Examples(folder, split, family.objective) for split in ("train", "val"))
    trainer = Trainer(
        model=family.hugging_face(setting.size()),
        args=arguments,
        train_dataset=train,
        eval_dataset=val,
        data_collator=train.collate_for_transformers,
    )
    trainer.train()
    trainer.save_model()
    return float(trainer.evaluate()["eval_loss"])


RUNS: Mapping[str, Callable[[Path, Path, Setting], float]] = {
    "loop": run_loop,
    "loop again": run_loop,
    "lightning": run_lightning,
    "transformers": run_transformers,
}
