"""What the documents tell people is true: examples run, files exist, tables match the code."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import click
import pytest
import torch

from cloudtrain.provisioner import errors
from cloudtrain.provisioner.cli.main import cli
from cloudtrain.provisioner.jobfile import keys as job_keys
from cloudtrain.provisioner.jobfile import reader as jobfile

ROOT = Path(__file__).parents[2]
DOCUMENTS = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])


def blocks(document: str, language: str) -> list[str]:
    """The fenced blocks of one language."""
    return re.findall(rf"^```{language}\n(.*?)^```$", (ROOT / document).read_text(), flags=re.DOTALL | re.MULTILINE)


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_links_lead_somewhere(document: Path) -> None:
    for target in re.findall(r"\]\(([^)#]+?)(?:#[^)]*)?\)", document.read_text()):
        if not target.startswith("https://"):
            assert (document.parent / target).exists(), target


def shown_commands() -> list[str]:
    """Every line of a fenced block that calls cloudtrain, without its comment."""
    fenced = [
        block for path in DOCUMENTS for block in re.findall(r"^```\w*\n(.*?)^```$", path.read_text(), re.DOTALL | re.M)
    ]
    return sorted(set(re.findall(r"^cloudtrain .*?(?= *(?:#|$))", "\n".join(fenced), flags=re.MULTILINE)))


@pytest.mark.parametrize("line", shown_commands())
def test_commands_that_are_shown_exist(line: str) -> None:
    group: click.Command = cli
    words = line.partition(" -- ")[0].split()[1:]  # what follows is another program's
    while isinstance(group, click.Group):
        assert words, "a command is missing"
        found = group.get_command(click.Context(group), words.pop(0))
        assert found is not None
        group = found
    known = {name for parameter in group.params for name in parameter.opts}
    assert {word for word in words if word.startswith("-")} <= known


@pytest.mark.parametrize("document", ["README.md", "docs/job-file.md"])
def test_job_files_are_accepted(document: str, tmp_path: Path) -> None:
    (tmp_path / "labels").mkdir()
    for text in blocks(document, "yaml"):
        path = tmp_path / "job.yaml"
        path.write_text(text)
        assert jobfile.load(path).workdir == (str(tmp_path) if "workdir: ." in text else None)


def test_the_own_script_of_the_readme_is_the_one_to_copy() -> None:
    folder = ROOT / "templates/own_script"
    assert blocks("README.md", "yaml") == [(folder / "job.yaml").read_text()]
    assert blocks("README.md", "python") == [(folder / "train.py").read_text()]


def test_every_served_key_is_in_the_job_file_document() -> None:
    text = blocks("docs/job-file.md", "yaml")[0]
    served = {key for section in job_keys.SECTIONS for key in section.served}
    for key in served - {"ordered"}:
        assert re.search(rf"^\s*{key}:", text, flags=re.MULTILINE), key


def train(folder: Path, **variables: str) -> int:
    """Run the README's script in a folder; its exit code. Warnings are errors. Two epochs show what twenty would."""
    script = blocks("README.md", "python")[0]
    assert script.count("epochs=20") == 1
    (folder / "train.py").write_text(script.replace("epochs=20", "epochs=2"))
    outside = {name: value for name, value in os.environ.items() if not name.startswith("CLOUDTRAIN_")}
    environment = {**outside, "OMP_NUM_THREADS": "1", **variables}
    command = [sys.executable, "-W", "error", "train.py"]
    return subprocess.run(command, cwd=folder, env=environment, timeout=200, check=False).returncode


@pytest.mark.slow
def test_the_script_of_the_readme_trains_and_resumes_exactly(tmp_path: Path) -> None:
    alone, interrupted = tmp_path / "alone", tmp_path / "interrupted"
    alone.mkdir()
    interrupted.mkdir()
    assert train(alone) == 0

    notice = interrupted / "notice.json"
    notice.write_text("{}")
    assert train(interrupted, CLOUDTRAIN_NOTICE_FILE=str(notice)) == 75
    (saved,) = (interrupted / "checkpoints").iterdir()
    assert not (interrupted / "sine.pt").exists()
    notice.unlink()
    assert train(interrupted, CLOUDTRAIN_RESUME=str(saved)) == 0

    weights = [torch.load(folder / "sine.pt", weights_only=True) for folder in (alone, interrupted)]
    assert all(torch.equal(weights[0][name], weights[1][name]) for name in weights[0])


def test_the_architecture_names_every_file_of_the_provisioner_and_no_other() -> None:
    text = (ROOT / "docs/architecture.md").read_text()
    named = {Path(name).name for name in re.findall(r"`([\w./]+\.py)`", text)}
    files = {
        path.name for folder in ("pricing", "provisioner", "tests", "trainer") for path in (ROOT / folder).rglob("*.py")
    }
    assert named <= files
    ours = {path.name for path in (ROOT / "provisioner").rglob("*.py") if path.parent.name != "cli"}
    assert ours - {"__init__.py"} <= named  # of cli/, each file is a command's


def test_every_exit_code_is_in_the_table() -> None:
    documented = {
        int(code) for code in re.findall(r"^\| (\d+) \|", (ROOT / "docs/exit-codes.md").read_text(), re.MULTILINE)
    }
    assert documented == {value for name, value in vars(errors).items() if name.startswith("EXIT_")}


def test_the_readme_has_one_test_command() -> None:
    """.ci/run takes the command from here."""
    marked = re.findall(
        r"^<!-- test-command -->\n```\n(.*?)^```$", (ROOT / "README.md").read_text(), re.DOTALL | re.MULTILINE
    )
    assert marked == ["make test\n"]


def test_variables_of_the_job_are_documented() -> None:
    from cloudtrain.trainer import contract

    text = (ROOT / "docs/job-file.md").read_text()
    for name, variable in vars(contract).items():
        if name.startswith("ENV_"):
            assert variable in text or variable.removeprefix("CLOUDTRAIN") in text, variable


def test_each_decision_has_a_number_of_its_own() -> None:
    names = sorted(path.name for path in (ROOT / "docs/adr").glob("*.md"))
    assert [int(name[:4]) for name in names] == list(range(1, len(names) + 1))
    titles = [(ROOT / "docs/adr" / name).read_text().split("\n", 1)[0] for name in names]
    assert all(title.startswith(f"# {number}. ") for number, title in enumerate(titles, 1)), titles
