"""The reviewed table of machine images: which one each GPU family boots, and how to live in it.

Sources, read 2026-11: parameter names, docs.aws.amazon.com/dlami/latest/devguide/find-dlami-id (lines in use in 2026
confirmed by public code); GPU types, Python and login user, the DLAMI release notes of the PyTorch 2.12 line
(2026-10-05); root size, AWS's Deep Learning Containers repository, which recommends 100 GB (an image of about 75 GB
refuses less). ``/latest/`` is the latest build *of that line*: lines freeze when their support ends, so the line is
chosen here, and the id that it names is pinned in the attempt.
"""

from __future__ import annotations

import getpass
import os
from dataclasses import replace

from cloudtrain.provisioner.model import Image

_LINE = "/aws/service/deeplearning/ami/{}/oss-nvidia-driver-gpu-pytorch-2.12-ubuntu-24.04/latest/ami-id"


def _pytorch(architecture: str) -> Image:
    return Image(
        ssm_parameter=_LINE.format(architecture),
        login_user="ubuntu",
        root_device="/dev/sda1",
        root_gib=100,
        architecture=architecture,
        python="/opt/pytorch/bin/python",
        activate="source /opt/pytorch/bin/activate",
        agent_brings_boto3=True,  # the image's own may be older than S3's conditional writes
    )


_X86_64 = _pytorch("x86_64")
_ARM64 = _pytorch("arm64")

IMAGES: dict[str, Image] = {
    **dict.fromkeys(("g4dn", "g5", "g6", "gr6", "g6e", "p4d", "p4de", "p5", "p5e", "p5en", "p6-b200"), _X86_64),
    "g5g": _ARM64,
}

_NOT_LISTED = "no PyTorch image lists {} yet (DLAMI release notes, 2026-10)"
_VOLTA = "no current image has a driver for {}: the open kernel modules need Turing or newer (DLAMI, 2026-01)"
_FRACTION = "{} gives a fraction of a GPU, which is not supported yet"
REASONS: dict[str, str] = {
    **dict.fromkeys(("g7", "g7e", "p6-b300", "p6e-gb200", "p6e-gb300"), _NOT_LISTED),
    **dict.fromkeys(("p2", "p3", "p3dn", "g3", "g3s"), _VOLTA),
    **dict.fromkeys(("g6f", "gr6f"), _FRACTION),
}


def image_for(instance_type: str, cloud: str = "aws") -> Image | str:
    """The image that an instance type boots; a text that says why, where there is none.

    On the embedded cloud ("local") the same row stands, so that the same parameter is resolved and the same disk rules
    hold, but its Python is the host's own.
    """
    family = instance_type.partition(".")[0]
    image = IMAGES.get(family)
    if image is None:
        return REASONS.get(family, "no image is known for {}").format(family)
    if cloud == "local":
        return replace(
            image, login_user=login_user(cloud, image), python="python", activate=None, agent_brings_boto3=False
        )
    return image


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
