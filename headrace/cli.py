"""The `headrace` command line: the group, lazy registration of commands, and the one place where errors end.

A command is a file ``headrace/commands/NAME.py`` that defines a click command called ``command``. The file is
imported only when that command (or the list of commands) is asked for, and itself imports Amaranth, numba, torch
and the like inside its function, so that ``headrace --help`` stays quick.
"""

import errno
import importlib
import pkgutil
import sys
from collections.abc import Sequence

import click

import headrace
import headrace.commands
from headrace.models.errors import ToolError, UserError

EXIT_USER_ERROR = 2
EXIT_INTERRUPTED = 130
DISK_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


class LazyGroup(click.Group):
    """A click group whose commands are the modules of `headrace.commands`."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        found = pkgutil.iter_modules(headrace.commands.__path__)
        return sorted(module.name for module in found if not module.name.startswith("_"))

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        if name not in self.list_commands(ctx):
            return None
        return importlib.import_module(f"headrace.commands.{name}").command

    def resolve_command(self, ctx: click.Context, args: list[str]):
        if args and not args[0].startswith("-") and args[0] not in self.list_commands(ctx):
            raise click.UsageError(f"no command {args[0]!r}; allowed: {', '.join(self.list_commands(ctx))}", ctx)
        return super().resolve_command(ctx, args)


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.version_option(headrace.__version__, prog_name="headrace")
def cli() -> None:
    """Design, prove and compare LLM accelerators.

    Give it a model, a compression scheme and a machine; it gives back cycles, tokens per second, joules per token,
    resources, the RTL, and the proof that the RTL computes the same bits as the reference.
    """


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit status: 0, 2 after a mistake of the user or of a tool that failed, 130 when interrupted."""
    try:
        status = cli.main(args=arguments, prog_name="headrace", standalone_mode=False)
        return status if isinstance(status, int) else 0
    except click.exceptions.NoArgsIsHelpError as error:
        click.echo(error.ctx.get_help(), err=True)
        return EXIT_USER_ERROR
    except click.UsageError as error:
        where = error.ctx.command_path if error.ctx else "headrace"
        return _fail(f"{error.format_message()} (see `{where} --help`)")
    except click.ClickException as error:
        return _fail(error.format_message())
    except UserError as error:
        return _fail(str(error))
    except ToolError as error:
        return _fail(error.message)
    except BrokenPipeError:  # the reader of our output went away, as in `headrace machines list | head -1`
        sys.stderr.close()
        return EXIT_USER_ERROR
    except OSError as error:  # a file that the user named
        if error.filename is None:
            if error.errno in DISK_FULL:
                return _fail(f"output cannot be written: {error.strerror}")
            raise
        return _fail(f"{error.filename}: {error.strerror}")
    except (click.Abort, KeyboardInterrupt):
        click.echo("headrace: interrupted", err=True)
        return EXIT_INTERRUPTED


def _fail(message: str) -> int:
    click.echo(f"headrace: error: {' '.join(message.split())}", err=True)
    return EXIT_USER_ERROR
