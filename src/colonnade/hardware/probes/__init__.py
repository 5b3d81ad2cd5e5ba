"""Programs that try a machine in a process of their own, because they may hang, crash or hold cards."""
