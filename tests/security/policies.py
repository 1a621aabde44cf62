"""parliament and cloudsplaining on every policy, cfn-lint and checkov on the CloudFormation template."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import yaml

from cloudtrain.provisioner.account.setup_plan import wanted
from cloudtrain.provisioner.account.setup_template import all_policies, template
from tests.security.tools import Finding, answer, loads, run, serious

ACCOUNT = "123456789012"
KEY = f"arn:aws:kms:us-east-1:{ACCOUNT}:key/11111111-2222-3333-4444-555555555555"
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


def findings(folder: Path) -> Iterator[Finding]:
    """Everything of all four; what they read is written into ``folder``."""
    it = wanted(ACCOUNT, "us-east-1", "AIDAEXAMPLE", reads=["s3://data/train"], ssm=True)
    paths = {}
    for name, policy in all_policies(it).items():
        paths[name] = folder / f"{name}.json"
        paths[name].write_text(json.dumps(policy, indent=1), encoding="utf-8")
    stack = folder / "template.yaml"
    stack.write_text(yaml.dump(template(it), Dumper=Plain, sort_keys=False), encoding="utf-8")
    yield from parliament(paths)
    yield from cloudsplaining(paths)
    yield from cfn_lint(stack)
    yield from checkov(stack)


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


def statement(path: Path, line: int) -> str:
    """The Sid, or else the number, of the statement that stands on a line of a policy."""
    lines = path.read_text(encoding="utf-8").splitlines()
    starts = [number for number, text in enumerate(lines, 1) if text == "  {"]
    index = sum(start <= line for start in starts) - 1
    found = json.loads(path.read_text(encoding="utf-8"))["Statement"][index]
    return str(found.get("Sid", index))
