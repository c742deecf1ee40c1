"""Scores of single answers in a record: one bit for each if all are right or wrong, else 32."""

from __future__ import annotations

import base64
import struct
from collections.abc import Mapping, Sequence
from typing import Any


def encode_scores(scores: Sequence[float], questions: str) -> dict[str, Any]:
    """Return the scores of answers for a record, with the digest of their questions."""
    if all(score in (0, 1) for score in scores):
        number = sum(1 << place for place, score in enumerate(scores) if score)
        content = {"bits": number.to_bytes(-(-len(scores) // 8), "little")}
    else:
        content = {"floats": struct.pack(f"<{len(scores)}f", *scores)}
    texts = {key: base64.b64encode(value).decode("ascii") for key, value in content.items()}
    return {"questions": questions, "count": len(scores), **texts}


def decode_scores(document: Mapping[str, Any]) -> list[float]:
    """Return the scores that `encode_scores` wrote, in the order of the questions."""
    count = int(document["count"])
    if "bits" in document:
        number = int.from_bytes(base64.b64decode(document["bits"]), "little")
        return [float(number >> place & 1) for place in range(count)]
    return list(struct.unpack(f"<{count}f", base64.b64decode(document["floats"])))
