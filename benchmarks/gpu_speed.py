"""Speed on a GPU: training steps beside Hugging Face's, windows, decoding, and trials per hour (goals G1 to G5)."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, final

import torch
from benchmarks import floors
from benchmarks.attending import Job, stack_of
from benchmarks.claims import Claim
from benchmarks.gpu_setup import Bench, model_and_data, registry, vocabulary
from benchmarks.paired import Estimate, estimate, exponent, local_slopes, ratio
from lightning import Callback, LightningModule, Trainer
from torch import Tensor, nn

from paribus.assembly.cost import training_flops
from paribus.datamodule.data import Data
from paribus.kernels import KERNELS
from paribus.kernels.blocked import Blocked
from paribus.kernels.flex import Flex
from paribus.models.assemble import build_model
from paribus.models.evaluate import to_device
from paribus.models.layers import configure_layers
from paribus.models.lightning_module import Model
from paribus.parts.batch import Batch, TokenLayout
from paribus.parts.context import Kernel
from paribus.specs import resolved

TINY = ("dims.width=64", "dims.layers=2", "dims.heads=4", "dims.length=64")
GPT2_VOCABULARY, BERT_VOCABULARY = 50_304, 30_528  # multiples of 64
WARMUP_STEPS, TIMED_STEPS = 10, 10
MILLISECONDS = 1e3


def matmul_rate(bench: Bench) -> float:
    """Return the FLOPs per second of a bfloat16 product of random 8192 by 8192 matrices."""
    size = bench.pick(8192, 128)
    a, b = (torch.randn(size, size, device=bench.device, dtype=torch.bfloat16) for _ in range(2))
    times = bench.rounds("matmul", {"product": lambda: a @ b}, count=30)["product"]
    return float(2 * size**3 / estimate(times).figure)


_rate = cache(matmul_rate)


@final
class StepTimes(Callback):
    """Wall seconds of windows of training steps, synchronized at their ends only."""

    def __init__(self, bench: Bench) -> None:
        self.bench = bench
        self.seconds: list[float] = []
        self._started = 0.0

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Batch, batch_idx: int
    ) -> None:
        step = trainer.global_step
        if step >= WARMUP_STEPS and step % TIMED_STEPS == 0:
            self.bench.synchronize()
            now = time.perf_counter()
            if step > WARMUP_STEPS:
                self.seconds.append((now - self._started) / TIMED_STEPS)
            self._started = now


def train(bench: Bench, model: Model, data: Data, steps: int) -> list[float]:
    """Return seconds per step of a compiled training run through Lightning in bf16-mixed."""
    torch.compiler.reset()
    times = StepTimes(bench)
    trainer = Trainer(
        accelerator="cpu" if bench.rehearse else "cuda",
        devices=1,
        precision="bf16-mixed",
        max_steps=steps,
        limit_val_batches=0,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        gradient_clip_val=1.0,
        callbacks=[times],
    )
    configure_layers(model, _compile(bench), bench.device)
    trainer.fit(model.train(), data)
    return times.seconds


def _compile(bench: Bench) -> dict[str, Any]:
    return {"compile": bench.pick(True, {"backend": "aot_eager"})}


def _backend(bench: Bench) -> str:
    return bench.pick("inductor", "aot_eager")


def peak_memory(bench: Bench, step: Callable[[], object]) -> float:
    """Return the peak memory of a step in MiB; 0 in a rehearsal."""
    if bench.rehearse:
        return 0.0
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    step()
    torch.cuda.synchronize()
    return float(torch.cuda.max_memory_allocated()) / 2**20


def exactly(value: float) -> Estimate:
    return Estimate(value, value, value)


def _flops(model: Model, batch: int) -> int:
    return batch * training_flops(model.assembled, int(model.spec["dims"]["length"]))


def decoder(bench: Bench) -> None:
    """G1, G3: GPT-2 small, 1,024 tokens, through Lightning, and beside the floor and Hugging Face's."""
    size, batch = bench.pick((GPT2_VOCABULARY, 16), (128, 2))
    words = ("gpt2", "dropout=0", f"data.batch={batch}", *bench.pick((), TINY))
    model, data = model_and_data(*words, size=size, documents=bench.pick(6_000, 400), mean_length=bench.pick(600, 60))
    seconds = estimate(train(bench, model, data, bench.pick(60, 30)))
    flops, tokens = _flops(model, batch), batch * int(model.spec["dims"]["length"])
    share = seconds.figure and flops / seconds.figure / _rate(bench)
    bench.claim(
        Claim("G1", "GPT-2 124M, n 1024, bf16, compiled, Lightning: share of the matmul rate", exactly(share),
              unit="", limit=0.45, at_most=False,
              note=f"{_rate(bench) / 1e12:.0f} TFLOP/s; {tokens / seconds.figure:,.0f} tokens/s"),
    )  # fmt: skip
    dims = model.spec["dims"]
    floor = floors.Decoder(dims["width"], dims["layers"], dims["heads"], dims["length"], size)
    floors.copy_weights(model.state_dict(), floor)
    hugging = _hugging_decoder(dims, size, bench)
    _beside_peers(bench, "GPT-2 124M", model, data, floor, hugging, limit=1.15)


def masked(bench: Bench) -> None:
    """G2, G3: BERT base on packed documents of 512 tokens."""
    size, batch = bench.pick((BERT_VOCABULARY, 32), (128, 2))
    words = (
        "bert-base", "objective={name: mlm, rate: 0.15}", "embedding.segments=1", "dropout=0", "data.documents=packed",
        f"data.batch={batch}", *bench.pick((), TINY),
    )  # fmt: skip
    model, data = model_and_data(*words, size=size, documents=bench.pick(8_000, 400), mean_length=bench.pick(120, 12))
    seconds = estimate(train(bench, model, data, bench.pick(60, 30)))
    share = _flops(model, batch) / seconds.figure / _rate(bench)
    rate = _real_tokens(data) / seconds.figure
    bench.claim(
        Claim("G2", "BERT base, packed, bf16, compiled, Lightning: share of the matmul rate", exactly(share),
              unit="", limit=0.40, at_most=False),
        Claim("G2", "the same: real tokens/s, in thousands", exactly(rate / 1e3), unit="", limit=300, at_most=False),
    )  # fmt: skip
    _beside_peers(bench, "BERT base", model, data, None, _hugging_encoder(model.spec["dims"], size, bench), limit=1.5)


def _real_tokens(data: Data) -> float:
    """Return the mean number of tokens in a batch that are no padding."""
    streams = [data.step(step).streams["body"] for step in range(4)]
    counts = [
        int((stream.documents >= 0).sum()) if stream.documents is not None else stream.tokens.numel()
        for stream in streams
    ]
    return sum(counts) / len(counts)


Loss = Callable[[Batch], Tensor]


def _beside_peers(
    bench: Bench, name: str, model: Model, data: Data, floor: nn.Module | None, hugging: tuple[nn.Module, Loss] | None,
    *, limit: float,
) -> None:  # fmt: skip
    """Compare whole steps of compiled models in bfloat16 autocast: loss, gradients and fused AdamW."""
    torch.compiler.reset()
    model = model.to(bench.device).train()
    configure_layers(model, _compile(bench), bench.device)
    batches = [to_device(data.step(step), model) for step in range(4)]
    contestants = {"paribus": _step(bench, model, model.loss, batches)}
    if floor is not None:
        floor.to(bench.device).train()
        contestants["floor"] = _step(bench, floor, torch.compile(floor, backend=_backend(bench)), batches)
    if hugging is not None:
        module, loss = hugging
        module.to(bench.device).train()
        contestants["hugging face"] = _step(bench, module, loss, batches)
    contestants["twin"] = contestants["paribus"]
    times = bench.rounds(name, contestants, count=40, warmup=8)
    twin = ratio(times["twin"], times["paribus"])
    if floor is not None:
        bench.claim(
            Claim("G3", f"{name}: paribus / hand-written floor, whole step", ratio(times["paribus"], times["floor"]),
                  limit=1.02, twin=twin)
        )  # fmt: skip
    if hugging is not None:
        bench.claim(
            Claim("G3", f"{name}: Hugging Face / paribus, whole step", ratio(times["hugging face"], times["paribus"]),
                  limit=limit, at_most=False, twin=twin)
        )  # fmt: skip
    for contestant, step in contestants.items():
        if contestant != "twin":
            milliseconds = estimate(times[contestant]).times(MILLISECONDS)
            memory = f"peak {peak_memory(bench, step):,.0f} MiB, with the other models in memory"
            bench.claim(Claim("", f"{name}, {contestant}: step", milliseconds, "ms", note=memory))


def _step(bench: Bench, module: nn.Module, loss: Loss, batches: Sequence[Batch]) -> Callable[[], None]:
    optimizer = torch.optim.AdamW(module.parameters(), lr=1e-4, fused=not bench.rehearse)
    taken = 0

    def run() -> None:
        nonlocal taken
        with bench.autocast():
            value = loss(batches[taken % len(batches)])
        value.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        taken += 1

    return run


def _hugging_decoder(dims: Mapping[str, Any], size: int, bench: Bench) -> tuple[nn.Module, Loss] | None:
    try:
        from transformers import GPT2Config, GPT2LMHeadModel
    except ImportError:
        return None
    config = GPT2Config(
        vocab_size=size, n_positions=dims["length"], n_embd=dims["width"], n_layer=dims["layers"], n_head=dims["heads"],
        resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, use_cache=False, attn_implementation="sdpa",
    )  # fmt: skip
    module = GPT2LMHeadModel(config)
    compiled: Any = torch.compile(module, backend=_backend(bench))
    return (
        module,
        lambda batch: compiled(input_ids=batch.streams["body"].tokens, labels=batch.streams["body"].tokens).loss,
    )


def _hugging_encoder(dims: Mapping[str, Any], size: int, bench: Bench) -> tuple[nn.Module, Loss] | None:
    try:
        from transformers import BertConfig, BertForMaskedLM
    except ImportError:
        return None
    config = BertConfig(
        vocab_size=size, hidden_size=dims["width"], num_hidden_layers=dims["layers"], num_attention_heads=dims["heads"],
        intermediate_size=4 * dims["width"], max_position_embeddings=dims["length"], hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0, attn_implementation="sdpa",
    )  # fmt: skip
    module = BertForMaskedLM(config)
    compiled: Any = torch.compile(module, backend=_backend(bench))

    def loss(batch: Batch) -> Tensor:
        tokens, targets = batch.streams["body"].tokens, batch.targets["mlm"]
        labels = torch.full_like(tokens, -100).scatter(1, targets["pick"], targets["labels"])
        value: Tensor = compiled(input_ids=tokens, labels=labels).loss
        return value

    return module, loss


def windows(bench: Bench) -> None:
    """G4: windows of 128 tokens beside full attention, forward and backward in bfloat16."""
    sizes = bench.pick((8192, 16_384, 32_768, 65_536), (256, 512))
    kernels: dict[str, Kernel] = bench.pick({"flex": Flex(), "blocked": Blocked()}, {"blocked": Blocked()})
    times: dict[str, list[list[float]]] = {name: [] for name in (*kernels, "full")}
    for size in sizes:
        torch.compiler.reset()  # too many sizes of one compiled kernel would end in eager products of all pairs
        contestants = {name: _mixing(bench, "restricted", size, (kernel, *KERNELS)) for name, kernel in kernels.items()}
        if size <= bench.pick(16_384, 512):
            contestants["full"] = _mixing(bench, "mha", size, KERNELS)
        rounds = bench.rounds(f"windows, n {size}", contestants, count=30)
        for name, values in rounds.items():
            times[name].append(values)
    compared = sizes.index(bench.pick(16_384, 512))
    for name in kernels:
        rounds_by_size = list(zip(*times[name], strict=True))
        bench.claim(
            Claim("G4", f"window of 128, {name}: time exponent, n {sizes[0]}…{sizes[-1]}",
                  exponent(sizes, rounds_by_size), unit="", limit=1.15,
                  note=", ".join(f"{slope:.2f}" for slope in local_slopes(sizes, rounds_by_size))),
            Claim("G4", f"full / window of 128, {name}, n {sizes[compared]}",
                  ratio(times["full"][compared], times[name][compared]), limit=8, at_most=False),
        )  # fmt: skip


def _mixing(bench: Bench, attention: str, size: int, kernels: Sequence[Kernel]) -> Callable[[], None]:
    batch, heads, width = bench.pick((8, 12, 64), (1, 2, 16))  # so large that the kernels take longer than their start
    options = {"window": 65} if attention == "restricted" else {}  # 64 tokens on each side
    job = Job(attention, options, size, backward=True)
    stack = stack_of(registry(), job, width=heads * width, heads=heads, kernels=kernels)
    layout = TokenLayout(torch.arange(size, device=bench.device).unsqueeze(0))
    layout = layout._replace(index_positions=layout.positions)
    like = torch.empty(batch, size, heads * width, device=bench.device, dtype=torch.bfloat16)
    plan = stack.planner.plans(like, layout, layout, 0, None, False)[0]
    q, k, v = (
        torch.randn(batch, heads, size, width, device=bench.device, dtype=torch.bfloat16, requires_grad=True)
        for _ in range(3)
    )
    gradient = torch.randn(batch, heads, size, width, device=bench.device, dtype=torch.bfloat16)

    def run() -> None:
        q.grad = k.grad = v.grad = None
        plan.kernel(q, k, v, plan, None, 0.0).backward(gradient)

    return run


def decode(bench: Bench) -> None:
    """G4: steps of decoding with fewer key heads, where reading the keys takes longer than starting the kernels."""
    batch, context, new = bench.pick((256, 16_384, 4), (2, 32, 2))
    rounds = 16
    contestants = {}
    for name, attention in {"mha": "mha", "gqa": "{name: gqa, kv_heads: 4}", "mqa": "mqa"}.items():
        dims = bench.pick((1024, 16, 2), (64, 8, 2))
        sizes = [f"dims.{key}={value}" for key, value in zip(("width", "heads", "layers"), dims, strict=True)]
        words = ("gpt-tiny", "position=rope", f"attention={attention}", "dims.vocabulary=1024", *sizes)
        spec = resolved(*words, f"dims.length={context + 2 * rounds * new}", registry=registry())
        model = build_model(spec, registry(), vocabulary(1024)).to(bench.device).bfloat16().eval()
        contestants[name] = _decoding(bench, model, batch, context, new, rounds)
    times = bench.rounds("decoding", contestants, count=rounds - 4)
    for name in ("gqa", "mqa"):
        bench.claim(
            Claim("G4", f"mha / {name}, decoding {batch} sequences at context {context}",
                  ratio(times["mha"], times[name]), limit=2.5, at_most=False,
                  note=f"{estimate(times[name]).figure * MILLISECONDS / new:.1f} ms a token")
        )  # fmt: skip


def _decoding(bench: Bench, model: Model, batch: int, context: int, new: int, rounds: int) -> Callable[[], None]:
    """Return a function that decodes `new` tokens after a context of random keys and values."""
    states = model.start(batch, context + 2 * rounds * new)
    for layer in states.layers:
        for cached in layer["attention"].values():
            cached.normal_()
    states.extend(TokenLayout(torch.arange(context, device=bench.device).unsqueeze(0)))
    states.past = context

    @torch.no_grad()
    def run() -> None:
        for _ in range(new):
            model(torch.full((batch, 1), 17, device=bench.device), states)

    return run


STUDY = {
    "base": {"preset": "encoder-tiny", "trainer": {"compile": False}},  # compiling takes longer than these trials
    "vary": {"attention": ["mqa"]},
    "metric": {"name": "val/mlm/loss"},
}


def small_trials(bench: Bench) -> None:
    """G5: trials per hour of small models on one GPU, several at a time."""
    seconds = {}
    for count in bench.pick((1, 4, 8), (1, 2)):
        with tempfile.TemporaryDirectory() as folder:
            study = Path(folder, "study.yaml")
            steps, seeds = bench.pick((300, 8), (3, 1))
            launcher = {"name": "local", "per_gpu": count}
            document = {**STUDY, "seeds": seeds, "budget": {"steps": steps}, "launcher": launcher}
            study.write_text(json.dumps(document), encoding="utf-8")
            started = time.perf_counter()
            command = [sys.executable, "-m", "paribus", "run", str(study), "--store", folder, "--jobs", str(count)]
            ended = subprocess.run(
                [*command, "--no-timing"],
                capture_output=True,
                text=True,
                check=False,
                env=dict(os.environ),
                timeout=240,
            )
            seconds[count] = time.perf_counter() - started
            bench.claim(Claim("", f"{2 * seeds} trials, {count} at a time", exactly(seconds[count]), "s"))
            records = len(list(Path(folder).rglob("record.json")))
            detail = f"{records} of {2 * seeds} records; {ended.stderr[-200:]}"
            bench.check(f"a study with {count} trials at a time", records == 2 * seeds, detail)
    one, best = seconds.pop(1), min(seconds, key=seconds.__getitem__)
    bench.claim(
        Claim("G5", f"trials per hour, {best} at a time / 1 at a time", exactly(one / seconds[best]), limit=4,
              at_most=False, note=", ".join(f"{count}: {value:.0f} s" for count, value in {1: one, **seconds}.items()))
    )  # fmt: skip


MEASUREMENTS: Mapping[str, Callable[[Bench], None]] = {
    "decoder": decoder,
    "masked": masked,
    "windows": windows,
    "decode": decode,
    "small-trials": small_trials,
}
