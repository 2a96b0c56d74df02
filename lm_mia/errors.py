"""The one exception that means "the user can mend this": printed as it is, exit code 2, no traceback."""


class UserError(Exception):
    """Bad input, told as ``field=value: the rule; the way out``, one line for each problem."""


STOPPED = 143
"""The exit code of a command or process that SIGTERM stopped, once it has saved what it was at."""
