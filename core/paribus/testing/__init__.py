"""The conformance kit: `conform(component)` holds a component against all that its slot and its traits promise."""

from paribus.testing.findings import Finding, NotConformingError, Report
from paribus.testing.kit import conform, examine

__all__ = ["Finding", "NotConformingError", "Report", "conform", "examine"]
