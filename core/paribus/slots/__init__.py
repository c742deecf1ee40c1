"""Contract of each slot, and of model families: one abstract class per file, the tutorial for plugin authors."""
