"""The one exception that users see."""


class InputError(Exception):
    """Something the user gave cannot be used; the message says what, where, what was expected and the way out.

    The command line prints the message and exits with code 2.
    """
