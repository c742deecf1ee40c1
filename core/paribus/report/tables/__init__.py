"""What a report says, as data: a table, its rows, and what it says besides."""
