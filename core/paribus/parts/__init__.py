"""Modules and types shared by all variants: shapes, layouts, visibility, heads, layers, stacks.

The letters at the end of a tensor's name, or in a comment beside it, name its axes:

    B batch    T queries                    S keys                          D width
    H heads    G key/value heads            K width of one head             V vocabulary
    N positions picked from a batch         C classes                       F inner width of a feed-forward
"""
