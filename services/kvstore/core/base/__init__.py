"""Events, effects, limits, and small parts that everything else uses."""
