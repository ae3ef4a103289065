"""Real processes under a load of one-shot jobs, on the wire or over HTTP."""
