"""Models that are written elsewhere become a spec and our tensors, and back: one family a plugin's file."""
