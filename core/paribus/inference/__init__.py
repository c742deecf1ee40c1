"""Inference with a trained model: generate text, fill masks, embed, and read attention maps."""
