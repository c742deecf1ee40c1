"""Specs: reading, overrides, validation, resolution and freezing."""

from paribus.specs.resolve import canonical, freeze, index_of, resolved, spec, spec_hash

__all__ = ["canonical", "freeze", "index_of", "resolved", "spec", "spec_hash"]
