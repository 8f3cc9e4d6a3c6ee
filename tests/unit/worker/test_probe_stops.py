"""How long probes stop the engine's thread, and for how much of that it waits."""

import threading
import time

from hybridbench.worker.metrics import ProbeStops


def test_what_a_probe_waits_is_told_from_what_it_computes() -> None:
    asleep, computing = ProbeStops(), ProbeStops()

    with asleep:
        threading.Event().wait(0.02)
    with computing:
        end_s = time.thread_time() + 0.02
        while time.thread_time() < end_s:
            pass

    assert asleep.stop_s >= 0.02
    assert asleep.wait_s > 0.5 * asleep.stop_s
    assert computing.stop_s - computing.wait_s >= 0.02
