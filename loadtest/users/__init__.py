"""Users for Locust: people and agents who ask a running deployment for turns.

What they do is in cores that know nothing of Locust; `locustfile` joins them to it.
"""
