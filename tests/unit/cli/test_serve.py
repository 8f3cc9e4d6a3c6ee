"""What `serve` takes from its profile."""

from __future__ import annotations

import pytest

from hybridbench.serve import run
from hybridbench.serve.run import ServePlan
from hybridbench.workload.catalog import load_profile
from tests.unit.cli.conftest import CommandLine


@pytest.mark.parametrize("name", ["refusals", "options", "session-churn"])
def test_a_profile_whose_traffic_only_servers_get_gives_its_pools(
    name: str, hybridbench: CommandLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    served: list[ServePlan] = []
    monkeypatch.setattr(run, "serve", lambda plan, _: served.append(plan))

    hybridbench("serve", "--port", "0", "--profile", name)

    (plan,) = served
    plan.listening.close()
    profile = plan.engine.profile
    assert profile.of_servers_alone == ""
    assert (profile.pools, profile.engine) == (load_profile(name).pools, load_profile(name).engine)
