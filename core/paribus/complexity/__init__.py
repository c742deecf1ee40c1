"""Complexity of attentions: closed forms, counts, and measured growth of time and memory."""
