"""How many GPUs some people need: a formula guesses, the simulated cluster decides."""
