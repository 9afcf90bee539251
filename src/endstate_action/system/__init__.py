"""Floor 1: touches the machine, knows nothing of agents."""
