"""Planning: from a study to its trials, with matching, tuning, identities and estimates."""
