"""What so many paired numbers can tell, as plain figures: no trial, no table, nothing that costs an import."""
