"""Read by Python at its start, where a test has put this folder on PYTHONPATH: arms the controller's and the command
line's processes with ``tests.faults.points``. Every other process (the embedded cloud, agents, jobs) is left alone.
"""

import os
import sys

_ROLES = {"cloudtrain.provisioner.controller": "controller", "cloudtrain.provisioner.cli.main": "cli"}
_role = next((role for module, role in _ROLES.items() if module in sys.orig_argv), None)

if _role is not None and "FAULT_POINTS" in os.environ:
    from tests.faults import points

    points.install(_role, os.environ["FAULT_POINTS"])
if _role == "controller" and "FAULT_AWS_PACE" in os.environ:  # looks as seldom as it would on AWS
    from cloudtrain.provisioner.adapters import listing
    from cloudtrain.provisioner.controller import loop

    loop.PAUSE_S["local"] = loop.PAUSE_S["aws"]
    listing.GAP_S["local"] = listing.GAP_S["aws"]
