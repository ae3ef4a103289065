"""What two services both need: messages, subjects, ids, errors, clock, bus, config, metrics,
profiles.
"""
