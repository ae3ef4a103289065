"""What every command stands on: options, settings, the terminal, the run file, child processes."""
