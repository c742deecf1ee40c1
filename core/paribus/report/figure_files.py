"""Figures as files for a paper: SVG, PDF and PNG, as wide as a column, with their captions."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final

from paribus.analysis.formatting import clean
from paribus.errors import Problem, SpecError, StoreError, missing_package
from paribus.report.charts import INK, Figure, with_theme
from paribus.storage.atomic import make_folder, write_bytes

COLUMN_WIDTH: Final = 240  # points of a column of a two-column paper
SCALE: Final = 2 / 3  # relative to a chart in a page: lines are thinner, and text has 8 points
FONT_SIZE: Final = 12  # before scaling
PNG_DOTS_PER_INCH: Final = 300
FONT: Final = "Helvetica, Arial, sans-serif"
PAPER_INK: Final = "#000000"
CAPTIONS: Final = "captions.json"
SIZE: Final = re.compile(r'width="([\d.]+)" height="([\d.]+)"')
FORMATS: Final = ("svg", "pdf", "png")


def write_figures(figures: Iterable[tuple[str, Figure]], folder: Path, width: int = COLUMN_WIDTH) -> list[Path]:
    """Write each figure of a setting in every format, and the captions of all; return the paths of the figures."""
    _validate_folder(folder)
    figure_by_name = {_file_name(setting, figure.name): figure for setting, figure in figures}
    contents_by_name = {name: figure_bytes(figure, width) for name, figure in figure_by_name.items()}
    make_folder(folder)
    for name, contents in contents_by_name.items():
        for kind, content in contents.items():
            write_bytes(folder / f"{name}.{kind}", content)
    captions = {
        name: {
            "title": clean(figure.title),
            "caption": clean(f"{figure.note} {figure.print_note}".strip()),
            "description": clean(figure.description),
        }
        for name, figure in figure_by_name.items()
    }
    write_bytes(folder / CAPTIONS, (json.dumps(captions, indent=2, ensure_ascii=False) + "\n").encode())
    return [folder / f"{name}.{kind}" for name in figure_by_name for kind in FORMATS]


def figure_bytes(figure: Figure, width: int = COLUMN_WIDTH) -> dict[str, bytes]:
    """Return a figure in every format."""
    try:
        import vl_convert
    except ImportError as error:
        problem = missing_package("vl-convert-python", "figures", "a figure as a file", path="--figures")
        raise SpecError(problem) from error
    page_svg = vl_convert.vegalite_to_svg(print_document(figure, round(width / SCALE)))
    svg = SIZE.sub(
        lambda match: f'width="{width}" height="{float(match[2]) * width / float(match[1]):.0f}"', page_svg, 1
    )
    return {
        "svg": svg.encode(),
        "pdf": vl_convert.svg_to_pdf(svg),
        "png": vl_convert.svg_to_png(svg, ppi=PNG_DOTS_PER_INCH),
    }


def print_document(figure: Figure, width: int, *, ink: str = PAPER_INK, font_size: int = FONT_SIZE) -> dict[str, Any]:
    """Return the chart of a figure as Vega-Lite in this size and colour, without controls."""
    chart = with_theme(figure.chart, ink=ink, font_size=font_size).to_dict()
    chart |= {"width": width, "background": "white"}
    chart["config"]["font"] = FONT
    printed: dict[str, Any] = _replace_ink(chart, ink)
    return printed


def _replace_ink(value: Any, ink: str) -> Any:
    """Return a document in which `ink` replaces the colour of a page's text."""
    if isinstance(value, Mapping):
        return {key: _replace_ink(item, ink) for key, item in value.items()}
    if isinstance(value, list):
        return [_replace_ink(item, ink) for item in value]
    return ink if value == INK else value


def _file_name(setting: str, name: str) -> str:
    """Return the name of a figure without characters that a file system or LaTeX may not allow."""
    return re.sub(r"[^a-z0-9]+", "-", f"{setting} {name}".lower()).strip("-")


def _validate_folder(folder: Path) -> None:
    """Raise an error unless a folder is new or empty, or has figures of an earlier call."""
    if folder.exists() and not (folder / CAPTIONS).is_file() and (not folder.is_dir() or any(folder.iterdir())):
        message = "this folder has other files, among which figures would overwrite some"
        valid = f"a new folder, or one with the {CAPTIONS} of earlier figures"
        raise StoreError(Problem(code="not-empty", location=str(folder), message=message, valid=valid))
