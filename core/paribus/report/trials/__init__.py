"""What a report is made of: the trials that a store has, which of them count, and what each costs."""
