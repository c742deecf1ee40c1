"""Specs: reading, overrides, validation, resolution and freezing."""

from paribus.specs.resolve import canonical, index_of, read_only, resolved, spec, spec_hash

__all__ = ["canonical", "index_of", "read_only", "resolved", "spec", "spec_hash"]
