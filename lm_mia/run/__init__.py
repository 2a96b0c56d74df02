"""Running commands: the stages, worker processes, the workdir, progress display and cost estimates."""
