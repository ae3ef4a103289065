"""Who leads, where one process of several is to work and the others are its hot spares."""
