"""Conformance kit: `conform(component)` tests a component against the contract of its slot and its traits."""

from paribus.testing.conformance import conform, examine
from paribus.testing.results import Finding, NotConformingError, Report

__all__ = ["Finding", "NotConformingError", "Report", "conform", "examine"]
