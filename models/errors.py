"""The one exception for a mistake of the user."""


class UserError(Exception):
    """A mistake of the user, or a request for something that is not built.

    The message is one line that names the file, the field, the value and what is allowed. The command line
    prints it as ``headrace: error: MESSAGE`` on stderr and ends with status 2, without a traceback.
    """

    def __init__(self, message: str):
        super().__init__(" ".join(str(message).split()))
