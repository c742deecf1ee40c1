"""How a report is shown: in a terminal, as Markdown, LaTeX, CSV, and on a page."""
