"""Call graphs of agents, learned from traces."""
