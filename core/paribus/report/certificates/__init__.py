"""Whether two trials differ in what was asked, and in nothing else."""
