"""The production services in the simulation, each in a process that freezes, dies and starts
again; what they stand on, and what must hold of them.
"""
