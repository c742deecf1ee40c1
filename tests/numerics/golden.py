"""Runs golden trials under the paribus that Python imports, and writes all numbers that they compute.

    PYTHONPATH=TREE/core:TREE/plugins python -m tests.numerics.golden trials.yaml FOLDER [NAME …]

It uses the command `paribus` and the public API only, so it runs under the trees of earlier commits, too. FOLDER is a
new working directory; `golden.json` in it maps the name of a trial to its values by their places, in their order.
`PARIBUS_GOLDEN_LINES` names files, one a line, whose reached lines are recorded as well.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import io
import json
import os
import shutil
import signal
import sys
import time
import traceback
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from tests.numerics.lines import LineRecorder
from tests.numerics.recorder import digest, parameters

HERE: Final = Path(__file__).resolve().parent
RECORDER: Final = HERE / "recorder.py"
RESULT: Final = "golden.json"
USES: Final = ("generate", "adapt", "library", "measure")  # of the trained model

Values = dict[str, Any]
Trial = Mapping[str, Any]


def main(table: Path, folder: Path, names: Sequence[str]) -> None:
    """Run the named trials, or all, and write their values after each."""
    trials: dict[str, Trial] = read_trials(table, names)
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a process in the background ignores it
    recorder = LineRecorder(Path(path) for path in os.environ.get("PARIBUS_GOLDEN_LINES", "").splitlines())
    if recorder.files:
        recorder.start()
    folder.mkdir(parents=True, exist_ok=True)
    os.chdir(folder)
    write_corpora(Path("corpora"))
    command = importlib.metadata.entry_points(group="console_scripts")["paribus"].load()
    import torch

    import paribus

    torch.set_num_threads(1)
    results: dict[str, Any] = {"paribus": str(Path(str(paribus.__file__)).parent), "trials": {}, "failures": {}}
    results["seconds"] = {}  # of the processor
    results["new"] = [name for name, trial in trials.items() if trial.get("new")]
    for name, trial in trials.items():
        began = time.process_time()
        try:
            results["trials"][name] = run(command, name, trial)
        except (Exception, SystemExit) as error:
            traceback.print_exc()
            results["failures"][name] = f"{type(error).__name__}: {error}"
        results["seconds"][name] = round(time.process_time() - began, 2)
    results["lines"] = recorder.stop()
    Path(RESULT).write_text(json.dumps(results), encoding="utf-8")


def read_trials(table: Path, names: Sequence[str]) -> dict[str, Trial]:
    """Return the named trials and those whose saved models they read, in the order of the table; without names, all."""
    import yaml

    document = yaml.safe_load(table.read_text(encoding="utf-8"))
    trials: dict[str, Trial] = document["trials"]
    wanted = set(names or trials)
    if unknown := wanted - set(trials):
        raise SystemExit(f"unknown golden trial: {', '.join(sorted(unknown))}; valid: {', '.join(trials)}")
    for name in reversed(trials):
        text = json.dumps(trials[name])
        if name in wanted:
            wanted |= {other for other in trials if f"saved/{other}" in text}
    defaults: Mapping[str, Any] = document["defaults"]
    text = json.dumps(trials)
    for name, trial in trials.items():
        if "train" in trial:
            is_saved = f'"saved/{name}"' in text or any(key in trial for key in USES)
            trials[name] = {**trial, "train": {**defaults, **trial["train"]}, "is_saved": is_saved}
    return {name: trial for name, trial in trials.items() if name in wanted}


def run(command: Callable[[Sequence[str]], int], name: str, trial: Trial) -> Values:
    """Return the values of one golden trial."""
    import paribus

    values: Values = {}
    if trial.get("draws"):
        values |= draw()
    if "study" in trial:
        values |= run_study(name, trial["study"])
    if "train" in trial:
        values |= train(command, name, trial)
    if any(key in trial for key in USES):
        registry = paribus.installed()
        model = paribus.load(f"saved/{name}", registry=registry)
        for options in trial.get("generate", ()):
            values |= generate(model, options, registry)
        for overrides in trial.get("adapt", ()):
            values |= adapt(name, overrides, registry)
        if trial.get("library"):
            values |= use(model, registry)
        if trial.get("measure"):
            data = paribus.data(model.spec, registry=registry)
            values |= dict(flat("measure", paribus.measure(model, data, registry=registry)._asdict()))
    return values


def train(command: Callable[[Sequence[str]], int], name: str, trial: Trial) -> Values:
    """Train by `paribus train`, twice if the first attempt is interrupted."""
    options = dict(trial["train"])
    words = [options.pop("spec"), *(f"{key}={json.dumps(value)}" for key, value in options.items() if value != "unset")]
    words = ["--plugin", str(RECORDER), "train", *words, "--store", f"runs/{name}", "--json"]
    if trial["is_saved"]:
        words += ["--save", f"saved/{name}"]
    values: Values = {}
    interrupt = trial.get("interrupt")
    if interrupt:
        values |= {
            f"{place}, before the interruption": value
            for place, value in attempt(command, words, name, interrupt)[0].items()
        }
    steps, result = attempt(command, words, name, 0)
    values |= {f"{place}, after the interruption": value for place, value in steps.items()} if interrupt else steps
    return {**values, **dict(flat("result", without_source(result)))}


def attempt(
    command: Callable[[Sequence[str]], int], words: Sequence[str], name: str, interrupt: int
) -> tuple[Values, Any]:
    """Return what the recorder wrote, and the result; None if the trial was interrupted."""
    file = Path("steps") / f"{name}.json"
    file.parent.mkdir(exist_ok=True)
    os.environ["PARIBUS_GOLDEN"], os.environ["PARIBUS_GOLDEN_INTERRUPT"] = str(file), str(interrupt)
    output = io.StringIO()
    try:
        with contextlib.redirect_stdout(output):
            code = command(words)
    finally:
        del os.environ["PARIBUS_GOLDEN"], os.environ["PARIBUS_GOLDEN_INTERRUPT"]
    result = json.loads(output.getvalue()) if output.getvalue() else None
    if (result is None) != bool(interrupt) or (result is not None and "problems" in result):
        raise RuntimeError(f"`paribus {' '.join(words)}` ended with {code}")
    values: Values = {}
    for path in sorted(file.parent.glob(f"{name}*.json"), key=lambda path: len(path.name)):
        rank = path.name.removeprefix(name).split(".")[1]
        where = "" if rank == "json" else f" of process {rank}"
        values |= {f"{place}{where}": value for place, value in json.loads(path.read_bytes()).items()}
        path.unlink()
    return values, result


def run_study(name: str, document: Mapping[str, Any]) -> Values:
    """Return the results of all trials of a study, which run in this process."""
    import paribus

    class Nothing(paribus.Measure):
        """A class that exists in this process only, so that the study runs in it."""

        def names(self, trial: Any) -> list[str]:
            return []

        def measure(self, model: Any) -> dict[str, float]:
            return {}

    registry = paribus.installed().with_components(measure={"golden-nothing": Nothing})
    planned = paribus.run(paribus.study(document, registry=registry, store=f"runs/{name}"), progress=False)
    values: Values = {}
    for trial in planned.plan.trials:
        record = planned.store.record(trial.identity)
        if record is None:
            raise RuntimeError(f"the trial {trial.label} of the study has no record")
        values |= dict(flat(f"{trial.label}: result", without_source(record["result"])))
        probes = {key: value for key, value in record["provenance"].items() if "probe" in key or "effect" in key}
        values |= dict(flat(f"{trial.label}: probe", probes))
    return values


def without_source(result: Mapping[str, Any]) -> dict[str, Any]:
    """Return a result without the hashes of the saved model that it began from.

    Its file has an identity in it, and its spec the defaults of options that are newer than the epoch.
    """
    tensors = {
        path: {key: value for key, value in tensor.items() if not tensor["origin"] or key not in ("origin", "draws")}
        for path, tensor in result["certificate"]["tensors"].items()
    }
    source = {key: value for key, value in (result.get("from") or {}).items() if "sha256" not in key}
    return {**result, "from": source, "certificate": {**result["certificate"], "tensors": tensors}}


def generate(model: Any, options: Mapping[str, Any], registry: Any) -> Values:
    """Return the generated ids and scores."""
    import paribus

    generation = paribus.generate(model, **options, registry=registry)
    shown = ", ".join(f"{key}={value}" for key, value in options.items() if key != "prompt") or "greedy"
    values: Values = {f"cache bytes ({shown})": generation.cache_bytes}
    for prompt, texts in enumerate(generation.results):
        for index, text in enumerate(texts):
            place = f"text {index} of prompt {prompt} ({shown})"
            values |= {f"ids of {place}": list(text.ids), f"score of {place}": text.score.hex()}
            values[f"end of {place}"] = [text.text, text.ended]
    return values


def adapt(name: str, overrides: Sequence[str], registry: Any) -> Values:
    """Return the tensors of an adapted model, and its losses."""
    import paribus

    model, report = paribus.adapt(f"saved/{name}", *overrides, registry=registry)
    shown = " ".join(overrides)
    values = {f"tensor {path} adapted by {shown}": digest(tensor) for path, tensor in parameters(model)}
    return {**values, **dict(flat(f"adapted by {shown}", report.to_json()))}


def use(model: Any, registry: Any) -> Values:
    """Return the numbers of a model that is used as a PyTorch module, and trained by Lightning's Trainer."""
    import torch
    from lightning import Trainer

    import paribus

    tokens = torch.arange(60, 90).reshape(2, 15)
    paths = [part.path for part in model.topology.parts]
    source = tokens.flip(1) if "encoder" in paths else None
    values = {"logits": digest(model(tokens, source=source)[0])}
    values["hidden states"] = digest(model.hidden(tokens, source=source))
    for path in paths:
        captured = model.attention(tokens, part=path, **({"source": source} if path == "body" else {}))
        for layer, weights in enumerate(captured):
            values |= {f"{key} of layer {layer} of {path}": digest(weight) for key, weight in weights.items()}
    states = model.start(2)
    for position in range(4):
        logits, states = model(tokens[:, position : position + 1], states, source=source)
        values[f"decoded logits at position {position}"] = digest(logits)
    if source is None:
        values["loss of own tokens"] = float(model.loss(model.batch(tokens, step=3)).item()).hex()
        bare = paribus.assemble({**model.spec, "corpus": None}, registry=registry)
        values |= {f"initial tensor {name} without a corpus": digest(tensor) for name, tensor in parameters(bare)}
    paribus.save(model.double(), "saved/double")
    double = paribus.load("saved/double", registry=registry)
    values["logits in float64"] = digest(double(tokens, source=source)[0])
    fresh = paribus.assemble(model.spec, registry=registry)
    trainer = Trainer(
        max_steps=3, accelerator="cpu", logger=False, enable_checkpointing=False, enable_progress_bar=False,
        enable_model_summary=False, log_every_n_steps=2, limit_val_batches=2,
    )  # fmt: skip
    with warnings.catch_warnings(action="ignore"):
        trainer.fit(fresh, paribus.data(model.spec, registry=registry))
        metrics = trainer.validate(fresh, paribus.data(model.spec, registry=registry), verbose=False)
    values |= {f"parameter {name} after Lightning's steps": digest(tensor) for name, tensor in parameters(fresh)}
    return {**values, **dict(flat("validated", metrics))}


def draw() -> Values:
    """Return the bits of random draws: those of a trial are mostly compared with a threshold, or rounded."""
    import torch

    import paribus

    draws = paribus.Draw(3, 2, torch.arange(50))
    values: Values = {"key": paribus.key32(3, "name", 2)}
    values["uniform draws"] = digest(draws.uniform("name", 40))
    for high in (3, 1000, 2**31):
        values[f"draws below {high}"] = digest(draws.below("name", high, 40))
    return values


def flat(place: str, value: Any) -> Iterator[tuple[str, Any]]:
    """Yield the numbers of a document with their places; floats keep all digits."""
    if isinstance(value, Mapping):
        for key, item in value.items():
            yield from flat(f"{place} {key}", item)
    elif isinstance(value, list | tuple) and any(isinstance(item, Mapping | list | float) for item in value):
        for index, item in enumerate(value):
            yield from flat(f"{place} {index}", item)
    else:
        yield place, value


# --- corpora ---

SENTENCES: Final = (
    "The cat sat on the mat.", "It was warm.", "A dog ran by.", "The cat woke up and left.", "Then it rained.",
    "Nobody came to the house, and the lamp stayed dark.", "Why?", "They had gone to the river to look for the boat.",
)  # fmt: skip


def write_corpora(folder: Path) -> None:
    """Write small corpora: documents of text, labelled rows, pairs of texts, and arrays of token ids."""
    import numpy as np

    shutil.rmtree(folder, ignore_errors=True)
    texts = [
        " ".join(f"{SENTENCES[(number * step + step) % len(SENTENCES)]}" for step in range(1, 3 + number % 7))
        for number in range(60)
    ]
    for language in ("de", "en"):
        (folder / "text" / language).mkdir(parents=True)
    for number, text in enumerate(texts):
        (folder / "text" / ("de", "en")[number % 2] / f"{number:02}.txt").write_text(
            f"{number}. {text}\n\nEnd {number}.\n"
        )
    rows = [
        {"text": f"{number} {text}"[:60], "second": SENTENCES[number % 5], "label": number % 3, "score": number % 7 / 4}
        for number, text in enumerate(texts)
    ]
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    _write_tasks(folder)
    ids = np.array([(7 * number + number // 5) % 50 for number in range(3000)], dtype=np.uint16)
    ids[::37] = 50
    (folder / "ids").mkdir()
    for index, shard in enumerate((ids[:700], ids[700:2500])):
        np.save(folder / "ids" / f"train-{index}.npy", shard)
    np.save(folder / "ids" / "val.npy", ids[2500:])


def _write_tasks(folder: Path) -> None:
    """Write tagged words, questions with answers, and choices, in the formats of CoNLL, SQuAD and COPA."""
    words = [sentence.rstrip(".?").split() for sentence in SENTENCES]
    tags = {"cat": "B-ANIMAL", "dog": "B-ANIMAL", "house": "B-PLACE", "mat": "B-PLACE", "river": "B-PLACE"}
    sentences = [
        "".join(f"{word} {tags.get(word, 'O')}\n" for word in (str(number), *words[number % len(words)]))
        for number in range(40)
    ]
    (folder / "tags.txt").write_text("\n".join(sentences))
    questions = []
    for number in range(40):
        context = f"{number} {SENTENCES[number % 8]} {SENTENCES[(number + 1) % 8]}"
        answer = context.split()[number % 4]
        answers = [{"text": answer, "answer_start": context.index(answer)}]
        question = {"id": str(number), "question": f"What is {number}?", "answers": answers}
        questions.append({"title": str(number), "paragraphs": [{"context": context, "qas": [question]}]})
    (folder / "squad.json").write_text(json.dumps({"version": "1.1", "data": questions}))
    choices = [
        {"premise": f"{number} {SENTENCES[number % 8]}", "choice1": SENTENCES[(number + 1) % 8], "idx": number,
         "choice2": SENTENCES[(number + 3) % 8], "question": ("cause", "effect")[number % 2], "label": number % 2}
        for number in range(40)
    ]  # fmt: skip
    (folder / "copa.jsonl").write_text("".join(json.dumps(row) + "\n" for row in choices))


if __name__ == "__main__":
    main(Path(sys.argv[1]).resolve(), Path(sys.argv[2]), sys.argv[3:])
