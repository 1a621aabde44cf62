"""Read by Python at its start, where a test has put this folder on PYTHONPATH: arms the controller's and the command
line's processes with ``tests.faults.points``. Every other process (the embedded cloud, agents, jobs) is left alone.
"""

import os
import sys

_ROLES = {"cloudtrain.provisioner.controller": "controller", "cloudtrain.provisioner.cli.main": "cli"}

if "FAULT_POINTS" in os.environ:
    _role = next((role for module, role in _ROLES.items() if module in sys.orig_argv), None)
    if _role is not None:
        from tests.faults import points

        points.install(_role, os.environ["FAULT_POINTS"])
