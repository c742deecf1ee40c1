"""Notes on the matched option of each variant: its value, its residual, and the variants that no value matches."""

from __future__ import annotations

from typing import Final

from paribus.analysis.formatting import MAX_VALUES
from paribus.errors import join_names
from paribus.planning.settings import Setting

MAX_MISMATCH: Final = 0.05  # a variant farther from the baseline's budget is not matched


def matching_note(setting: Setting) -> str:
    """Describe the matched option of every variant with its residual; empty without matching."""
    match = setting.study.match
    if match is None or not setting.matched:
        return ""
    texts = (
        f"{name} {match_result.value:g} ({match_result.residual_text})"
        for name, match_result in setting.matched.items()
    )
    machines = {
        match_result.timing.machine: match_result.timing.when
        for match_result in setting.matched.values()
        if match_result.timing
    }
    measured = (
        f"; measured in turns on {join_names(f'{name}, {when}' for name, when in machines.items())}" if machines else ""
    )
    return f"Matched on {match.on} by {match.by}: {join_names(texts, MAX_VALUES)}{measured}."


def matched_option_notes(setting: Setting) -> dict[str, str]:
    """Return a note on the matched option for each variant, for its certificate."""
    match = setting.study.match
    if match is None:
        return {}
    return {name: f"matched on {match.on} by {match.by}={match_result.value:g}: {match_result.residual_text}"
            for name, match_result in setting.matched.items()}  # fmt: skip


def mismatch_note(setting: Setting) -> str:
    """Describe the variants that are more than 5 % off the baseline's budget, and changes since steps were timed."""
    match = setting.study.match
    timing_changes = dict.fromkeys(
        line for match_result in setting.matched.values() if match_result.timing for line in match_result.timing.changes
    )
    changes_text = f"Since the steps were timed for the match, {join_names(timing_changes)}." if timing_changes else ""
    unmatched = [
        f"{name} ({match_result.residual:+.1%})"
        for name, match_result in setting.matched.items()
        if abs(match_result.residual) > MAX_MISMATCH
    ]
    if match is None or not unmatched:
        return changes_text
    names = join_names(unmatched, MAX_VALUES)
    text = f"No value of {match.by} matches the baseline's {match.on}, so these variants are not matched: {names}."
    return f"{text} {changes_text}".rstrip()
