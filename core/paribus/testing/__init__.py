"""The conformance kit: `conform(component)` holds a component against all that its slot and its traits promise."""

from paribus.testing.conformance import conform, examine
from paribus.testing.results import Finding, NotConformingError, Report

__all__ = ["Finding", "NotConformingError", "Report", "conform", "examine"]
