"""``make security``: other people's judgement of the policies and of the template. ``python -m tests.security``.

parliament and cloudsplaining read each policy, cfn-lint and checkov the CloudFormation template. A finding above "low"
fails unless ``explained.toml`` says why it is accepted; so does an explanation that explains nothing any more. Each
tool has its own environment below .venv-security, made when it is first needed: one of them wants a boto3 that is too
old for everything else.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
import tomllib
import venv
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import yaml

from cloudtrain.provisioner.account.setup_plan import wanted
from cloudtrain.provisioner.account.setup_template import all_policies, template

ROOT = Path(__file__).parents[2]
EXPLAINED = Path(__file__).with_name("explained.toml")
TOOLS = {"parliament": "1.6.4", "cloudsplaining": "0.7.0", "cfn-lint": "1.58.0", "checkov": "3.2.459"}
ACCOUNT = "123456789012"
NO_IDENTITY_POLICY = ("bucket", "machine-trust")  # they name a principal

PARLIAMENT = """
import json, sys
from parliament import analyze_policy_string
found = analyze_policy_string(open(sys.argv[1]).read()).findings
seen = [(f.issue, f.severity, (f.location or {}).get("line")) for f in found]
from parliament import config
rated = [(issue, severity or config.get(issue, {}).get("severity", "HIGH"), line) for issue, severity, line in seen]
print(json.dumps(rated))
"""
CLOUDSPLAINING = """
import json, sys
from cloudsplaining.command.scan_policy_file import scan_policy
found = scan_policy(json.load(open(sys.argv[1])))
print(json.dumps([[name, part["severity"], str(item["type"] if isinstance(item, dict) else item)]
                  for name, part in found.items() if isinstance(part, dict) for item in part["findings"]]))
"""

Finding = tuple[str, str]  # id, severity


def main() -> int:
    """Run every tool; 0 where each finding is explained and each explanation needed."""
    explained: dict[str, str] = tomllib.loads(EXPLAINED.read_text(encoding="utf-8"))
    with tempfile.TemporaryDirectory() as folder:
        it = wanted(ACCOUNT, "us-east-1", "AIDAEXAMPLE", reads=["s3://data/train"], ssm=True)
        paths = {}
        for name, policy in all_policies(it).items():
            paths[name] = Path(folder, f"{name}.json")
            paths[name].write_text(json.dumps(policy, indent=1), encoding="utf-8")
        stack = Path(folder, "template.yaml")
        stack.write_text(yaml.dump(template(it), Dumper=Plain, sort_keys=False), encoding="utf-8")
        found = sorted({*parliament(paths), *cloudsplaining(paths), *cfn_lint(stack), *checkov(stack)})
    open_ones = [finding for finding in found if finding[0] not in explained]
    stale = set(explained) - {name for name, _ in found}
    for name, severity in found:
        print(f"{'explained' if name in explained else 'OPEN':<9} {severity.lower():<8} {name}")
    for name in sorted(stale):
        print(f"UNUSED    explanation {name}: take it out of {EXPLAINED.relative_to(ROOT)}")
    print(f"{len(found)} findings above low, {len(open_ones)} of them open, {len(stale)} unused explanations")
    return 1 if open_ones or stale else 0


class Plain(yaml.SafeDumper):
    """No aliases: CloudFormation does not know them."""

    def ignore_aliases(self, data: object) -> bool:
        """Always."""
        return True


def parliament(paths: dict[str, Path]) -> Iterator[Finding]:
    """Findings in every policy but the trust policy, which it can't read."""
    for name, path in paths.items():
        if name == "machine-trust":
            continue
        for issue, severity, line in answer("parliament", PARLIAMENT, path):
            where = statement(path, line) if line else name
            yield from serious(f"parliament:{name}:{issue}:{where}", severity)


def cloudsplaining(paths: dict[str, Path]) -> Iterator[Finding]:
    """Findings in what an identity may do."""
    for name, path in paths.items():
        if name not in NO_IDENTITY_POLICY:
            for issue, severity, what in answer("cloudsplaining", CLOUDSPLAINING, path):
                yield from serious(f"cloudsplaining:{name}:{issue}:{what}", severity)


def cfn_lint(stack: Path) -> Iterator[Finding]:
    """Every finding: there is no severity below "informational"."""
    for found in loads(run("cfn-lint", "--format", "json", "--regions", "us-east-1", "--", stack)):
        where = ".".join(str(part) for part in found["Location"]["Path"] or ())
        yield f"cfn-lint:{found['Rule']['Id']}:{where}", found["Level"]


def checkov(stack: Path) -> Iterator[Finding]:
    """Every failed check: without an account of its maker's it gives no severities."""
    arguments = ("--framework", "cloudformation", "--skip-download", "--compact", "--quiet", "-o", "json", "-f", stack)
    for found in loads(run("checkov", *arguments))["results"]["failed_checks"]:
        yield f"checkov:{found['check_id']}:{found['resource']}", "unrated"


def serious(name: str, severity: str) -> Iterator[Finding]:
    """The finding, where it is above low."""
    if severity.lower() not in ("low", "muted", "none"):
        yield name, severity


def statement(path: Path, line: int) -> str:
    """The Sid, or else the number, of the statement that stands on a line of a policy."""
    lines = path.read_text(encoding="utf-8").splitlines()
    starts = [number for number, text in enumerate(lines, 1) if text == "  {"]
    index = sum(start <= line for start in starts) - 1
    found = json.loads(path.read_text(encoding="utf-8"))["Statement"][index]
    return str(found.get("Sid", index))


def answer(tool: str, script: str, path: Path) -> Any:
    """What a script says in a tool's own Python."""
    return loads(run(tool, "-c", script, path, python=True))


def loads(text: str) -> Any:
    """JSON that may follow a tool's talk."""
    match = re.search(r"^[\[{]", text, re.MULTILINE)
    if match is None:
        raise SystemExit(f"no JSON in: {text[-2000:]}")
    return json.loads(text[match.start() :])


def run(tool: str, *arguments: str | Path, python: bool = False) -> str:
    """A tool's standard output. It may exit with what it likes: its findings say more."""
    folder = environment(tool)
    command = [folder / "bin" / ("python" if python else tool), *arguments]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=600, check=False)
    if not done.stdout.strip():
        raise SystemExit(f"{tool} said nothing: {done.stderr[-2000:]}")
    return done.stdout


def environment(tool: str) -> Path:
    """The tool's environment, made at first use."""
    folder = ROOT / ".venv-security" / tool
    if not (folder / ".ready").exists():
        print(f"installing {tool} {TOOLS[tool]} into {folder.relative_to(ROOT)} (once)", flush=True)
        venv.create(folder, with_pip=True, clear=True)
        install: Callable[..., Any] = subprocess.check_call
        quiet = ("-m", "pip", "install", "--quiet", "--disable-pip-version-check")
        install([folder / "bin" / "python", *quiet, f"{tool}=={TOOLS[tool]}"])
        (folder / ".ready").touch()
    return folder


if __name__ == "__main__":
    sys.exit(main())
