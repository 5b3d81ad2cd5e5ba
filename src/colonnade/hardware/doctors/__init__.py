"""`colonnade doctor`: checks of a machine, each with what it found, why it matters and what to do."""
