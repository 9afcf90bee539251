"""Where checkpoints go when they leave the machine: one small interface, one promise each."""
