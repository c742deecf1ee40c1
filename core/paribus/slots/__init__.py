"""The contract of each slot: one abstract class a file, whose docstring is the tutorial."""
