"""Conversion of Hugging Face models to specs and weights, and back."""
