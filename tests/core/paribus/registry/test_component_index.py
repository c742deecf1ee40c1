"""Lookup of components in the index, from data alone."""

from pathlib import Path

import pytest
from tests.fixtures.problems import raises_problem

from paribus.errors import EXIT_PLUGIN, EXIT_SPEC, PluginError, Problem, SpecError
from paribus.registry import Entry, Index, LoadFailure, Part, PluginManifest, error_from
from paribus.registry.component_index import PluginSource
from paribus.schema import AtLeast, AtMost, Divides, Kind, Option, Range

PARIBUS = PluginSource("paribus", "norm", "paribus_norm", "1.0")
ACME = PluginSource("acme", "acme", "acme_norms", "2.0")
FILE = PluginSource("", "./mine.py", "/somewhere/mine.py")

OPTIONS = (
    Option("eps", Kind("float"), "added", (Range(above=0),), 1e-5),
    Option(
        "groups", Kind("int", optional=True), "groups", (Divides("heads"), AtLeast("heads"), AtMost("length", "no"))
    ),
    Option("kind", Kind("choice", choices=("a", "b")), "which", (), "a"),
    Option("sizes", Kind("list", items=(Kind("int"), Kind("float"))), "sizes", (), [1, 2.0]),
    Option("inner", Kind("slot", slot="norm"), "inner", (), "layernorm"),
    Option("scores", Kind("group", options=(Option("bias", Kind("bool"), "bias", (), True),)), "group", (), {}),
    Option("window", Kind("int"), "needed", (), None, True, 8),
)


def entry(name: str, source: PluginSource = PARIBUS, slot: str = "norm") -> Entry:
    return Entry(slot=slot, name=name, source=source, doc=f"The {name}.\nMore\n\nof it.", file="", options=OPTIONS)


def index(*plugins: PluginManifest) -> Index:
    return Index(plugins)


INDEX = index(
    PluginManifest(PARIBUS, (entry("layernorm"), entry("rmsnorm"))), PluginManifest(ACME, (entry("batchnorm", ACME),))
)


def test_a_summary_is_the_first_sentence_even_on_two_lines() -> None:
    assert entry("x").summary == "The x. More"


def test_a_manifest_survives_json() -> None:
    topology = Entry(
        slot="topology",
        name="pair",
        source=PARIBUS,
        doc="A pair.",
        file="x.py",
        traits={"visibility": "any", "needs": ["mask"]},
        parts=(Part("decoder", "body", True, "encoder"), Part("encoder", "encoder", False)),
        reads=("attention",),
    )
    broken = (LoadFailure(PARIBUS, "why", "norm", "bad"), LoadFailure(PARIBUS, "all"))
    manifest = PluginManifest(
        PARIBUS, (topology, entry("layernorm")), broken, "presets", "studies", ("norm", "presets")
    )
    assert PluginManifest.from_json(manifest.to_json()) == manifest


def test_a_component_is_small_index_by_slot_and_name() -> None:
    assert INDEX.find("norm", "rmsnorm").source == PARIBUS
    assert INDEX.names("norm") == ("batchnorm", "layernorm", "rmsnorm")
    assert INDEX.names("attention") == ()


def test_an_unknown_component_lists_valid_names_and_the_closest() -> None:
    with raises_problem(SpecError, "unknown-component", "norm", "rmsnrm") as caught:
        INDEX.find("norm", "rmsnrm")
    assert "batchnorm (acme of acme 2.0), layernorm, rmsnorm (norm of paribus 1.0)" in str(caught.value)
    assert 'did you mean "rmsnorm"?' in str(caught.value)


@pytest.mark.parametrize(
    ("word", "meant"),
    [
        ("gla", "gated"),  # a word of its documentation
        ("linear gated_unit", ""),
        ("GATED unit", "gated"),
        ("matrix", ""),  # a word that two have
        ("xsa", "attention.scores.exclusive"),  # an option
        ("gate", "gated"),  # part of a word of the documentation, but a similar name
        ("[", ""),
        ("-", ""),
    ],
)
def test_an_unknown_name_is_searched_in_the_documentation(word: str, meant: str) -> None:
    flag = Kind("bool")
    scores = Option("scores", Kind("group", options=(Option("exclusive", flag, "as in XSA"),)), "of scores")
    docs = {"gated": "Gated-unit of GLA with a matrix.", "other": "Another matrix.\n\nOf a GLA, too."}
    entries = tuple(
        Entry(slot="attention", name=name, source=PARIBUS, doc=doc, file="", options=(scores,))
        for name, doc in docs.items()
    )
    small_index = index(PluginManifest(PARIBUS, entries))
    problem = small_index.problem("attention", word)
    assert problem is not None
    assert problem.suggestion == meant


def test_an_unknown_slot_lists_the_slots() -> None:
    with raises_problem(SpecError, "unknown-slot", "norms", "topology", "norm"):
        INDEX.find("norms", "x")


def test_an_empty_slot_has_no_valid_names() -> None:
    with raises_problem(SpecError, "unknown-component", "attention", "mha"):
        INDEX.find("attention", "mha")


@pytest.mark.parametrize("reverse", [False, True])
def test_a_conflict_names_both_plugins_in_any_order(reverse: bool) -> None:
    plugins = [
        PluginManifest(PARIBUS, (entry("layernorm"), entry("none"))),
        PluginManifest(ACME, (entry("layernorm", ACME),)),
    ]
    both = index(*reversed(plugins)) if reverse else index(*plugins)
    expected = (
        "norm.layernorm is claimed by plugin acme of acme 2.0 and plugin norm of paribus 1.0; "
        "uninstall one, or ask its author for another name"
    )
    with raises_problem(PluginError, "duplicate-name", "norm.layernorm") as caught:
        both.find("norm", "layernorm")
    assert expected in str(caught.value)
    assert both.warnings() == [expected]
    assert both.find("norm", "none").name == "none"
    assert both.names("norm") == ("none",)


def test_a_failed_plugin_that_may_contain_the_name_is_reported(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text("from x import GroupNorm as group_norm\nraise ValueError")
    source = PluginSource("", "mine.py", str(file))
    broken = index(
        PluginManifest(PARIBUS, (entry("layernorm"),)),
        PluginManifest(source, broken=(LoadFailure(source, "ValueError: oh"),)),
    )
    with raises_problem(PluginError, "plugin-failed", "norm", "group-norm", "mine.py", "ValueError"):
        broken.find("norm", "group-norm")
    with raises_problem(SpecError, "unknown-component", "norm", "layernrm"):
        broken.find("norm", "layernrm")
    assert broken.find("norm", "layernorm").name == "layernorm"
    assert broken.warnings() == ["plugin mine.py failed to load: ValueError: oh"]


def test_a_failed_component_is_an_error_only_where_it_is_needed() -> None:
    small_index = index(
        PluginManifest(PARIBUS, (entry("layernorm"),), (LoadFailure(PARIBUS, "it is abstract", "norm", "half"),))
    )
    with raises_problem(PluginError, "plugin-failed", "norm.half"):
        small_index.find("norm", "half")
    with raises_problem(SpecError, "unknown-component", "norm", "other"):
        small_index.find("norm", "other")


def test_a_failed_plugin_without_files_may_contain_any_name() -> None:
    gone = PluginSource("ghost", "ghost", "no_such_module_at_all", "1.0")
    small_index = index(PluginManifest(gone, broken=(LoadFailure(gone, "gone"),)))
    with raises_problem(PluginError, "plugin-failed", "ghost 1.0", "gone"):
        small_index.find("norm", "anything")


def files(folder: Path, *names: str) -> str:
    for name in names:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("seed: 0\n")
    return str(folder)


def test_presets_and_studies_are_read_from_folders_each_time(tmp_path: Path) -> None:
    folder = files(tmp_path, "a.yaml", "b.yaml", "Not a name.yaml", "c.txt", "grid/study.yaml", "empty/notes.txt")
    small_index = index(PluginManifest(PARIBUS, presets=folder, studies=folder))
    assert list(small_index.presets) == ["a", "b"]
    assert list(small_index.studies) == ["grid"]
    files(tmp_path, "d.yaml")
    assert small_index.preset("d") == tmp_path / "d.yaml"
    assert small_index.study("grid") == tmp_path / "grid" / "study.yaml"


def test_an_unknown_preset_lists_the_valid_ones(tmp_path: Path) -> None:
    small_index = index(PluginManifest(PARIBUS, presets=files(tmp_path, "bert-tiny.yaml")))
    with raises_problem(SpecError, "unknown-preset", "bert-tny", "bert-tiny"):
        small_index.preset("bert-tny")
    with raises_problem(SpecError, "unknown-study", "x"):
        small_index.study("x")


def test_a_conflict_of_presets_names_both_plugins(tmp_path: Path) -> None:
    first_files, second_files = files(tmp_path / "a", "x.yaml", "y.yaml"), files(tmp_path / "b", "x.yaml")
    small_index = index(PluginManifest(PARIBUS, presets=first_files), PluginManifest(ACME, presets=second_files))
    with raises_problem(PluginError, "duplicate-name", "preset x", "acme 2.0"):
        small_index.preset("x")
    assert list(small_index.presets) == ["y"]
    assert "the preset x is claimed by" in small_index.warnings()[0]


def test_problems_combine_into_one_error() -> None:
    spec = Problem(code="unknown-key", message="a")
    plugin = Problem(code="plugin-failed", message="b")
    assert error_from([spec]).exit_code == EXIT_SPEC
    assert error_from([spec, plugin]).exit_code == EXIT_PLUGIN
    assert error_from([spec, plugin]).problems == (spec, plugin)


def test_a_file_is_named_by_its_path() -> None:
    assert str(FILE) == FILE.label == "./mine.py"
