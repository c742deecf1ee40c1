"""Running: from planned trials to records, in worker processes or through a launcher."""
