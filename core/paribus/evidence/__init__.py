"""What a record proves: digests, probes, checks of steps, and provenance."""
