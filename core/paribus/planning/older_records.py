"""Records that were made before the code or the data of a planned trial changed, and what changed since.

Such a record is *stale*: it has the spec of a planned trial and another identity. `paribus verify` replays some of
them, and keeps those that the present code computes as well.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple, final

from paribus.planning.identity import identity_of
from paribus.program.input_files import PREFIX
from paribus.registry import Index
from paribus.specs.components import with_new_options
from paribus.specs.program_spec import is_program
from paribus.storage.atomic import digest_json
from paribus.storage.store import Store, Trial

DATA: Final = "the data"
ENGINE: Final = "the engine"
CODE: Final = "the code"  # of a record that does not tell engine and components apart

Record = Mapping[str, Any]


@final
class OlderRecord(NamedTuple):
    """Record of a planned trial's spec with another identity."""

    trial: Trial  # of the plan
    document: Mapping[str, Any]  # the `trial.json` of the record
    record: Record
    changed: tuple[str, ...]  # what has changed since: the data, the engine, or components such as `attention.mine`


def older_records(
    store: Store, trials: Iterable[Trial], parents: Iterable[Trial], records: Mapping[str, Record], index: Index
) -> Iterator[OlderRecord]:
    """Yield the records of a store that have the spec of one of `trials` and another identity.

    `parents` are the trials that they begin from; `records` are all records of the store, by identity. An option that
    is newer than a record has its default there.
    """
    planned = {trial.identity: trial for trial in trials}
    specs = {trial.identity: trial.spec for trial in (*parents, *planned.values())}
    lines = _SpecLines(specs, records, index)
    trial_by_line = {lines.digest(trial.spec): trial for trial in planned.values()}
    for identity, record in records.items():
        trial = trial_by_line.get(lines.digest(lines.spec(identity) or {})) if identity not in planned else None
        document = store.trial(identity) if trial is not None else None
        if trial is not None and document:
            yield OlderRecord(trial, document, record, changed_parts(document, trial))


def changed_parts(document: Mapping[str, Any], trial: Trial) -> tuple[str, ...]:
    """Return what has changed between an older trial and a planned one with the same spec."""
    data = () if document["corpus"] == trial.corpus else (DATA,)
    if document["code"] == trial.code:
        return data
    planned = trial.document()
    is_engine = not is_program(trial.spec) and document.get("engine", planned["engine"]) != planned["engine"]
    engine = (ENGINE,) if is_engine else ()
    older, current = document.get("components") or {}, planned["components"]
    names = sorted({*older, *current}) if older else ()
    components = tuple(_changed(name, current) for name in names if older.get(name) != current.get(name))
    return (*data, *((*engine, *components) or (CODE,)))


def _changed(name: str, current: Mapping[str, str]) -> str:
    """Return a component or a file that has changed; of a file that is not there, where it is missing."""
    is_missing = name.startswith(PREFIX) and name not in current
    return f"{name.removeprefix(PREFIX)} (not in {Path.cwd()})" if is_missing else name.removeprefix(PREFIX)


@final
class _SpecLines:
    """Digests of specs and of those that they begin from, independent of code and data."""

    def __init__(self, specs: Mapping[str, Mapping[str, Any]], records: Mapping[str, Record], index: Index) -> None:
        self._specs = specs
        self._records = records
        self._index = index

    def digest(self, spec: Mapping[str, Any]) -> str:
        source = spec.get("from") or {}
        if is_program(spec) or "trial" not in source:
            return identity_of(spec, "", "")
        plain = {**spec, "from": {key: value for key, value in source.items() if key != "trial"}}
        parent = self.spec(source["trial"])
        return digest_json([identity_of(plain, "", ""), source["trial"] if parent is None else self.digest(parent)])

    def spec(self, identity: str) -> Mapping[str, Any] | None:
        """Return the spec of a planned trial, or that of a record with the defaults of newer options."""
        if identity in self._specs:
            return self._specs[identity]
        record = self._records.get(identity)
        if record is None or is_program(record["spec"]):
            return record and record["spec"]
        return with_new_options(record["spec"], self._index)
