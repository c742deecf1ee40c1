"""The identity of a component changes with everything that its output depends on, and with nothing else."""

from __future__ import annotations

import base64
import copyreg
import hashlib
import importlib
import importlib.metadata
import importlib.util
import json
import os
import subprocess
import sys
import types
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.core.paribus.registry.mechanisms import MECHANISMS

from paribus.parts.constant_tensor import ConstantTensor
from paribus.planning.identity import ComponentCode
from paribus.registry import Index, Registry, installed
from paribus.registry import index as read_index
from paribus.registry.component_values import component_values
from paribus.registry.loaded_sources import loaded_sources
from paribus.specs import resolved
from paribus.storage.packages import DIGITS, LARGE, find_package

NUMBERS = count()
PLUGIN = '''
from typing import Annotated
import paribus
{setup}

class Mine(paribus.Schedule):
    """Constant schedule."""
    {body}

    def factor(self, step: int, steps: int) -> float:
        return {value}

@paribus.hookimpl
def schedule():
    return {{"mine": Mine}}
'''


def plugin(value: str, setup: str = "", body: str = "") -> str:
    return PLUGIN.format(value=value, setup=setup, body=body)


def identity(index: Index, name: str = "mine", slot: str = "schedule") -> str:
    return ComponentCode(index).component(slot, name)


def of_file(path: Path) -> str:
    """Return the identity of the component of a file from the index on disk, which another process derived."""
    return identity(read_index(plugins=[path]))


def source(component: str) -> str:
    return component.partition("-")[0]


@pytest.fixture(scope="module")
def registry() -> Registry:
    return installed(no_plugins=True)


# ------------------------------------------------------------------------------------------ plugins as users write them


@pytest.mark.thorough
def test_a_plugin_has_one_identity_in_the_index_and_in_the_process_that_runs_it(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text(plugin("SCALE * 1.0", "SCALE = {'a', 'b', 'c'}"))
    assert of_file(file) == identity(installed(plugins=[file]).index)


@pytest.mark.thorough
def test_comments_docstrings_and_messages_change_nothing(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    text = plugin("check(lambda: SCALE)", "SCALE = 2.0\ndef check(x):\n    return x()")
    file.write_text(text)
    first = of_file(file)
    edited = text.replace("Constant schedule.", "Level, with lambda: and def check(.")
    file.write_text("# lambda: 1\n" + edited.replace("    return x()", '    """Help."""\n\n    # why\n    return x()'))
    assert of_file(file) == first
    file.write_text(text.replace("SCALE = 2.0", "SCALE = 3.0"))
    assert of_file(file) != first


@pytest.mark.thorough
@pytest.mark.parametrize("package", [False, True])
def test_an_edited_helper_of_another_package_is_another_component(
    package: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    libraries = tmp_path / "libraries"
    name = f"helper_{next(NUMBERS)}"
    helper = libraries / name / "scales.py" if package else libraries / f"{name}.py"
    helper.parent.mkdir(parents=True)
    if package:
        (helper.parent / "__init__.py").write_text("from .scales import scaled\n")
    helper.write_text("def scaled(x):\n    return 2 * x\n")
    monkeypatch.syspath_prepend(libraries)
    file = tmp_path / "mine.py"
    file.write_text(plugin("scaled(1.0)", f"from {name} import scaled"))
    first = of_file(file)
    status = helper.stat()
    helper.write_text("def scaled(x):\n    return 3 * x\n")
    os.utime(helper, ns=(status.st_atime_ns, status.st_mtime_ns))
    second = of_file(file)
    assert source(second) != source(first)
    helper.write_text("def scaled(x):\n    return 3 * x  # three\n")
    assert of_file(file) == second


@pytest.mark.thorough
def test_a_helper_that_is_imported_when_it_is_called_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    name = f"helper_{next(NUMBERS)}"
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / f"{name}.py").write_text("import json\nSCALE = json.loads(open(__file__ + '.json').read())\n")
    (tmp_path / f"{name}.py.json").write_text("2")
    file = tmp_path / "mine.py"
    file.write_text(plugin("helper().SCALE", f"def helper():\n    import {name} as it\n    it.SCALE\n    return it"))
    first = of_file(file)
    (tmp_path / f"{name}.py.json").write_text("3")
    assert of_file(file) != first


@pytest.mark.parametrize(
    "statement",
    [
        "import {0}.scales",
        "import {0}.scales as it",
        "from {0} import scales",
        "from {0} import scales as it",
        "from {0}.scales import SCALE",
    ],
)
def test_a_value_counts_however_a_function_imports_it(
    statement: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = f"package_{next(NUMBERS)}"
    (tmp_path / name).mkdir()
    (tmp_path / name / "__init__.py").touch()
    (tmp_path / name / "scales.py").write_text("SCALE = 2.0\n")
    monkeypatch.syspath_prepend(tmp_path)
    used = {"import {0}.scales": f"{name}.scales.SCALE", "from {0} import scales": "scales.SCALE"}.get(
        statement, "SCALE" if statement.endswith("SCALE") else "it.SCALE"
    )
    file = tmp_path / "mine.py"
    file.write_text(plugin("scale()", f"def scale():\n    {statement.format(name)}\n    return {used}"))
    component = installed(plugins=[file]).get("schedule", "mine")
    first = component_values(component)
    assert component().factor(0, 1) == 2.0
    assert component_values(component) == first
    monkeypatch.setattr(f"{name}.scales.SCALE", 3.0)
    assert component().factor(0, 1) == 3.0
    assert component_values(component) != first


@pytest.mark.thorough
def test_a_large_package_counts_by_its_version(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    name = f"large_{next(NUMBERS)}"
    site = tmp_path / "site-packages"
    (site / name).mkdir(parents=True)
    for number in range(202):
        (site / name / f"module_{number}.py").touch()
    (site / name / "__init__.py").write_text("def scaled(x):\n    return 2 * x\n")
    monkeypatch.syspath_prepend(site)
    file = tmp_path / "mine.py"
    file.write_text(plugin("scaled(1.0)", f"from {name} import scaled"))
    identities = []
    for version in ("1.0", "2.0"):
        info = site / f"{name}-{version}.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
        importlib.invalidate_caches()
        code = f"sys.path.insert(0, {str(site)!r}); print(identity(read_index(plugins=[{str(file)!r}])))"
        identities.append(in_process(code, {}))
        (info / "METADATA").unlink()
        info.rmdir()
    assert source(identities[0]) != source(identities[1])


def install(site: Path, name: str, source: str, *, origin: str = "index") -> Path:
    """Write an installed distribution of one package, from an `origin`; return the file of its code."""
    file, info = site / name / "__init__.py", site / f"{name}-1.0.dist-info"
    file.parent.mkdir(parents=True)
    info.mkdir()
    file.write_text(source)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    if origin != "unlisted":
        digest = base64.urlsafe_b64encode(hashlib.sha256(source.encode()).digest()).rstrip(b"=").decode()
        (info / "RECORD").write_text(f"{name}/__init__.py,sha256={digest},{len(source)}\n")
    if origin == "folder":
        (info / "direct_url.json").write_text('{"url": "file:///home/me/helper", "dir_info": {}}')
    if origin == "edited":
        file.write_text(source + "SCALE = 2.0\n")
    if origin == "extended":
        (file.parent / "more.py").touch()
    return file


def user_of(helper: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return a component that computes with `scaled` of a module."""
    (folder / f"user_of_{helper}.py").write_text(plugin("scaled(1.0)", f"from {helper} import scaled"))
    monkeypatch.syspath_prepend(folder)
    return importlib.import_module(f"user_of_{helper}").Mine


STATEFUL = "STATE = []\n\ndef scaled(x):\n    STATE.append(x)\n    return 2 * x\n"


@pytest.mark.parametrize("folder", ["site-packages", "target"])  # `target`: of `pip install --target`
def test_a_package_from_an_index_counts_by_its_version_and_not_by_its_state(
    folder: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = f"helper_{next(NUMBERS)}"
    install(tmp_path / folder, name, STATEFUL)
    monkeypatch.syspath_prepend(tmp_path / folder)
    component = user_of(name, tmp_path, monkeypatch)
    first = component_values(component)
    assert component().factor(0, 1) == 2.0
    assert component_values(component) == first
    assert [version[:-DIGITS] for version in first.versions] == [f"{name} 1.0 "]


@pytest.mark.parametrize("large", [LARGE, 0])
def test_a_package_that_is_built_again_with_the_same_version_is_another_one(
    large: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("paribus.storage.packages.LARGE", large)
    name = f"helper_{next(NUMBERS)}"
    versions: list[str] = []
    for source in (STATEFUL, STATEFUL.replace("2", "3")):
        site = tmp_path / str(len(versions)) / "site-packages"
        install(site, name, source, origin="index" if large else "folder")
        with monkeypatch.context() as context:
            context.syspath_prepend(site)
            versions.append(find_package(name).version)
    assert all(versions)
    assert len({*versions}) == 2


def test_a_large_package_of_the_user_beside_its_metadata_has_no_version(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("paribus.storage.packages.LARGE", 0)
    name = f"helper_{next(NUMBERS)}"
    install(tmp_path, name, STATEFUL, origin="unlisted")  # as the `egg-info` of an editable installation
    monkeypatch.syspath_prepend(tmp_path)
    assert find_package(name).version == ""


@pytest.mark.parametrize("large", [LARGE, 0])
def test_a_namespace_package_with_a_part_of_the_user_has_no_version(
    large: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("paribus.storage.packages.LARGE", large)
    name = f"helper_{next(NUMBERS)}"
    file = install(tmp_path / "site-packages", name, STATEFUL)
    file.rename(file.with_name("installed.py"))
    record = tmp_path / "site-packages" / f"{name}-1.0.dist-info" / "RECORD"
    record.write_text(record.read_text().replace("__init__", "installed"))
    monkeypatch.syspath_prepend(tmp_path / "site-packages")
    assert find_package(name).version.startswith(f"{name} 1.0")
    (tmp_path / "mine" / name).mkdir(parents=True)
    (tmp_path / "mine" / name / "own.py").write_text(STATEFUL)
    monkeypatch.syspath_prepend(tmp_path / "mine")
    assert find_package(name).version == ""


def test_the_package_of_a_user_is_found_without_reading_what_is_installed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = f"helper_{next(NUMBERS)}"
    (tmp_path / f"{name}.py").write_text(STATEFUL)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(importlib.metadata.Distribution, "read_text", None)
    assert find_package(name).file == str(tmp_path / f"{name}.py")


GENERATED = """
class Attribute:
    pass

def salted(salt):
    code = f"def __hash__(self): return {{salt}}"
    exec(compile(code, "<attrs generated __hash__ {name}.Attribute>", "exec"), globals())
    __hash__.__module__ = None
    Attribute.__hash__ = __hash__

attribute = Attribute()
"""


def test_code_that_a_library_generates_for_its_own_class_does_not_count(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = f"helper_{next(NUMBERS)}"
    install(tmp_path / "site-packages", name, GENERATED.format(name=name))
    monkeypatch.syspath_prepend(tmp_path / "site-packages")
    library = importlib.import_module(name)
    values = []
    for salt in (1, 2):
        library.salted(salt)
        values.append(component_values(type("Mine", (), {"attribute": library.attribute})))
    assert values[0] == values[1]


def test_a_check_of_types_counts_as_the_function_that_it_checks() -> None:
    def component(function: Callable[[float], float], address: int) -> type:
        def check(x: float) -> float:
            return function(x) * (address > 0)

        vars(check).update({"__wrapped__": function, "__beartype_wrapper": True})
        return type("Mine", (), {"scale": staticmethod(check)})

    def one(x: float) -> float:
        return x

    def two(x: float) -> float:
        return 2 * x

    assert component_values(component(one, 1)) == component_values(component(one, 2))
    assert component_values(component(one, 1)) != component_values(component(two, 1))


def test_the_random_state_of_the_process_does_not_count() -> None:
    from scipy import stats  # for a second, and other processes import this file

    component = type("Mine", (), {"distribution": stats.norm(0, 1)})
    first = component_values(component)
    numpy.random.rand()  # it is what scipy draws from
    assert component_values(component) == first
    assert component_values(type("Mine", (), {"distribution": stats.norm(0, 2)})) != first


@pytest.mark.parametrize("origin", ["folder", "edited", "extended", "unlisted"])
def test_a_package_of_the_user_counts_by_its_source_and_values(
    origin: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = f"helper_{next(NUMBERS)}"
    helper = install(tmp_path / "site-packages", name, STATEFUL, origin=origin)
    monkeypatch.syspath_prepend(tmp_path / "site-packages")
    component = user_of(name, tmp_path, monkeypatch)
    first = component_values(component)
    assert str(helper) in first.files
    assert first.versions == ()
    monkeypatch.setattr(f"{name}.STATE", [3.0])
    assert component_values(component).digest != first.digest


def test_values_in_the_package_of_a_plugin_count_however_it_is_installed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = f"plugin_{next(NUMBERS)}"
    install(tmp_path / "site-packages", name, plugin("SCALE", "SCALE = 2.0"))
    monkeypatch.syspath_prepend(tmp_path / "site-packages")
    component = importlib.import_module(name).Mine
    first = component_values(component, "schedule")
    monkeypatch.setattr(f"{name}.SCALE", 3.0)
    assert component_values(component, "schedule").digest != first.digest


@pytest.mark.thorough
def test_no_built_in_component_depends_on_which_optional_packages_are_installed(
    registry: Registry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def values() -> dict[str, Any]:
        entries = registry.index.entries.items()
        return {
            f"{slot}.{name}": component_values(registry.get(slot, name), slot) for slot, its in entries for name in its
        }

    before = values()
    for name in ("pyarrow", "datasets", "submitit", "sklearn", "sacrebleu", "transformers"):
        install(tmp_path / "site-packages", name, STATEFUL)
        monkeypatch.delitem(sys.modules, name, raising=False)
    monkeypatch.syspath_prepend(tmp_path / "site-packages")
    after = values()
    changed = {name: after[name].versions for name in before if before[name] != after[name]}
    assert [*changed] == ["measure.translation"]  # which cannot compute without it
    assert changed["measure.translation"][0].startswith("sacrebleu 1.0 ")


@pytest.mark.thorough
def test_a_file_that_is_read_at_import_counts(tmp_path: Path) -> None:
    data = tmp_path / "scales.json"
    data.write_text("[1, 2]")
    file = tmp_path / "mine.py"
    file.write_text(plugin("SCALES[0]", f"import json\nSCALES = json.load(open({str(data)!r}))"))
    first = of_file(file)
    status = data.stat()
    data.write_text("[1, 3]")
    os.utime(data, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert of_file(file) != first
    data.write_text("[1, 2]")
    assert of_file(file) == first


@pytest.mark.thorough
def test_the_folder_of_a_plugin_does_not_count(tmp_path: Path) -> None:
    identities = set()
    for name in ("one", "two"):
        file = tmp_path / name / "mine.py"
        file.parent.mkdir()
        file.write_text(
            plugin(
                "DATA.name + str(HERE)",
                "from pathlib import Path\nDATA = Path(__file__)\nHERE = str(DATA.parent) + '/x'",
            )
        )
        identities.add(of_file(file))
    assert len(identities) == 1


@pytest.mark.thorough
def test_a_registered_variant_leaves_the_others_as_they_were(site: Any) -> None:
    package = site.folder / f"package_{next(NUMBERS)}"
    module = site.add(package.name, "")
    (site.folder / f"{module}.py").unlink()
    package.mkdir()
    (package / "one.py").write_text(plugin("1.0").partition("@paribus")[0].replace("Mine", "One"))
    hook = "\n@hookimpl\ndef schedule():\n    return registered(globals(), Schedule)\n"
    imports = f"from paribus import Schedule, hookimpl, registered\nfrom {package.name}.one import One as one\n"
    (package / "__init__.py").write_text(imports + hook)
    first = identity(read_index(), "one")
    (package / "two.py").write_text((package / "one.py").read_text().replace("One", "Two"))
    (package / "__init__.py").write_text(f"{imports}from {package.name}.two import Two as two\n{hook}")
    index = read_index()
    assert identity(index, "one") == first != identity(index, "two")


READS = {
    "os.environ": ("float(os.environ['SCALE'])", "import os"),
    "getenv": ("float(getenv('SCALE'))", "from os import getenv"),
    "open": ("float(open('scale').read())", ""),
    "read_text": ("float(Path('scale').read_text())", "from pathlib import Path"),
    "time.time": ("time.time()", "import time"),
    "datetime.now": ("datetime.now().hour", "from datetime import datetime"),
    "dt.datetime.today": ("dt.datetime.today().hour", "import datetime as dt"),
    "random.random": ("random.random()", "import random"),
    "eval": ("eval('1')", ""),
    "importlib.import_module": ("importlib.import_module('scale').SCALE", "import importlib"),
    "np.random.rand": ("np.random.rand()", "import numpy as np"),
    "torch.load": ("torch.load('scale')", "import torch"),
}


@pytest.mark.parametrize("name", READS)
def test_what_is_read_at_run_time_is_named_with_its_place(name: str, tmp_path: Path) -> None:
    value, setup = READS[name]
    file = tmp_path / "mine.py"
    file.write_text(plugin(value, setup))
    (reason,) = installed(plugins=[file]).index.values("schedule", "mine").reasons
    line = file.read_text().splitlines().index(f"        return {value}") + 1
    assert f"`{name}` is" in reason
    assert f"(mine.py:{line})" in reason


@pytest.mark.parametrize(
    ("name", "statement", "value"),
    [
        ("os.environ", "import os", "float(os.environ['SCALE'])"),
        ("os.environ", "from os import environ", "float(environ['SCALE'])"),
        ("time.time", "import time as clock", "clock.time()"),
        ("datetime.datetime.now", "from datetime import datetime", "datetime.now().hour"),
        ("random.random", "from random import random", "random()"),
    ],
)
def test_what_a_function_imports_to_read_at_run_time_is_named(
    name: str, statement: str, value: str, tmp_path: Path
) -> None:
    file = tmp_path / "mine.py"
    file.write_text(plugin("scale()", f"def scale():\n    {statement}\n    return {value}"))
    (reason,) = installed(plugins=[file]).index.values("schedule", "mine").reasons
    line = file.read_text().splitlines().index(f"    {statement}") + 1
    assert f"`{name}` is read at run time" in reason
    assert f"(mine.py:{line})" in reason


def test_what_imported_modules_add_to_the_table_of_copies_does_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    component = type("Mine", (), {"table": copyreg.dispatch_table})
    first = component_values(component)
    monkeypatch.setitem(copyreg.dispatch_table, type("New", (), {}), lambda new: (type(new), ()))
    assert component_values(component) == first


def test_arrays_count_with_their_fields_and_masks() -> None:
    arrays = [numpy.zeros(2, dtype=[(name, "i4") for name in names]) for names in (("a", "b"), ("b", "a"))]
    arrays += [
        numpy.ma.masked_array([1, 2], mask, fill_value=1) for mask in ([False, False], [True, False], [False, True])
    ]
    digests = {component_values(type("Mine", (), {"scale": array})).digest for array in arrays}
    assert len(digests) == len(arrays)


@pytest.mark.thorough
def test_a_value_that_cannot_be_compared_is_named_and_keeps_records_usable(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text(plugin("next(NUMBERS)", "NUMBERS = (x for x in range(3))"))
    index = read_index(plugins=[file])
    assert "`mine.py: NUMBERS` is a builtins.generator" in index.values("schedule", "mine").reasons[0]
    assert "unidentified" not in identity(index)
    assert identity(index) == identity(installed(plugins=[file]).index)


# ---------------------------------------------------------------------------------------------- notebooks and factories


def run_cells(code: str) -> dict[str, Any]:
    """Run the code of notebook cells, which have no file."""
    namespace: dict[str, Any] = {"__name__": "notebook"}
    exec(compile(code, "<cell>", "exec"), namespace)  # as a notebook does
    return namespace


def test_a_class_of_a_notebook_has_the_same_identity_after_a_restart(registry: Registry) -> None:
    code = plugin("SCALE * help_(step)", "SCALE = 2.0\ndef help_(x):\n    return x + 1")
    first, again = (registry.with_components(schedule={"mine": run_cells(code)["Mine"]}).index for _ in "ab")
    assert identity(first) == identity(again)
    edited = run_cells(code.replace("x + 1", "x + 2"))["Mine"]
    assert identity(registry.with_components(schedule={"mine": edited}).index) != identity(first)


def test_a_global_of_a_notebook_that_changes_after_the_registration_counts(registry: Registry) -> None:
    namespace = run_cells(plugin("SCALE", "SCALE = 1"))
    extended = registry.with_components(schedule={"mine": namespace["Mine"]})
    first = identity(extended.index)
    namespace["SCALE"] = 2
    assert identity(extended.index) != first
    namespace["SCALE"] = 1
    assert identity(extended.index) == first


def test_a_class_of_a_notebook_with_a_value_that_cannot_be_compared_is_unidentified(registry: Registry) -> None:
    components = (run_cells(plugin("next(IT)", "IT = (x for x in range(3))"))["Mine"] for _ in "ab")
    first, second = (registry.with_components(schedule={"mine": component}).index for component in components)
    assert "-unidentified-" in identity(first)
    assert identity(first) == identity(first) != identity(second)


@pytest.mark.thorough
def test_a_module_that_is_edited_while_it_runs_counts_as_it_was_imported(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text(plugin("1.0"))
    loaded = installed(plugins=[file])
    first = identity(loaded.index)
    file.write_text(plugin("2.0"))
    assert identity(loaded.index) == first
    assert of_file(file) != first


def test_a_module_that_is_imported_again_counts_as_it_is_now(
    registry: Registry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = f"reloaded_{next(NUMBERS)}"
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    (tmp_path / f"{name}.py").write_text(plugin("1.0"))
    module = importlib.import_module(name)
    first = registry.with_components(schedule={"mine": module.Mine})
    before = identity(first.index)
    (tmp_path / f"{name}.py").write_text(plugin("2.0"))
    importlib.reload(module)
    second = first.with_components(schedule={"other": module.Mine})
    assert identity(second.index, "other") != before


# --------------------------------------------------------------------------------------- a component of all mechanisms

HEADER = """
import collections, contextlib, contextvars, dataclasses, enum, functools, operator, pathlib, re, types, typing, weakref
import numpy, torch

def same(x):
    return x

def pair(x, y):
    return x, y
"""


def source_of(names: list[str]) -> str:
    """Return the source of a component with mechanisms, each of which has a value of `V`."""
    setup, body, values = [HEADER], [], []
    for number, name in enumerate(names):
        mechanism = (text.replace("_N", str(number)).replace("VALUE", f"V[{number}]") for text in MECHANISMS[name])
        definitions, attribute, expression = mechanism
        setup.append(definitions)
        body.append(f"    {attribute}" if attribute else "")
        values.append(expression)
    methods = f"    def output(self):\n        return repr([{', '.join(values)}])\n"
    return "\n".join([*setup, "class Mine:", *filter(None, body), methods, "del V"])


Component = Callable[[list[Any]], type]


def module_maker(text: str, folder: Path) -> Component:
    """Return a function that imports the source as a module with values, as a class of a file."""
    file = folder / f"generated_{next(NUMBERS)}.py"
    file.write_text(text)

    def make(values: list[Any]) -> type:
        spec = importlib.util.spec_from_file_location(file.stem, file)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        module.__dict__["V"] = values
        sys.modules[file.stem] = module
        spec.loader.exec_module(module)
        component = module.Mine
        assert isinstance(component, type)
        return component

    return make


def cell_maker(text: str, folder: Path) -> Component:
    """Return a function that runs the source with values, as the cells of a notebook."""

    def make(values: list[Any]) -> type:
        module = sys.modules["cells"] = types.ModuleType("cells")
        module.__dict__["V"] = values
        exec(compile(text, "<cell>", "exec"), module.__dict__)  # as a notebook does
        component = module.Mine
        assert isinstance(component, type)
        return component

    return make


VALUES = (
    st.integers(-3, 3)
    | st.booleans()
    | st.none()
    | st.sampled_from([0.0, -0.0, 1.0, 0.1, float("inf"), 1e300])
    | st.text("ab/", max_size=2)
    | st.binary(max_size=1)
    | st.sampled_from([1j, (), (1,), ((1,),), ("a", 1), frozenset(), frozenset("ab")])
)


@pytest.fixture(scope="module")
def generated(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    before = {*sys.modules}
    yield tmp_path_factory.mktemp("generated")
    for name in {*sys.modules} - before:
        if name.startswith(("generated_", "cells")):
            del sys.modules[name]


@pytest.mark.parametrize("maker", [module_maker, cell_maker])
@pytest.mark.parametrize("name", MECHANISMS)
def test_a_value_counts_however_it_reaches_the_output(name: str, maker: Any, generated: Path) -> None:
    make = maker(source_of([name]), generated)
    first, again, other = (component_values(make([value])) for value in ("one", "one", "two"))
    assert make(["one"])().output() != make(["two"])().output()
    assert first.digest == again.digest
    assert first.digest != other.digest


@settings(max_examples=60)
@given(st.data())
def test_any_change_of_the_output_is_another_identity(generated: Path, data: st.DataObject) -> None:
    names = data.draw(st.lists(st.sampled_from([*MECHANISMS]), min_size=1, max_size=5))
    values = [data.draw(VALUES) for _ in names]
    make = data.draw(st.sampled_from([module_maker, cell_maker]))(source_of(names), generated)
    component = make(values)
    output, first = component().output(), component_values(component)
    assert component_values(component) == first  # although the component was used
    index = data.draw(st.integers(0, len(names) - 1))
    changed = [*values]
    changed[index] = data.draw(VALUES)
    other = make(changed)
    second = component_values(other)
    if other().output() != output:
        assert second.digest != first.digest, names[index]
    if repr(changed) == repr(values):
        assert second.digest == first.digest


# -------------------------------------------------------------------------------------------------- built-in components

PROGRAM = """
import json, sys
sys.path.insert(0, {root!r})
from tests.core.paribus.registry.test_component_values import *
{code}
"""


def in_process(code: str, environment: dict[str, str]) -> str:
    root = str(Path(__file__).parents[4])
    program = PROGRAM.format(root=root, code=code)
    process = subprocess.run(
        [sys.executable, "-c", program], env={**os.environ, **environment}, capture_output=True, text=True, check=False
    )
    assert process.returncode == 0, process.stderr
    return process.stdout.strip()


def identities(index: Index) -> dict[str, str]:
    code = ComponentCode(index)
    return {f"{slot}.{name}": code.component(slot, name) for slot, names in index.entries.items() for name in names}


@pytest.mark.thorough
def test_all_built_in_components_are_identified_in_every_process(registry: Registry) -> None:
    own = identities(registry.index)
    assert len(own) > 150
    assert identities(read_index(no_plugins=True)) == own
    program = "print(json.dumps(identities(installed(no_plugins=True).index)))"
    assert json.loads(in_process(program, {"PYTHONHASHSEED": "77"})) == own
    for slot, names in registry.index.entries.items():
        for name in names:
            values = registry.index.planned[slot, name]
            assert (values.reasons, values.is_complete) == ((), True), (slot, name)


SMALL = ("dims.width=16", "dims.layers=1", "dims.heads=2", "dims.length=16", "data.batch=4", "data.validation=4")


def train_one_step(folder: Path, registry: Registry, preset: str, *overrides: str) -> None:
    from paribus.train.trial import TrialContext, run_trial  # for seconds, and other processes import this file

    steps = ("trainer.max_steps=1", "trainer.accelerator=cpu")
    run_trial(resolved(preset, *steps, *overrides, registry=registry), registry, TrialContext("0" * 24, folder))


@pytest.mark.thorough
def test_optimizers_and_operations_keep_their_identity_when_they_are_used(registry: Registry, tmp_path: Path) -> None:
    before = identities(registry.index)
    for name in registry.index.names("optimizer"):
        (tmp_path / name).mkdir()
        train_one_step(tmp_path / name, registry, "gpt-tiny", *SMALL, f"optimizer={name}")
    (tmp_path / "lstm").mkdir()
    half = "trainer.precision=bf16-mixed"  # in which this operation of torch is tried first
    train_one_step(tmp_path / "lstm", registry, "gpt-tiny", *SMALL, "attention=lstm", "position=none", half)
    assert identities(registry.index) == before


def test_a_constant_tensor_that_was_used_has_the_same_value() -> None:
    constant = ConstantTensor([1.0, 2.0], torch.float64)

    class Scaled:
        def scale(self) -> torch.Tensor:
            return constant.like(torch.zeros(2))

    first = component_values(Scaled)
    assert Scaled().scale().tolist() == [1.0, 2.0]
    assert component_values(Scaled) == first
    constant.numbers = [1.0, 3.0]
    assert component_values(Scaled) != first


@pytest.mark.thorough
def test_components_keep_their_identity_when_they_are_used(registry: Registry, tmp_path: Path) -> None:
    before = identities(registry.index)
    presets = [name for name in registry.index.presets if name.endswith("-tiny") and "distil" not in name]
    assert len(presets) > 25
    for preset in presets:
        (tmp_path / preset).mkdir()
        train_one_step(tmp_path / preset, registry, preset, "data.batch=2", "data.validation=2")
    assert identities(registry.index) == before


@pytest.mark.thorough
def test_generated_components_have_one_identity_in_every_process(generated: Path) -> None:
    names = [*MECHANISMS]
    file = generated / "everything.py"
    file.write_text(source_of(names))
    code = (
        f"make = module_maker(open({str(file)!r}).read(), __import__('pathlib').Path({str(generated)!r}))\n"
        f"print(component_values(make(['a', 2.5, b'x', None] * {len(names)})).digest)"
    )
    assert len({in_process(code, {"PYTHONHASHSEED": seed}) for seed in ("1", "2")}) == 1


@pytest.mark.thorough
def test_the_sources_of_imported_modules_do_not_include_libraries() -> None:
    files = {path.name for path in loaded_sources({})}
    assert Path(__file__).name in files
    assert not any("torch" in path.parts and "site-packages" in path.parts for path in loaded_sources({}))
