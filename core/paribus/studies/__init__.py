"""Study files: their keys, designs, stages, budgets and validation."""
