"""What the README says a first run costs, held to the catalogue that it will be planned with."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

from cloudtrain.pricing import catalog
from cloudtrain.provisioner.jobfile.reader import load
from cloudtrain.provisioner.plan import make_plan

ROOT = Path(__file__).parents[2]
DISK_AND_ADDRESS_USD = 0.011 + 0.005  # an hour, as the README has them


def test_the_first_run_costs_what_the_readme_says() -> None:
    text = (ROOT / "README.md").read_text().partition("## Your first run on AWS")[2].partition("\n## ")[0]
    (kind,) = re.findall(r"--instance-type (\S+) --max-run 1h", text)
    spec = load(ROOT / "templates/digits.yaml")
    (choice,) = (replace(one, instance_type=kind) for one in spec.resources)

    def prices(*, spot: bool) -> list[float]:
        plan = make_plan(replace(spec, resources=(replace(choice, use_spot=spot),)), catalog.load(), cloud="aws")
        return sorted(float(offering.price_per_hour.amount) for offering in plan.offerings)

    low, high = map(float, re.findall(r"about \$([\d.]+) to \$([\d.]+) an hour on spot", text)[0])
    tried_first = prices(spot=True)[:20]  # who gets one of the later ones pays more, below the limit
    assert low - 0.01 <= tried_first[0]
    assert tried_first[-1] <= high
    least, most = map(float, re.findall(r"on demand, which is \$([\d.]+) to \$([\d.]+) by region", text)[0])
    on_demand = prices(spot=False)
    assert (least, most) == (round(on_demand[0], 2), round(on_demand[-1], 2))
    (limit,) = re.findall(r"stays below (\d+) cents", text.replace("\n", " ").replace("  ", " "))
    assert most + DISK_AND_ADDRESS_USD < int(limit) / 100
