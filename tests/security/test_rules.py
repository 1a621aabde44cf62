"""What our own code may not do, read from its syntax: the rules of linters where they see less, without the linters."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SHIPPED = ("pricing", "provisioner", "trainer", "templates")


def _name(node: ast.AST) -> str:
    """A dotted name: "torch.load"; "" for what is none."""
    if isinstance(node, ast.Attribute):
        return f"{_name(node.value)}.{node.attr}".lstrip(".")
    return node.id if isinstance(node, ast.Name) else ""


def _said(call: ast.Call, keyword: str) -> object:
    """A keyword's constant; ... where it is something else, None where it is not given."""
    for given in call.keywords:
        if given.arg == keyword:
            return given.value.value if isinstance(given.value, ast.Constant) else ...
    return None


def no_verification_is_switched_off(node: ast.AST) -> bool:
    if isinstance(node, ast.Call):
        off = _said(node, "verify") is False or _said(node, "use_ssl") is False
        return off or _name(node.func).endswith(("_create_unverified_context", "_create_stdlib_context"))
    return isinstance(node, ast.Attribute) and node.attr in ("CERT_NONE", "PROTOCOL_TLSv1", "PROTOCOL_TLSv1_1")


def no_shell_of_ours(node: ast.AST) -> bool:
    if not isinstance(node, ast.Call):
        return False
    return _said(node, "shell") not in (None, False) or _name(node.func) in (
        *("os.system", "os.popen", "subprocess.getoutput", "subprocess.getstatusoutput"),
    )


def yaml_is_read_safely(node: ast.AST) -> bool:
    return isinstance(node, ast.Call) and _name(node.func) in (
        *("yaml.load", "yaml.load_all", "yaml.full_load", "yaml.unsafe_load", "yaml.full_load_all"),
    )


def no_trust_on_first_use(node: ast.AST) -> bool:
    names = ("AutoAddPolicy", "WarningPolicy", "load_system_host_keys", "set_missing_host_key_policy")
    called = isinstance(node, ast.Attribute) and node.attr in names
    text = node.value.lower() if isinstance(node, ast.Constant) and isinstance(node.value, str) else ""
    return called or "stricthostkeychecking=no" in text or "stricthostkeychecking no" in text


def nothing_is_unpickled(node: ast.AST) -> bool:
    if not isinstance(node, ast.Call):
        return False
    name = _name(node.func)
    if name == "torch.load":
        return _said(node, "weights_only") is not True
    if name in ("np.load", "numpy.load"):
        return _said(node, "allow_pickle") not in (None, False)
    return name.partition(".")[0] in ("pickle", "cPickle", "dill", "cloudpickle", "joblib", "shelve", "marshal")


def no_archive_is_taken_at_its_word(node: ast.AST) -> bool:
    return isinstance(node, ast.Call) and _name(node.func).rpartition(".")[2] in ("extractall", "unpack_archive")


def no_digest_that_is_broken(node: ast.AST) -> bool:
    if isinstance(node, ast.Call) and _name(node.func) in ("hashlib.md5", "hashlib.sha1"):
        return _said(node, "usedforsecurity") is not False
    return False


def nothing_is_evaluated(node: ast.AST) -> bool:
    return isinstance(node, ast.Call) and _name(node.func) in ("eval", "exec")


def no_address_for_everybody(node: ast.AST) -> bool:
    return isinstance(node, ast.Constant) and node.value in ("::/0", "::")


def no_temporary_name_that_others_can_take(node: ast.AST) -> bool:
    return isinstance(node, ast.Call) and _name(node.func) in ("tempfile.mktemp", "os.tempnam", "os.tmpnam")


def umask_and_rights_stay_closed(node: ast.AST) -> bool:
    if isinstance(node, ast.Call) and _name(node.func).rpartition(".")[2] in ("chmod", "fchmod", "mkdir", "makedirs"):
        modes = [a.value for a in node.args if isinstance(a, ast.Constant)] + [_said(node, "mode")]
        return any(isinstance(mode, int) and mode & 0o022 for mode in modes)
    return False


Rule = Callable[[ast.AST], bool]
RULES: dict[Rule, str] = {
    no_verification_is_switched_off: "requests.get(u, verify=False)",
    no_shell_of_ours: "subprocess.run(line, shell=True)",
    yaml_is_read_safely: "yaml.load(text)",
    no_trust_on_first_use: "client.set_missing_host_key_policy(paramiko.AutoAddPolicy())",
    nothing_is_unpickled: "torch.load(path)",
    no_archive_is_taken_at_its_word: "archive.extractall(path)",
    no_digest_that_is_broken: "hashlib.sha1(data)",
    nothing_is_evaluated: "eval(text)",
    no_address_for_everybody: "rule = '::/0'",
    no_temporary_name_that_others_can_take: "tempfile.mktemp()",
    umask_and_rights_stay_closed: "path.chmod(0o666)",
}


def modules() -> Iterator[tuple[Path, ast.Module]]:
    for folder in SHIPPED:
        for path in sorted((ROOT / folder).rglob("*.py")):
            yield path, ast.parse(path.read_text(encoding="utf-8"))


def test_our_code_keeps_every_rule() -> None:
    broken, seen = [], 0
    for path, tree in modules():
        seen += 1
        for node in ast.walk(tree):
            if not isinstance(node, ast.Call | ast.Attribute | ast.Constant):
                continue
            broken += [
                f"{path.relative_to(ROOT)}:{getattr(node, 'lineno', 0)}: {rule.__name__}"
                for rule in RULES
                if rule(node)
            ]
    assert seen > 150
    assert broken == []


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
def test_each_rule_finds_what_it_forbids(rule: Rule) -> None:
    assert any(rule(node) for node in ast.walk(ast.parse(RULES[rule])))
