"""A transformers decoder made to run in steps: paged attention in place of its own, and whatever it
derives from positions made to go by each row of a step.

A step is one call of the model for the rows of many sequences. What a model derives from that call
as a whole, from its largest position or from how many tokens it has, is replaced here by what
transformers computes for each sequence by itself.
"""
