"""Reports of benchmarks held against each other: their rounds, and how many times as long each takes."""
