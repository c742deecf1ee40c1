"""Trials of a program: its command and options, the files that it reads, its run, and the metrics that it reports."""
