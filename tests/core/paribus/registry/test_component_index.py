"""Looking up what is installed, from data alone."""

from pathlib import Path

import pytest

from paribus.errors import EXIT_PLUGIN, EXIT_SPEC, ParibusError, PluginError, Problem, SpecError
from paribus.registry import Broken, Entry, Index, Part, Piece, failure
from paribus.registry.plugin_sources import Door
from paribus.schema import AtLeast, AtMost, Divides, Kind, Option, Range

OURS = Door("paribus", "norm", "paribus_norm", "1.0")
THEIRS = Door("acme", "acme", "acme_norms", "2.0")
FILE = Door("", "./mine.py", "/somewhere/mine.py")

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


def entry(name: str, door: Door = OURS, slot: str = "norm") -> Entry:
    return Entry(slot=slot, name=name, door=door, doc=f"The {name}.\nMore\n\nof it.", file="", options=OPTIONS)


def index(*pieces: Piece) -> Index:
    return Index(pieces)


INDEX = index(Piece(OURS, (entry("layernorm"), entry("rmsnorm"))), Piece(THEIRS, (entry("batchnorm", THEIRS),)))


def told(error: ParibusError) -> str:
    return str(error)


def test_a_summary_is_the_first_sentence_even_on_two_lines() -> None:
    assert entry("x").summary == "The x. More"


def test_a_piece_comes_back_from_json_as_it_was() -> None:
    topology = Entry(
        slot="topology",
        name="pair",
        door=OURS,
        doc="A pair.",
        file="x.py",
        traits={"sight": "any", "needs": ["mask"]},
        parts=(Part("decoder", "body", True, "encoder"), Part("encoder", "encoder", False)),
        reads=("attention",),
    )
    broken = (Broken(OURS, "why", "norm", "bad"), Broken(OURS, "all"))
    piece = Piece(OURS, (topology, entry("layernorm")), broken, "presets", "studies", ("norm", "presets"))
    assert Piece.from_json(piece.to_json()) == piece


def test_a_component_is_found_by_slot_and_name() -> None:
    assert INDEX.find("norm", "rmsnorm").door == OURS
    assert INDEX.names("norm") == ("batchnorm", "layernorm", "rmsnorm")
    assert INDEX.names("attention") == ()


def test_an_unknown_component_lists_names_with_the_plugin_of_each_and_the_nearest() -> None:
    with pytest.raises(SpecError, match=r"unknown norm \"rmsnrm\"") as caught:
        INDEX.find("norm", "rmsnrm")
    assert "batchnorm (acme of acme 2.0), layernorm, rmsnorm (norm of paribus 1.0)" in told(caught.value)
    assert 'did you mean "rmsnorm"?' in told(caught.value)


def test_an_unknown_slot_lists_the_slots() -> None:
    with pytest.raises(SpecError, match=r"unknown slot \"norms\"; did you mean \"norm\". valid: topology, "):
        INDEX.find("norms", "x")


def test_an_empty_slot_says_that_nothing_is_installed() -> None:
    with pytest.raises(SpecError, match=r"unknown attention \"mha\"; valid: none is installed"):
        INDEX.find("attention", "mha")


@pytest.mark.parametrize("turned", [False, True])
def test_two_claimants_of_one_name_are_both_named_in_any_order(turned: bool) -> None:
    pieces = [Piece(OURS, (entry("layernorm"), entry("none"))), Piece(THEIRS, (entry("layernorm", THEIRS),))]
    both = index(*reversed(pieces)) if turned else index(*pieces)
    expected = (
        "norm.layernorm is claimed by plugin acme of acme 2.0 and plugin norm of paribus 1.0; "
        "uninstall one, or ask its author for another name"
    )
    with pytest.raises(PluginError, match=r"norm.layernorm is claimed by") as caught:
        both.find("norm", "layernorm")
    assert expected in told(caught.value)
    assert both.warnings() == [expected]
    assert both.find("norm", "none").name == "none"
    assert both.names("norm") == ("none",)


def test_a_broken_plugin_whose_source_has_the_name_is_to_blame(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text("from x import GroupNorm as group_norm\nraise ValueError")
    door = Door("", "mine.py", str(file))
    broken = index(Piece(OURS, (entry("layernorm"),)), Piece(door, broken=(Broken(door, "ValueError: oh"),)))
    with pytest.raises(
        PluginError, match=r"unknown norm \"group-norm\"; plugin mine.py failed to load: ValueError: oh"
    ):
        broken.find("norm", "group-norm")
    with pytest.raises(SpecError, match=r"unknown norm \"layernrm\"; did you mean"):
        broken.find("norm", "layernrm")
    assert broken.find("norm", "layernorm").name == "layernorm"
    assert broken.warnings() == ["plugin mine.py failed to load: ValueError: oh"]


def test_a_broken_component_is_told_to_whoever_asks_for_it_and_to_nobody_else() -> None:
    found = index(Piece(OURS, (entry("layernorm"),), (Broken(OURS, "it is abstract", "norm", "half"),)))
    with pytest.raises(PluginError, match=r"component norm.half, failed to load: it is abstract"):
        found.find("norm", "half")
    with pytest.raises(SpecError, match=r"unknown norm \"other\"; valid"):
        found.find("norm", "other")


def test_a_broken_plugin_without_files_may_be_to_blame_for_anything() -> None:
    gone = Door("ghost", "ghost", "no_such_module_at_all", "1.0")
    found = index(Piece(gone, broken=(Broken(gone, "gone"),)))
    with pytest.raises(PluginError, match=r"plugin ghost of ghost 1.0 failed to load: gone"):
        found.find("norm", "anything")


def files(folder: Path, *names: str) -> str:
    for name in names:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("seed: 0\n")
    return str(folder)


def test_presets_and_studies_are_read_from_folders_each_time(tmp_path: Path) -> None:
    folder = files(tmp_path, "a.yaml", "b.yaml", "Not a name.yaml", "c.txt", "grid/study.yaml", "empty/notes.txt")
    found = index(Piece(OURS, presets=folder, studies=folder))
    assert list(found.presets) == ["a", "b"]
    assert list(found.studies) == ["grid"]
    files(tmp_path, "d.yaml")
    assert found.preset("d") == tmp_path / "d.yaml"
    assert found.study("grid") == tmp_path / "grid" / "study.yaml"


def test_an_unknown_preset_lists_those_there_are(tmp_path: Path) -> None:
    found = index(Piece(OURS, presets=files(tmp_path, "bert-tiny.yaml")))
    with pytest.raises(
        SpecError, match=r"unknown preset \"bert-tny\"; did you mean \"bert-tiny\"\? valid: bert-tiny, or a path"
    ):
        found.preset("bert-tny")
    with pytest.raises(SpecError, match=r"unknown study \"x\"; valid: none is installed, or a path"):
        found.study("x")


def test_two_plugins_with_one_preset_are_both_named(tmp_path: Path) -> None:
    ours, theirs = files(tmp_path / "a", "x.yaml", "y.yaml"), files(tmp_path / "b", "x.yaml")
    found = index(Piece(OURS, presets=ours), Piece(THEIRS, presets=theirs))
    with pytest.raises(PluginError, match=r"the preset x is claimed by plugin acme of acme 2.0 and plugin norm"):
        found.preset("x")
    assert list(found.presets) == ["y"]
    assert "the preset x is claimed by" in found.warnings()[0]


def test_a_failure_is_a_plugins_where_one_is_to_blame_and_carries_all() -> None:
    spec = Problem(code="unknown-key", message="a")
    plugin = Problem(code="plugin-failed", message="b")
    assert failure([spec]).exit_code == EXIT_SPEC
    assert failure([spec, plugin]).exit_code == EXIT_PLUGIN
    assert failure([spec, plugin]).problems == (spec, plugin)


def test_a_file_is_named_by_its_path() -> None:
    assert str(FILE) == FILE.source == "./mine.py"
