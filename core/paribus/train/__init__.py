"""Training of one trial: its loop, callbacks, measures, costs and options."""
