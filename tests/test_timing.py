import pytest

from mlm_jax import timing


def test_throughput_over_a_window():
    throughput = timing.Throughput(window=2)
    assert throughput.tokens_per_second is None and throughput.seconds_left(10) is None
    throughput.add(1000, now=50.0)  # the first step: compilation
    assert throughput.tokens_per_second is None
    throughput.add(100, now=51.0)
    assert throughput.tokens_per_second == 100
    throughput.add(200, now=52.0)
    assert throughput.tokens_per_second == 150
    assert throughput.seconds_left(10) == 10
    throughput.add(300, now=54.0)  # the window holds two steps: 500 tokens in 3 seconds
    assert throughput.tokens_per_second == pytest.approx(500 / 3)
    throughput.exclude(100.0)
    throughput.add(100, now=156.0)
    assert throughput.tokens_per_second == pytest.approx(400 / 4)


def test_shares_of_a_run_with_a_crash():
    """First start: 10 s of starting, 30 of training, a save of 2 at 42; then 18 s of steps that a crash loses."""
    now = [0.0]
    clock = timing.Clock(started_at=0.0, now=lambda: now[0])

    def passes(seconds):
        now[0] += seconds

    passes(10)
    clock.switch("training")
    passes(20)
    with clock.during("input"):
        passes(4)
    passes(6)
    with clock.during("saving"):
        passes(2)
        saved = clock.totals()
    assert saved == {"training": 26.0, "input": 4.0, "evaluation": 0.0, "saving": 2.0, "starting": 10.0}
    assert clock.goodput == pytest.approx(26 / 42)
    passes(18)
    now[0] = 100.0  # nothing ran for 40 s; the second start was noticed 5 s after it began
    again = timing.Clock(started_at=0.0, spent=saved, since=95.0, now=lambda: now[0])
    passes(5)
    again.switch("training")
    passes(15)
    assert again.goodput == pytest.approx((26 + 15) / 120)
    shares = again.shares()
    assert shares["starting"] == pytest.approx(20 / 120)
    assert shares["lost"] == pytest.approx((18 + 35) / 120)
    assert sum(shares.values()) == pytest.approx(1.0)


def test_a_clock_that_is_set_back_takes_nothing_away():
    now = [100.0]
    clock = timing.Clock(started_at=0.0, now=lambda: now[0])
    now[0] = 90.0
    assert clock.switch("training") == 0.0 and clock.goodput == 0.0


def test_percentiles():
    assert timing.percentiles([]) == {}
    assert timing.percentiles([float(i) for i in range(101)]) == {"p50": 50.0, "p90": 90.0, "p99": 99.0}
