"""Two sets of trials held against each other: two commits, two stores, two trials."""
