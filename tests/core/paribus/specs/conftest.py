"""Components declared as data, presets, and fixtures to resolve specs without classes and without torch."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from paribus.registry import Entry, Index, Part, PluginManifest
from paribus.registry.component_index import PluginSource
from paribus.schema import AtLeast, AtMost, Divides, Kind, Option, Range

SOURCE = PluginSource("acme", "parts", "acme_parts", "1.0")

INT, FLOAT, BOOL, STR = Kind("int"), Kind("float"), Kind("bool"), Kind("str")
SCORES = (
    Option("bias", BOOL, "a bias", (), True),
    Option("cap", Kind("float", optional=True), "a cap", (Range(above=0),)),
)
SOFTMAX: Mapping[str, Any] = {
    "position_hooks": ["rotate", "bias"], "causal": True, "cross": True, "documents": True,
    "residual": True, "order": True,
}  # fmt: skip


def entry(slot: str, name: str, *options: Option, traits: Mapping[str, Any] | None = None, **fields: Any) -> Entry:
    return Entry(
        slot=slot, name=name, source=SOURCE, doc=f"{name}.", file="", options=options, traits=traits or {}, **fields
    )


def group(name: str, *options: Option) -> Option:
    default = {option.name: option.default for option in options}
    return Option(name, Kind("group", options=options), name, (), default)


def objective(name: str, **traits: Any) -> Entry:
    rate = Option("rate", FLOAT, "share of tokens", (Range(above=0, high=1),), 0.15)
    return entry("objective", name, rate, traits={"parts": [], "visibility": "any", "needs": [], **traits})


READS = ("embedding", "attention", "position", "norm", "placement", "feedforward")
ENTRIES = (
    entry("topology", "encoder", parts=(Part("encoder", "body", False),), reads=READS),
    entry("topology", "decoder", parts=(Part("decoder", "body", True),), reads=READS),
    entry(
        "topology", "pair",
        parts=(Part("decoder", "body", True, "encoder"), Part("encoder", "encoder", False)), reads=READS,
    ),
    entry("topology", "chain", parts=(Part("decoder", "body", True, recurrent=True),), reads=("embedding",)),
    entry("topology", "bare", parts=(Part("encoder", "body", False),), reads=("embedding", "attention")),
    entry("embedding", "tokens", Option("segments", INT, "segments", (Range(0),), 0)),
    entry("embedding", "narrow", traits={"any_width": True}),
    entry("attention", "mha", group("scores", *SCORES), traits=SOFTMAX),
    entry(
        "attention", "gqa",
        Option("kv_heads", INT, "key/value heads", (Range(1), Divides("heads")), 2), group("scores", *SCORES),
        traits=SOFTMAX,
    ),
    entry(
        "attention", "window",
        Option("window", INT, "how far", (Range(1), AtMost("length", "that equals full attention")), None, True, 8),
        traits={**SOFTMAX, "cross": False},
    ),
    entry("attention", "zigzag", traits={**SOFTMAX, "order": False}),
    entry("attention", "zipped", traits={**SOFTMAX, "bidirectional": False}),
    entry("attention", "fourier", traits={"residual": True}),
    entry("attention", "short", traits={"residual": True, "padding": True}),
    entry("attention", "wide", traits={**SOFTMAX, "residual": False}),
    entry("position", "none", traits={"hooks": []}),
    entry("position", "rope", Option("theta", FLOAT, "base", (Range(above=1),), 1e4), traits={"hooks": ["rotate"]}),
    entry(
        "position", "learned", Option("length", Kind("int", optional=True), "places", (AtLeast("length"),)),
        traits={"hooks": ["embed"]},
    ),
    entry("position", "shaw", traits={"hooks": ["mix"]}),
    entry("position", "xpos", traits={"hooks": ["rotate"], "visibility": "past"}),
    entry("position", "xl", traits={"hooks": ["bias"], "bias": "content"}),
    entry("norm", "layernorm", Option("eps", FLOAT, "added", (Range(above=0),), 1e-5)),
    entry("norm", "rmsnorm"),
    entry("placement", "pre"),
    entry("feedforward", "mlp", Option("activation", Kind("choice", choices=("relu", "gelu")), "which", (), "gelu")),
    entry(
        "feedforward", "experts",
        Option("count", INT, "how many", (Range(1),), 4),
        Option("expert", Kind("slot", slot="feedforward"), "each", (), "mlp"),
    ),
    entry("feedforward", "endless", Option("inner", Kind("slot", slot="feedforward"), "itself", (), "endless")),
    entry("initialisation", "normal"),
    objective("mlm", corrupts=True, visibility="both", needs=["mask"]),
    objective("clm", visibility="past"),
    objective("spans", corrupts=True, visibility="past", parts=["encoder"], needs=["sentinels"]),
    objective(
        "split", corrupts=True, visibility="past", optional_parts=["encoder"], adds_padding=True, sets_order=True
    ),
    objective("nsp", example_kind="segments", visibility="both", segments=True, needs=["sentences"]),
    objective("sop", example_kind="segments", visibility="both", segments=True),
    objective("pick", example_kind="texts", visibility="both", segments=True, separates=True),
    entry("corpus", "docs", traits={"provides": ["sentences"]}),
    entry("corpus", "lines", traits={"provides": []}),
    entry("corpus", "silent"),
    entry(
        "corpus", "rows", Option("split", Kind("str", optional=True), "", (), None),
        traits={"provides": ["sentences"], "provides_if": {"sentences": "split"}},
    ),
    entry(
        "corpus", "prose", Option("split", Kind("bool"), "", (), False),
        traits={"provides": ["sentences"], "provides_if": {"sentences": "split"}},
    ),
    entry(
        "corpus", "tasks", Option("split", Kind("choice", choices=("one", "two", "none")), "", (), "none"),
        traits={"provides": ["sentences"], "provides_if": {"sentences": "split=one|two"}},
    ),
    entry(
        "corpus", "text",
        Option("path", Kind("list", items=(STR,)), "patterns", (), None, True, ["*.txt"]),
        Option("betas", Kind("list", items=(FLOAT, FLOAT)), "two", (Range(0, below=1),), [0.9, 0.99]),
    ),
    entry(
        "tokenizer", "bytes", Option("sentinels", INT, "sentinels", (Range(0),), 4),
        traits={"provides": ["pad", "mask", "sentinels"]},
    ),
    entry("tokenizer", "plain", traits={"provides": ["pad"]}),
    entry("optimizer", "adamw", Option("lr", FLOAT, "learning rate", (Range(above=0),), 1e-3)),
    entry("schedule", "constant"),
)  # fmt: skip

SPEC: Mapping[str, Any] = {
    "topology": "encoder",
    "dims": {"width": 64, "layers": 2, "heads": 4, "length": 32},
    "embedding": "tokens",
    "attention": "mha",
    "position": "rope",
    "norm": "layernorm",
    "placement": "pre",
    "feedforward": "mlp",
    "initialisation": "normal",
    "objective": "mlm",
    "corpus": "docs",
    "tokenizer": "bytes",
    "optimizer": "adamw",
    "schedule": "constant",
}

BASE = """\
topology: encoder
dims:
  width: 64
  layers: 2
  heads: 4
  length: 32
embedding: tokens
attention: mha
position: rope
norm: layernorm
placement: pre
feedforward: mlp
initialisation: normal
objective: mlm
corpus: docs
tokenizer: bytes
optimizer: adamw
schedule: constant
"""

PRESETS = {
    "base": BASE,
    "small": "preset: base\ndims: {width: 32}\nattention: {name: gqa, kv_heads: 1}\n",
    "smaller": "preset: small\nattention.kv_heads: 2\ndims.layers: 1\n",
    "seq": BASE.replace("encoder", "pair").replace("mlm", "spans"),
    "gpt": BASE.replace("encoder", "decoder").replace("mlm", "clm"),
    "round": "preset: about\n",
    "about": "preset: round\n",
    "lost": "preset: nowhere\n",
    "seven": "preset: 7\n",
}


@pytest.fixture(scope="session")
def index(tmp_path_factory: pytest.TempPathFactory) -> Index:
    folder = tmp_path_factory.mktemp("presets")
    for name, text in PRESETS.items():
        (folder / f"{name}.yaml").write_text(text)
    return Index((PluginManifest(SOURCE, ENTRIES, presets=str(folder)),))


@pytest.fixture
def base_spec() -> dict[str, Any]:
    """Return a complete spec that a test may change."""
    return {key: dict(value) if isinstance(value, dict) else value for key, value in SPEC.items()}


@pytest.fixture(scope="session")
def error_text(index: Index) -> Callable[..., str]:
    """Return a function that resolves a spec with overrides and returns the error text, or an empty string."""
    from paribus.errors import ParibusError
    from paribus.specs import resolved

    def resolve_error(source: Any, *overrides: str) -> str:
        try:
            resolved(source, *overrides, registry=index)
        except ParibusError as error:
            return str(error)
        return ""

    return resolve_error


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str | bytes], str]:
    """Return a function that writes a spec into the working folder and returns its file name."""
    monkeypatch.chdir(tmp_path)

    def write_file(text: str | bytes) -> str:
        Path("s.yaml").write_bytes(text if isinstance(text, bytes) else text.encode())
        return "s.yaml"

    return write_file
