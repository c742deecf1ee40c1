"""Probes: synthetic tasks, each of which tests one mechanism, one file each. The import does not load torch."""

from __future__ import annotations

from collections.abc import Mapping

from paribus import Corpus, hookimpl, registered
from paribus_probe.addition import Addition as addition
from paribus_probe.agreement import Agreement as agreement
from paribus_probe.associative_recall import AssociativeRecall as recall
from paribus_probe.brevo import Brevo as brevo
from paribus_probe.copy import Copy as copy
from paribus_probe.depo import Depo as depo
from paribus_probe.dyck import Dyck as dyck
from paribus_probe.group_words import GroupWords as group_words
from paribus_probe.groups import Groups as groups
from paribus_probe.induction import Induction as induction
from paribus_probe.list_operations import ListOperations as listops
from paribus_probe.mano import Mano as mano
from paribus_probe.memorise import Memorise as memorise
from paribus_probe.minimal_pairs import MinimalPairs as minimal_pairs
from paribus_probe.modular_addition import ModularAddition as mod_add
from paribus_probe.reverse import Reverse as reverse
from paribus_probe.selective_copy import SelectiveCopy as selective_copy
from paribus_probe.sort import Sort as sort


@hookimpl
def corpus() -> Mapping[str, type[Corpus]]:
    return registered(globals(), Corpus)
