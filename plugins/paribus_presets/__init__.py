"""Presets: whole specs by name. Every NAME.yaml here is one."""

from __future__ import annotations

from pathlib import Path

from paribus import hookimpl


@hookimpl
def presets() -> Path:
    return Path(__file__).parent
