"""Asking a trained model: what follows a prompt, what a mask hides, what a row weighs."""
