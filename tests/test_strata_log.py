"""Strata's log as runs of `residency fit`: each request with its cache, its depth and its windows."""

from __future__ import annotations

import pytest

from expert_residency.errors import SimError
from expert_residency.sim.cli import main
from expert_residency.sim.studies.fit import read_runs

START = (
    "strata generate: 7 expert-pool workers\n"
    "strata generate: expert cache {slots} slots, {gib} GiB of VRAM\n"
    "strata serve: session is up\n"
)
REQUEST = (
    "strata serve: prompt {prompt} tokens = {reused} reused + {read} read in 500 ms (400.0 tok/s), "
    "{made} generated in {ms} ms ({speed} tok/s), drafts accepted {accepted} of {offered}\n"
)


def request(prompt=200, reused=0, made=300, ms=6000, accepted=180, offered=240, **more):
    speed = f"{1000 * made / max(ms, 1):.1f}"
    return REQUEST.format(
        prompt=prompt, reused=reused, read=prompt - reused, made=made, ms=ms, speed=speed, accepted=accepted,
        offered=offered, **more,
    )  # fmt: skip


def start(slots=3897, gib="7.44"):
    return START.format(slots=slots, gib=gib)


def read(tmp_path, text):
    path = tmp_path / "server.log"
    path.write_text(text)
    return read_runs(path)


def test_a_request_is_a_run_with_its_own_windows(tmp_path):
    hits = "strata serve: decode expert cache hit rate: 60.1% (10 hits / 20 lookups)\n"
    text = start() + request() + hits + start(2886, "5.53") + "\x1b[32m" + request(1000, 800, 100, 2500, 0, 0)
    (one, two), left_out = read(tmp_path, text)
    assert not left_out
    assert (one.name, one.tokens_per_s) == ("line 4", 50.0)
    assert one.words == {"capacity": "7.44GiB", "depth": 350}
    assert one.windows == (3.0, 2.5), "120 windows for 300 tokens, 240 drafts offered"
    assert two.words == {"capacity": "5.53GiB", "depth": 1050}
    assert two.windows == (1.0, 1.0)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (request() + start() + request(), "line 1: no line 'expert cache"),
        (start() + request() + request(made=5, accepted=0, offered=0), "line 5: 5 tokens generated are too few"),
        (start() + request() + request(accepted=240, offered=240, made=200), "240 of 240 drafts accepted"),
        (start() + request() + request(accepted=90, offered=80), "90 of 80 drafts accepted"),
        (start() + request() + request(ms=0), "it took no time"),
        (start() + request() + "strata serve: prompt 12 tokens, done\n", "line 5: a request that is not written"),
        (start() + request() * 2 + "strata generate: 3 expert-pool workers\n" + request(), "line 7: 3 workers"),
        (start() + request() + request().replace("= 0 reused", "= 7 reused"), "prompt 200 is not 7 reused"),
    ],
)
def test_what_is_left_out_says_why(tmp_path, text, said):
    runs, left_out = read(tmp_path, text)
    assert runs
    assert len(left_out) == 1
    assert said in left_out[0]


def test_a_log_without_a_run_is_refused(tmp_path):
    with pytest.raises(SimError, match=r"server\.log: no run with a decode speed: line 1: no line 'expert cache"):
        read(tmp_path, request())


@pytest.mark.slow
def test_fit_takes_a_log(tmp_path, capsys):
    path = tmp_path / "server.log"
    path.write_text(start(400, "0.50") + request() + start(200, "0.25") + request(ms=7000) + request(made=4))
    words = "--model qwen3-30b-a3b/Q4_K_M --hardware rtx-3060 --engine strata --passes 12"
    with pytest.raises(SystemExit) as ended:
        main(["fit", str(path), *words.split()])
    said, err = capsys.readouterr()
    assert not ended.value.code, err
    assert "line 4" in said
    assert "line 8" in said
    assert "left out: line 9: 4 tokens generated" in " ".join((said + err).split())
