"""Training of one trial: data, model, loop, checkpoints and provenance."""
