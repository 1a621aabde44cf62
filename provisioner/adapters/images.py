"""The reviewed table of machine images: which one each GPU family boots, and how to live in it.

Sources, read 2026-11: parameter names, docs.aws.amazon.com/dlami/latest/devguide/find-dlami-id (lines in use in 2026
confirmed by public code); GPU types, Python, login user and scratch path, the DLAMI release notes of the PyTorch 2.12
line (2026-10-05); root size, AWS's Deep Learning Containers repository, which recommends 100 GB (an image of about
75 GB refuses less). ``/latest/`` is the latest build *of that line*: lines freeze when their support ends, so the line
is chosen here, and the id that it names is pinned in the attempt.

One line, PyTorch on Ubuntu 24.04, serves every family below. The base lines bring no torch, Amazon Linux 2023's lists
no scratch mount, and Ubuntu 22.04's PyTorch lines are frozen: none of them would serve a family that this one does not.
"""

from __future__ import annotations

import getpass
import os
import re
from dataclasses import replace

from cloudtrain.provisioner.model import Image
from cloudtrain.provisioner.spec import AwsOptions

LINES = "/aws/service/deeplearning/ami/{architecture}/"
"""Where AWS keeps the parameters of an architecture's image lines: what `doctor` lists."""
VENV = "/opt/pytorch"
"""Where the PyTorch images keep Python and torch; a non-interactive SSH session does not find it by itself."""
_LINE = LINES + "oss-nvidia-driver-gpu-pytorch-2.12-ubuntu-24.04/latest/ami-id"
_SCRATCH = "/opt/dlami/nvme"  # made and mounted by the image's dlami-nvme.service


def _pytorch(architecture: str) -> Image:
    return Image(
        ssm_parameter=_LINE.format(architecture=architecture),
        login_user="ubuntu",
        root_device="/dev/sda1",
        root_gib=100,
        architecture=architecture,
        venv=VENV,
        scratch=_SCRATCH,
        agent_brings_boto3=True,  # the image's own may be older than S3's conditional writes
    )


_X86_64 = _pytorch("x86_64")
_ARM64 = _pytorch("arm64")

IMAGES: dict[str, Image] = {
    **dict.fromkeys(("g4dn", "g5", "g6", "gr6", "g6e", "p4d", "p4de", "p5", "p5e", "p5en", "p6-b200"), _X86_64),
    "g5g": _ARM64,
}

_NOT_LISTED = "no PyTorch image lists {} yet (DLAMI release notes, 2026-10); name your own as resources.aws.image_id"
_VOLTA = "no current image has a driver for {}: the open kernel modules need Turing or newer (DLAMI, 2026-01)"
_FRACTION = "{} gives a fraction of a GPU, which is not supported yet"
REASONS: dict[str, str] = {
    **dict.fromkeys(("g7", "g7e", "p6-b300", "p6e-gb200", "p6e-gb300"), _NOT_LISTED),
    **dict.fromkeys(("p2", "p3", "p3dn", "g3", "g3s"), _VOLTA),
    **dict.fromkeys(("g6f", "gr6f"), _FRACTION),
}


_ARM_FAMILIES = ("g5g", "p6e-gb200", "p6e-gb300")

# What an image's name says of its login user: AWS's and the distributions' own images, by their documented defaults.
_USERS = (
    (r"ubuntu", "ubuntu"),
    (r"al20\d\d|amazon.?linux|amzn|\becs\b", "ec2-user"),
    (r"rhel|red.?hat|suse|sles", "ec2-user"),
    (r"debian", "admin"),
    (r"rocky", "rocky"),
    (r"alma", "ec2-user"),
    (r"fedora", "fedora"),
)


def image_for(instance_type: str, cloud: str = "aws", options: AwsOptions | None = None) -> Image | str:
    """The image that an instance type boots; a text that says why, where there is none.

    The user's own (``options.image_id``) comes first. On the embedded cloud ("local") the same row stands, so that the
    same parameter is resolved and the same disk rules hold; its machines bring boto3 and have this account as user.
    """
    family = instance_type.partition(".")[0]
    image = _own(family, options) if options is not None and options.image_id else IMAGES.get(family)
    if image is None:
        return REASONS.get(family, "no image is known for {}; name your own as resources.aws.image_id").format(family)
    if cloud == "local":
        return replace(image, login_user=login_user(cloud, image), agent_brings_boto3=False)
    return image


def _own(family: str, options: AwsOptions) -> Image:
    """What is known of the user's own image before the cloud has shown it."""
    return Image(
        ssm_parameter="",
        login_user=options.ssh_user or "",
        root_device="",
        root_gib=0,
        architecture="arm64" if family in _ARM_FAMILIES else "x86_64",
        venv=VENV,
        scratch=_SCRATCH,
        agent_brings_boto3=True,
        own_id=options.image_id,
    )


def user_named_by(image_name: str) -> str | None:
    """The login user that an image's name tells; None where it tells none."""
    words = image_name.lower()
    return next((user for pattern, user in _USERS if re.search(pattern, words)), None)


def login_user(cloud: str, image: Image) -> str:
    """Who logs in over SSH. On a local host that is the account that runs the embedded cloud, hence this one."""
    return _own_name() if cloud == "local" else image.login_user


def _own_name() -> str:
    """The name of the account that this process runs as. LOGNAME and USER may name another (su, sudo)."""
    try:
        import pwd  # noqa: PLC0415 - not on Windows

        return pwd.getpwuid(os.getuid()).pw_name
    except (ImportError, KeyError):
        return getpass.getuser()
