"""The way from the trials of a study to its table: pair, certify, decide."""
