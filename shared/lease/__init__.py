"""Leader election among several processes, one of which works while the others are hot spares."""
