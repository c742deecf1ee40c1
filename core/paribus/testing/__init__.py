"""Conformance kit: `conform(component)` tests a component against the contract of its slot and its traits."""

from paribus.testing.conformance import Finding, NotConformingError, Report, conform, examine

__all__ = ["Finding", "NotConformingError", "Report", "conform", "examine"]
