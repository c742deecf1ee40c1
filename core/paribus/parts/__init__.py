"""What variants share and never wrap: shapes, rows, visibility, heads, layers, stacks.

Letters at the end of a tensor's name, or in a comment beside it, say what its axes are:

    B batch    T rows that ask (queries)    S rows that are asked (keys)    D width
    H heads    G key/value heads            K width of one head             V vocabulary
    N items picked from a batch             C classes                       F inner width of a feed-forward
"""
