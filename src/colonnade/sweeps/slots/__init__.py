"""A slot of a sweep: the process that holds cards, and the trials that run under it one after the other."""
