"""Resolution of a spec: all mistakes are reported at once, and every default is filled in."""

from collections.abc import Callable, Mapping
from typing import Any

import pytest
from tests.fixtures.problems import raises_problem

from paribus.errors import PluginError, SpecError
from paribus.registry import Index, LoadFailure, PluginManifest
from paribus.registry.component_index import PluginSource
from paribus.specs import resolved

ErrorText = Callable[..., str]


def resolve_fixture(index: Index, *overrides: str, base: Any = "base") -> dict[str, Any]:
    return resolved(base, *overrides, registry=index)


def test_every_default_is_filled_in(index: Index, base_spec: Mapping[str, Any]) -> None:
    assert resolved(base_spec, registry=index) == {
        "topology": {"name": "encoder"},
        "dims": {
            "width": 64,
            "layers": 2,
            "groups": None,
            "loops": None,
            "before_loop": 0,
            "after_loop": 0,
            "loop_embedding": False,
            "heads": 4,
            "head_width": None,
            "length": 32,
            "vocabulary": None,
        },
        "embedding": {"name": "tokens", "segments": 0},
        "attention": {"name": "mha", "scores": {"bias": True, "cap": None}},
        "position": {"name": "rope", "theta": 1e4},
        "norm": {"name": "layernorm", "eps": 1e-5},
        "placement": {"name": "pre"},
        "feedforward": {"name": "mlp", "activation": "gelu"},
        "initialisation": {"name": "normal"},
        "dropout": 0.0,
        "objective": {"name": "mlm", "rate": 0.15},
        "corpus": {"name": "docs"},
        "tokenizer": {"name": "bytes", "sentinels": 4},
        "data": {"batch": 32, "workers": 0, "validation": 512, "evaluations": 4, "documents": "mixed", "bucket": 0},
        "optimizer": {"name": "adamw", "lr": 1e-3},
        "schedule": {"name": "constant"},
        "trainer": {},
        "evaluate": None,
        "parts": {},
        "seed": 0,
    }


def test_a_whole_number_is_converted_to_a_float(index: Index) -> None:
    lr = resolve_fixture(index, "optimizer.lr=1")["optimizer"]["lr"]
    assert (lr, type(lr)) == (1.0, float)


@pytest.mark.parametrize("spelling", ["0.001", "1e-3", "1.0e-3", "1E-3"])
def test_every_spelling_of_a_number_is_the_same_spec(index: Index, spelling: str) -> None:
    assert resolve_fixture(index, f"optimizer.lr={spelling}") == resolve_fixture(index)


def test_all_mistakes_are_reported_at_once_with_their_locations(
    error_text: ErrorText, write: Callable[[str], str]
) -> None:
    text = "preset: base\nattention:\n  name: gqa\n  kvheads: 3\nnorm: layernrm\ndims:\n  heads: four\ncolour: blue\n"
    message = error_text(write(text), "optimizer.lr=.nan", "dropout=1.0")
    keys = "topology, dims, embedding, attention, position, norm, placement, feedforward, initialisation, dropout, "
    keys += "objective, corpus, tokenizer, data, optimizer, schedule, trainer, evaluate, measure, parts, from, "
    keys += "teacher, freeze, seed"
    assert message.splitlines() == [
        f'error[unknown-key] colour (s.yaml:8): unknown key "colour"; valid: {keys}',
        'error[wrong-type] dims.heads (s.yaml:7): expected a whole number, got the text "four"; '
        "valid: a whole number ≥ 1 and ≤ 1e+06",
        'error[unknown-key] attention.kvheads (s.yaml:4): unknown key "kvheads"; '
        'did you mean "kv_heads"? valid: kv_heads, scores',
        'error[unknown-component] norm (s.yaml:5): unknown norm "layernrm"; '
        'did you mean "layernorm"? valid: layernorm, rmsnorm (parts of acme 1.0)',
        "error[not-finite] optimizer.lr (override 1): expected a finite number, got the number "
        "nan; valid: a number > 0",
        "error[out-of-range] dropout (override 2): `dropout` must be ≥ 0 and < 1, got 1.0; valid: a number ≥ 0 and < 1",
    ]


@pytest.mark.parametrize(
    ("override", "expected"),
    [
        ("dims.heads=8.5", "expected a whole number, got the number 8.5"),
        ("dims.heads=8.0", "expected a whole number, got the number 8.0"),
        ("dims.heads=true", "expected a whole number, got true"),
        ("dims.heads=null", "expected a whole number, got null"),
        ("dims.heads=[1]", "expected a whole number, got a list"),
        ("dims.heads={a: 1}", "expected a whole number, got a mapping"),
        ("dims.heads=0", "`heads` must be ≥ 1"),
        ("dims.heads=-4", "`heads` must be ≥ 1"),
        ("dims.layers=99999999", "`layers` must be ≥ 1 and ≤ 2048, got 99999999"),
        ("dims.width=1e400", "a finite number, got the number inf; valid: a whole number ≥ 1"),
        ("dims=7", "error[wrong-type] dims (override 1)"),
        ("dims=null", "error[missing] dims (override 1)"),
        ("dims.depth=3", "error[unknown-key] dims.depth (override 1): unknown key \"depth\"; did you mean \"layers\""),
        ("dims.length=???", "error[missing] dims.length (override 1)"),
        ("attention=???", "error[missing] attention (override 1)"),
        ("attention=7", "error[wrong-type] attention (override 1)"),
        ("attention={name: 7}", "error[wrong-type] attention.name (override 1)"),
        ("attention={name: null}", "expected a name, got null"),
        ("attention=[]", "error[empty] attention (override 1)"),
        ("attention=[mha, gqaa]", "error[unknown-component] attention.1 (override 1): unknown attention \"gqaa\""),
        ("attention=[mha, mha, mha]", "a list of 3 is cycled over 2 layers, so its last items would be ignored"),
        ("embedding=[tokens]", "error[wrong-type] embedding (override 1)"),
        ("attention.scores=1", "error[wrong-type] attention.scores (override 1)"),
        ("attention.scores.bais=true", "unknown key \"bais\"; did you mean \"bias\"? valid: bias, cap"),
        ("attention.scores.bias=1", "expected true or false, got the number 1"),
        ("attention.scores.cap=0", "`cap` must be > 0, got 0.0; valid: a number > 0, or null"),
        ("norm=rmsnorm norm.eps=1", None),
        ("feedforward.activation=gelo", 'expected one of relu, gelu, got the text "gelo"'),
        ("feedforward.activation=true", "expected one of relu, gelu, got true"),
        ("feedforward.activation=???", "`activation` has no value yet (???): which; valid: one of relu, gelu"),
        ("attention=window", "error[missing] attention.window (override 1)"),
        ("attention={name: window, window: 33}", "`window` must be at most `dims.length` (32), got 33: that equals"),
        ("attention={name: gqa, kv_heads: 3}", "`kv_heads` must divide `dims.heads` (4), got 3; valid: 1, 2, 4"),
        ("attention={name: gqa, kv_heads: 8}", "`kv_heads` must divide `dims.heads` (4), got 8; valid: 1, 2, 4"),
        ("attention={name: gqa, kv_heads: 0}", "`kv_heads` must be ≥ 1, got 0; valid: 1, 2, 4"),
        ("position={name: learned, length: 31}", "`length` must be at least `dims.length` (32), got 31"),
        ("dims.width=66", "`dims.width` (66) is not a multiple of `dims.heads` (4); valid: dims.width 64 or 68, "),
        ("feedforward={name: experts, expert: {name: mlp, activation: x}}", "error[wrong-type] feedforward.expert.act"),
        ("feedforward={name: experts, expert: mpl}", "feedforward.expert (override 1): unknown feedforward"),
        ("feedforward=endless", "this is nested too deep; valid: at most 64 levels"),
        ("corpus={name: text, path: 7}", 'expected text, got the number 7'),
        ("corpus={name: text, path: null}", "expected a list, each item text, got null"),
        ("corpus={name: text, path: {a: b}}", "expected a list, each item text, got a mapping"),
        ("corpus={name: text, path: a, betas: [0.9]}", "expected a list of 2, got a list"),
        ("corpus={name: text, path: a, betas: [0.9, 1.5]}", "`betas` must be ≥ 0 and < 1, got 1.5"),
        ("corpus={name: text, path: a, betas: [0.9, x]}", "error[wrong-type] corpus.betas.1 (override 1)"),
        ("optimizer.lr=nan", "a finite number, got the text \"nan\""),
        ("optimizer.lr=-inf", "a finite number, got the text \"-inf\""),
        ("optimizer.lr=0", "`lr` must be > 0, got 0.0"),
        ("optimizer.lr=-1", "`lr` must be > 0, got -1.0"),
        ('optimizer.lr="1"', 'expected a number, got the text "1"'),
        ("dropout=-0.1", "`dropout` must be ≥ 0 and < 1, got -0.1"),
        ("dropout=???", "`dropout` has no value yet (???): dropout probability"),
        ("seed=-1", "`seed` must be ≥ 0"),
        ("seed=9223372036854775808", "`seed` must be ≥ 0"),
        ("data=[]", "error[wrong-type] data (override 1)"),
        ("data.batch=0", "`batch` must be ≥ 1"),
        ("data.workers=-1", "`workers` must be ≥ 0"),
        ("data.documents=no", "error[misread] data.documents (override 1)"),
        ("data.documents=apar", "got the text \"apar\"; did you mean \"apart\"?"),
        ("trainer=7", "error[wrong-type] trainer (override 1)"),
        ("trainer.logger=wandb", "error[wrong-type] trainer.logger (override 1)"),
        ("trainer.callbacks=[x]", "error[wrong-type] trainer.callbacks (override 1)"),
        ("trainer.max_steps=0", "`max_steps` must be ≥ 1"),
        ("trainer.max_steps=1.5", "expected a whole number, got the number 1.5"),
        ("trainer.Max=1", "error[unknown-key] trainer.Max (override 1)"),
        ("trainer.gradient_clip_val=.inf", "error[not-finite] trainer.gradient_clip_val (override 1)"),
        ("trainer.x={y: [.nan]}", "error[not-finite] trainer.x.y.0 (override 1)"),
        ("trainer.devices=???", "error[missing] trainer.devices (override 1)"),
        ("objective=[mlm, mlm]", "error[duplicate-item] objective (override 1)"),
        ("objective=[]", "this list is empty; expected a name of objective"),
        ("objective.rate=0", "`rate` must be ≤ 1 and > 0, got 0.0"),
        ("objective.rate=1.5", "`rate` must be ≤ 1 and > 0, got 1.5"),
        ("evaluate=[mlmm]", "error[unknown-component] evaluate.0 (override 1): unknown objective \"mlmm\""),
        ("evaluate=[mlm, mlm]", "error[duplicate-item] evaluate (override 1)"),
        ("topology=encodr", '; did you mean "encoder"? valid: bare, chain, decoder, encoder, pair (parts of'),
        ("topology=null", "error[missing] topology (override 1)"),
        ("objective=null", "error[missing] objective (override 1)"),
        ("position=null", "error[missing] position (override 1)"),
        ("topology=bare", "error[unused-option] position (base.yaml:9)"),
        ("launcher=local", "error[unknown-key] launcher (override 1): unknown key \"launcher\""),
        ("preset=small", "error[preset-override] preset (override 1)"),
        ("paribus=2", "got schema the number 2: upgrade paribus"),
        ("paribus=0", "got schema the number 0: rewrite the spec"),
        ("paribus=true", "got schema true: rewrite the spec"),
        ("plugins=acme", 'error[wrong-type] plugins (override 1): expected a list of names, got the text "acm'),
        ("plugins=[acm]", "plugin \"acm\", which this spec needs; did you mean \"acme\"?"),
        ("attention={name: mha, _target_: os.system}", "error[python-object] attention._target_ (override 1)"),
        ("trainer.logger={_partial_: true, x: [{_target_: a}]}", "unknown key `_partial_`: specs never name Python ob"),
        ("hydra={run: {dir: x}}", "unknown key `hydra`: specs never name Python objects"),
        ("attention=../../x", "unknown attention \"../../x\""),
        ("parts=7", "error[wrong-type] parts (override 1)"),
        ("parts.decodr={}", 'unknown part "decodr" of the topology encoder; did you mean "encoder"? valid: encoder'),
        ("parts.encoder=7", "error[wrong-type] parts.encoder (override 1)"),
        ("parts.encoder.embedding=tokens", "unknown key \"embedding\"; valid: dims, attention, position, norm, pla"),
        ("parts.encoder.cross.position=rope", "error[unknown-key] parts.encoder.cross (override 1)"),
        ("parts.encoder.dims.vocabulary=9", "`vocabulary` cannot be overridden: all parts share an embedding; val"),
        ("parts.encoder.dims.depth=32", "unknown key \"depth\"; did you mean \"layers\"? valid: width, layers"),
        ("parts.encoder.dims.heads=3", "`dims.width` (64) is not a multiple of `parts.encoder.dims.heads` (3)"),
        ("parts.encoder.dims.layers=0", "error[out-of-range] parts.encoder.dims.layers (override 1)"),
        ("parts.encoder.norm=rms", "error[unknown-component] parts.encoder.norm (override 1): unknown norm \"rms\""),
    ],
)  # fmt: skip
def test_a_mistake_is_reported_with_its_path_and_the_valid_values(
    error_text: ErrorText, override: str, expected: str | None
) -> None:
    message = error_text("base", *override.split(" ")) if expected is None else error_text("base", override)
    assert (expected or 'unknown key "eps"; valid: nothing: it has no options') in message


def test_python_objects_are_refused_at_any_depth(error_text: ErrorText) -> None:
    message = error_text("base", "trainer.logger={_partial_: true, x: [{_target_: a}]}")
    assert "trainer.logger._partial_" in message
    assert "trainer.logger.x.0._target_" in message


def test_control_characters_of_a_name_are_escaped(error_text: ErrorText) -> None:
    message = error_text({"topology": "\x1b[31m\u202e", "dims": None})
    assert "\x1b" not in message
    assert "\\u001b[31m\\u202e" in message


def test_an_empty_spec_reports_all_missing_keys(error_text: ErrorText) -> None:
    message = error_text({})
    for slot in ("topology", "dims", "initialisation", "objective", "corpus", "tokenizer", "optimizer", "schedule"):
        assert f"error[missing] {slot}: `{slot}` is missing" in message


def test_at_most_a_hundred_mistakes_are_reported(error_text: ErrorText, base_spec: dict[str, Any]) -> None:
    base_spec |= {f"key{number}": 1 for number in range(5000)}
    assert len(error_text(base_spec).splitlines()) == 100


def test_null_removes_a_component_that_the_topology_does_not_use(index: Index) -> None:
    overrides = [f"{slot}=null" for slot in ("position", "norm", "placement", "feedforward")]
    spec = resolve_fixture(index, "topology=bare", *overrides)
    assert "position" not in spec
    assert spec["attention"]["name"] == "mha"


def test_null_equals_a_missing_key(index: Index) -> None:
    assert resolve_fixture(
        index, "data=null", "trainer=null", "parts=null", "evaluate=null", "plugins=null"
    ) == resolve_fixture(index)


def test_lists_of_components_are_preserved(index: Index) -> None:
    spec = resolve_fixture(index, "attention=[mha, gqa]", "attention.1.kv_heads=4", "norm=[rmsnorm]")
    assert [node["name"] for node in spec["attention"]] == ["mha", "gqa"]
    assert spec["attention"][1]["kv_heads"] == 4
    assert spec["norm"] == [{"name": "rmsnorm"}]


def test_an_objective_may_be_a_list_and_evaluate_a_single_name(index: Index) -> None:
    spec = resolve_fixture(index, "objective=[mlm, nsp]", "evaluate=mlm")
    assert [node["name"] for node in spec["objective"]] == ["mlm", "nsp"]
    assert spec["evaluate"] == [{"name": "mlm", "rate": 0.15}]


def test_a_single_value_becomes_a_list_of_one(index: Index) -> None:
    assert resolve_fixture(index, "corpus=text", "corpus.path=data/*.txt")["corpus"]["path"] == ["data/*.txt"]


def test_defaults_of_nested_components_are_filled_in(index: Index) -> None:
    spec = resolve_fixture(index, "feedforward=experts", "feedforward.expert.activation=relu")
    assert spec["feedforward"] == {"name": "experts", "count": 4, "expert": {"name": "mlp", "activation": "relu"}}


def test_an_explicit_head_width_need_not_divide_the_width(index: Index) -> None:
    assert resolve_fixture(index, "dims.width=66", "dims.head_width=16")["dims"]["head_width"] == 16


def test_a_spec_may_name_its_schema_version_and_plugins(index: Index) -> None:
    assert resolve_fixture(index, "paribus=1", "plugins=[acme, parts]") == resolve_fixture(index)


def test_a_default_that_contradicts_the_sizes_is_refused(error_text: ErrorText) -> None:
    message = error_text("base", "attention=gqa", "dims.heads=1", "dims.width=63")
    assert "attention.kv_heads (override 1): `kv_heads` must divide `dims.heads` (1), got 2; valid: 1" in message


def test_a_required_plugin_that_failed_to_load_raises_a_plugin_error(index: Index) -> None:
    source = PluginSource("ghost", "ghosts", "no_such_module_at_all", "1.0")
    broken_index = Index((*index.plugins, PluginManifest(source, broken=(LoadFailure(source, "boo"),))))
    assert resolved("base", registry=broken_index)
    with raises_problem(PluginError, "plugin-failed", "ghosts", "boo"):
        resolved("base", "plugins=[ghosts]", registry=broken_index)
    with raises_problem(PluginError, "plugin-failed", "new", "ghosts", "boo"):
        resolved("base", "norm=new", "seed=x", registry=broken_index)


def test_resolved_parts_contain_all_defaults(index: Index) -> None:
    spec = resolve_fixture(
        index,
        "attention=gqa",
        "parts.decoder.attention.kv_heads=1",
        "parts.decoder.cross.attention=mha",
        "parts.decoder.cross.position=rope",
        "parts.encoder.dims.layers=5",
        "parts.encoder.norm=rmsnorm",
        base="seq",
    )
    scores = {"bias": True, "cap": None}
    assert spec["parts"] == {
        "decoder": {
            "attention": {"name": "gqa", "kv_heads": 1, "scores": scores},
            "cross": {"attention": {"name": "mha", "scores": scores}, "position": {"name": "rope", "theta": 1e4}},
        },
        "encoder": {"dims": {"layers": 5}, "norm": {"name": "rmsnorm"}},
    }


def test_a_cross_attention_inherits_the_attention_of_its_part(index: Index) -> None:
    spec = resolve_fixture(index, "parts.decoder.attention=gqa", "parts.decoder.cross.attention.kv_heads=4", base="seq")
    assert spec["parts"]["decoder"]["cross"]["attention"]["name"] == "gqa"


def test_an_empty_part_equals_a_missing_part(index: Index) -> None:
    assert resolve_fixture(index, "parts.decoder={}", "parts.encoder=null", base="seq") == resolve_fixture(
        index, base="seq"
    )


@pytest.mark.parametrize(
    ("override", "expected"),
    [
        ("parts.decoder.cross=7", "error[wrong-type] parts.decoder.cross (override 1)"),
        ("parts.decoder.cross.norm=rmsnorm", 'unknown key "norm"; valid: attention, position'),
        ("parts.decoder.dims=7", "error[wrong-type] parts.decoder.dims (override 1)"),
        (
            "parts.decoder.dims.heads=x",
            "error[wrong-type] parts.decoder.dims.heads (override 1)",
        ),
    ],
)
def test_a_mistake_in_a_part_is_reported_with_its_path(error_text: ErrorText, override: str, expected: str) -> None:
    assert expected in error_text("seq", override)


def test_limits_of_a_part_use_the_sizes_of_the_part(error_text: ErrorText) -> None:
    assert (
        error_text(
            "seq", "parts.decoder.dims.heads=8", "parts.decoder.attention=gqa", "parts.decoder.attention.kv_heads=8"
        )
        == ""
    )
    assert "must divide `dims.heads` (2), got 4" in error_text(
        "seq", "parts.decoder.dims.heads=2", "parts.decoder.attention={name: gqa, kv_heads: 4}"
    )


def test_a_problem_is_a_spec_error(index: Index) -> None:
    with raises_problem(SpecError, "unknown-key", "colour"):
        resolved("base", "colour=blue", registry=index)
