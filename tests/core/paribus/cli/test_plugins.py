"""`paribus plugins`: loaded plugins, their sources, and failures."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Cli = Callable[..., Any]


def test_plugins_are_listed_with_their_components(cli: Cli) -> None:
    result = cli("plugins")
    assert result.code == 0
    assert "attention.additive, attention.bilinear" in result.out
    assert re.search(r"^hf +paribus \S+ +families$", result.out, re.MULTILINE)
    rows = json.loads(cli("plugins", "--json").out)["plugins"]
    attention = next(row for row in rows if row["plugin"] == "attention")
    assert set(attention) == {
        "plugin", "distribution", "module", "components", "presets", "studies", "hooks", "broken",
    }  # fmt: skip
    assert attention["module"] == "paribus_attention"
    assert attention["hooks"] == ["attention"]


@pytest.mark.thorough
def test_a_plugin_file_is_listed_by_its_path(cli: Cli) -> None:
    source = "from pathlib import Path\nfrom paribus import hookimpl\n\n\n@hookimpl\ndef presets():\n"
    Path("mine.py").write_text(source + "    return Path(__file__).parent\n")
    Path("little.yaml").write_text("# A little one.\npreset: encoder-tiny\ndims.layers: 1\n")
    assert "mine.py" in cli("plugins", "--plugin", "mine.py").out
    assert "A little one." in cli("--plugin", "mine.py", "list", "presets").out
    assert cli("check", "little", "--plugin", "mine.py").code == 0
    assert cli("check", "little").code == 2
