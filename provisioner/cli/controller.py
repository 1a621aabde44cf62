"""``cloudtrain controller``: the process that drives this home's jobs, in the foreground (hidden)."""

from __future__ import annotations

import click

from cloudtrain.provisioner.controller.__main__ import main


@click.command("controller", hidden=True, short_help="Drive this home's jobs in the foreground.")
def command() -> None:
    """Drive this home's jobs in the foreground.

    Every other command starts one in the background where it is needed; this is for looking at it.

    \b
    Example:
      cloudtrain controller
    """
    main()
