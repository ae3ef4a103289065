"""The scheduler: places turns on workers, and reserves places for announced sessions."""
