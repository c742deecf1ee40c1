"""Draw the picture of the README from the records of the quickstart: `make results STUDY=quickstart`."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import vl_convert

import paribus
from paribus.report.charts import forest_figure
from paribus.report.figure_files import print_document

IMAGES: Final = Path(__file__).parent / "images"
INKS: Final = {"light": "#1f2328", "dark": "#f0f6fc"}  # of text on GitHub
WIDTH: Final = 760
FONT_SIZE: Final = 14


def main() -> None:
    """Write the differences of the quickstart for pages of both themes."""
    figure = forest_figure(paribus.compare("quickstart"))
    for theme, ink in INKS.items():
        chart = print_document(figure, WIDTH, ink=ink, font_size=FONT_SIZE)
        svg = vl_convert.vegalite_to_svg(chart | {"background": "transparent"})
        (IMAGES / f"quickstart-{theme}.svg").write_text(svg, encoding="utf-8")


if __name__ == "__main__":
    main()
