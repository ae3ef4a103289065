"""Plug-ins for agent frameworks, each by its framework's own hooks. Nothing is imported here: a
module here needs its framework, and this package none of them.
"""
