"""Rendering of tables: terminal, Markdown, LaTeX, CSV and HTML."""
