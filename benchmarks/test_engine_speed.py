"""Speed of the SimPy engine on the bundled trace, beside what SimPy itself does on this machine.

    pytest benchmarks/test_engine_speed.py -m benchmark_run -s

Tokens a second depend on the machine, so the assertion is a ratio within one run: bare SimPy timeouts for each
simulated token, both in CPU time of the thread, interleaved, medians.
"""

import time
from statistics import median

import pytest
import simpy

from expert_residency.sim.choices.capacity import Capacity
from expert_residency.sim.choices.spec import RunSpec
from expert_residency.sim.runs.simulate import simulate
from expert_residency.sim.studies.demo import SYNTHETIC, demo_trace, expert_room

pytestmark = pytest.mark.benchmark_run
ROUNDS, TIMEOUTS = 5, 100_000


def cpu_s(work):
    began = time.thread_time()
    work()
    return time.thread_time() - began


def bare_timeouts():
    env = simpy.Environment()

    def ticks():
        for _ in range(TIMEOUTS):
            yield env.timeout(1)

    env.process(ticks())
    env.run()


@pytest.mark.parametrize("miss", ["fetch", "cpu"])
@pytest.mark.parametrize("hardware", ["rtx-5070-7600", "rtx-5060ti-5700x3d", "tesla-p40"])
def test_tokens_per_second_of_the_engine(hardware, miss):
    trace = demo_trace(SYNTHETIC, None)
    room = Capacity(total_bytes=expert_room(hardware, trace.geometry))
    spec = RunSpec((hardware,), room, miss=miss)
    simulate(trace, spec, simulator="reference")
    engine, timeouts = [], []
    for _ in range(ROUNDS):
        timeouts.append(cpu_s(bare_timeouts))
        engine.append(cpu_s(lambda: simulate(trace, spec, simulator="reference")))
    tokens_per_s = trace.n_tokens_emitted / median(engine)
    timeouts_per_s = TIMEOUTS / median(timeouts)
    print(
        f"\n{hardware}, {miss}: {tokens_per_s:,.0f} tokens/s (runs of {min(engine):.2f} to {max(engine):.2f} s), "
        f"SimPy {timeouts_per_s / 1e6:.2f} M timeouts/s: {timeouts_per_s / tokens_per_s:,.0f} timeouts a token"
    )
    assert timeouts_per_s / tokens_per_s < 12_000
