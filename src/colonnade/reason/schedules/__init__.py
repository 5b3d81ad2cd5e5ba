"""Who works on what, and when: the schedules of a pipeline, and which layers each stage gets.

In come costs of layers and numbers of stages; out go orders of tasks, which `run/pipeline` executes.
"""
