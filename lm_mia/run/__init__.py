"""Commands at work: the stages, their worker processes, the workdir, and what a person sees of them."""
