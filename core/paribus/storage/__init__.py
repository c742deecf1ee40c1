"""Durable storage: atomic writes, locks, leases, run folders and saved models."""
