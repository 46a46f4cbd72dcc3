"""The exceptions that end a command with one line instead of a traceback."""

MAX_LINE = 4000
"""Characters of a message: a value that a file gives may be of any length."""


class UserError(Exception):
    """A mistake of the user, or a request for something that is not built.

    The message is one line that names the file, the field, the value and what is allowed. The command line
    prints it as ``headrace: error: MESSAGE`` on stderr and ends with status 2, without a traceback.
    """

    def __init__(self, message: str):
        line = " ".join(str(message).split())
        line = line if len(line) <= MAX_LINE else line[:MAX_LINE] + " ..."
        # A name out of a file may hold what a terminal obeys.
        super().__init__("".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in line))


class ToolError(RuntimeError):
    """A program that headrace ran (Verilator, the compiler, a simulation, Yosys) failed, so there is no result.

    `message` is one line that names the tool and, where one is kept, its log. The command line prints it like a mistake of the user
    and ends with status 2; the text of the exception has the end of the tool's log as well.
    """

    def __init__(self, message: str, tail: str = ""):
        self.message = " ".join(message.split())
        super().__init__(f"{self.message}\n{tail}" if tail else self.message)
