"""Contract of each slot: one abstract class per file, whose docstring is the tutorial for plugin authors."""
