"""``cloudtrain completion``: the script that lets a shell complete commands, flags and jobs."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

from cloudtrain.provisioner.cli.words import say

PROGRAM = "cloudtrain"
VARIABLE = "_CLOUDTRAIN_COMPLETE"  # click derives it from the program's name
WHERE = {
    "bash": '~/.bashrc: eval "$(cloudtrain completion bash)"',
    "zsh": '~/.zshrc, after compinit: eval "$(cloudtrain completion zsh)"',
    "fish": "~/.config/fish/completions/cloudtrain.fish: cloudtrain completion fish | source",
}


@click.command("completion", short_help="Print the script that completes commands and jobs.")
@click.argument("shell", metavar="bash|zsh|fish", type=click.Choice(list(WHERE)))
@click.pass_context
def command(ctx: click.Context, shell: str) -> None:
    """Print the script that completes commands and jobs. Jobs are read from disk; nothing is started.

    \b
    Put one of these into your shell's own file:
      bash   eval "$(cloudtrain completion bash)"
      zsh    eval "$(cloudtrain completion zsh)"
      fish   cloudtrain completion fish | source

    \b
    Example:
      cloudtrain completion bash
    """
    kind = get_completion_class(shell)
    assert kind is not None  # click has the three from the start
    click.echo(kind(ctx.find_root().command, {}, PROGRAM, VARIABLE).source())
    say(f"# in {WHERE[shell]}")
