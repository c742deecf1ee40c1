"""The certificate of two trials and of those that they begin from: an unfair pretraining spoils a fair fine-tuning."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from paribus.report.certificates.certificate import Certificate, certify
from paribus.report.trials.entry import Entry

_OTHERWISE: Final = " begun otherwise"  # of tensors of two trials, each from its own


def certify_line(baseline: Entry, variant: Entry) -> Certificate:
    """The certificate of a pair, and of the pair that the two begin from, and so on; what both share needs none.

    Its tensors are those of the first pair, which begin as they are drawn.
    """
    found = certify(baseline, variant)
    before, after = baseline.before, variant.before
    if before is None or after is None or before.trial["identity"] == after.trial["identity"]:
        return found
    if before.record is None or after.record is None:
        return found
    earlier = certify_line(before, after)
    stage = str(after.trial.get("stage") or "before")
    return replace(
        earlier,
        variant=found.variant,
        failures=(*(_of(stage, text) for text in earlier.failures), *found.failures),
        side_effects=(
            *(_of(stage, text) for text in earlier.side_effects),
            *(
                text
                for text in found.side_effects
                if not text.endswith(_OTHERWISE) and text not in earlier.side_effects
            ),
        ),
        confirmed=found.confirmed,
        differs=tuple(dict.fromkeys((*earlier.differs, *found.differs))),
    )


def _of(stage: str, text: str) -> str:
    """What was found at an earlier stage: `leaked seed (in pretrain): …`."""
    what, colon, how = text.partition(":")
    return text if what.endswith(")") and "(in " in what else f"{what} (in {stage}){colon}{how}"
