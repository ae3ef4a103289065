"""The batch scheduler: places turns on workers, keeps places for expected sessions."""
