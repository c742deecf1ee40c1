"""What a finished study says: the statistics of its paired seeds, its verdicts, and how both are shown."""
