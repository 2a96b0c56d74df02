"""Running commands: the stages, worker processes, devices, the workdir and the display of progress."""
