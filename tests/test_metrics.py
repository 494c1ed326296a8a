import io
import json
import struct

import jax.numpy as jnp
import numpy as np
import pytest

from mlm_jax import metrics


def test_lines_are_valid_json_and_flushed(tmp_path):
    path = tmp_path / "run" / "metrics.jsonl"
    lines = metrics.JsonLines(path)
    lines.write({"step": 1, "loss": jnp.float32(0.5), "bad": float("nan"), "rows/hash": np.uint32(4294967295)})
    lines.write({"step": np.int64(2), "loss": jnp.bfloat16(1.5), "bad": [np.inf, 1], "name": "é", "none": None})
    read = [json.loads(line) for line in path.read_text("utf-8").splitlines()]  # before the file is closed
    assert read == [
        {"step": 1, "loss": 0.5, "bad": None, "rows/hash": 4294967295},
        {"step": 2, "loss": 1.5, "bad": [None, 1.0], "name": "é", "none": None},
    ]
    lines.close()
    more = metrics.JsonLines(path)
    more.write({"step": 3})
    more.close()
    assert len(path.read_text("utf-8").splitlines()) == 3


def test_other_processes_write_nothing(tmp_path):
    lines = metrics.JsonLines(tmp_path / "metrics.jsonl", active=False)
    lines.write({"step": 1})
    lines.sync()
    lines.close()
    stream = io.StringIO()
    progress = metrics.Progress(3, stream, active=False)
    progress.update(3, 1.0, 1e-3)
    progress.message("hello")
    progress.close()
    assert not list(tmp_path.iterdir()) and not stream.getvalue()


def test_truncate_keeps_lines_up_to_the_step(tmp_path):
    path = tmp_path / "metrics.jsonl"
    assert metrics.truncate(path, 5) == 0
    lines = ['{"config": 1}', '{"step": 1}', '{"step": 2}', '{"step": 2, "eval": 1}', '{"step": 3}', '{"step": 2.0}']
    path.write_text("\n".join(lines) + '\n{"step": 2, "lo')
    assert metrics.truncate(path, 2) == 2
    assert path.read_text().splitlines() == [*lines[:4], lines[5]]
    assert metrics.truncate(path, 2) == 0
    writer = metrics.JsonLines(path)
    writer.write({"step": 3})
    writer.close()
    assert json.loads(path.read_text().splitlines()[-1]) == {"step": 3}
    metrics.truncate(path, 0)
    assert path.read_text() == '{"config": 1}\n'


def test_a_last_line_without_its_end_is_torn_even_if_it_parses(tmp_path):
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"step": 1}\n{"step": 2}')
    assert metrics.truncate(path, 2) == 1
    assert path.read_text() == '{"step": 1}\n'


def test_tensorboard_events_are_read_back(tmp_path):
    from tensorboardX.proto.event_pb2 import Event

    writer = metrics.TensorBoard(tmp_path, after=2)
    writer.write({"step": 3, "train/loss": jnp.float32(0.5), "rows/hash": np.uint32(7), "throughput/mfu": None})
    writer.sync()
    writer.close()
    events, data = [], next(tmp_path.iterdir()).read_bytes()
    while data:  # TFRecords: length, its checksum, the event, its checksum
        (size,) = struct.unpack("<Q", data[:8])
        events.append(Event.FromString(data[12 : 12 + size]))
        data = data[16 + size :]
    starts = [event for event in events if event.HasField("session_log")]
    assert [(event.step, event.session_log.status) for event in starts] == [(3, 1)]  # START hides what came later
    found = [(event.step, value.tag, value.simple_value) for event in events for value in event.summary.value]
    assert found == [(3, "train/loss", 0.5)]


def test_progress_in_a_log_is_one_plain_line_every_few_seconds():
    stream = io.StringIO()
    progress = metrics.Progress(3000, stream, every_seconds=10)
    progress.update(1, 9.01, 1e-6, now=0.0)
    progress.update(2, 9.0, 1e-6, now=9.0)
    progress.update(1200, 4.2134, 2.1e-3, 31_234.5, 192.3, now=10.0)
    progress.message("step 1,200  held out: loss 4.1")
    progress.update(3000, 3.0, 0.0, 31_234.5, 0.0, 0.4567, now=11.0)
    progress.close()
    assert stream.getvalue().splitlines() == [
        "step 1/3,000  loss 9.010  lr 1.0e-06",
        "step 1,200/3,000  loss 4.213  lr 2.1e-03  31.2k tokens/s  left 03:12",
        "step 1,200  held out: loss 4.1",
        "step 3,000/3,000  loss 3.000  lr 0.0e+00  31.2k tokens/s  MFU 45.7%  left 00:00",
    ]


def test_progress_on_a_terminal_rewrites_its_line(monkeypatch):
    monkeypatch.setenv("COLUMNS", "30")
    stream = io.StringIO()
    stream.isatty = lambda: True
    progress = metrics.Progress(3, stream, every_seconds=0)
    progress.update(1, 9.0, 1e-3, 5e5, 7.0, now=0.0)
    progress.message("kept")
    progress.update(2, 8.0, 1e-3, now=1.0)
    progress.close()
    progress.close()
    assert stream.getvalue() == (
        "\r\x1b[Kstep 1/3  loss 9.000  lr 1.0e\r\x1b[Kkept\n\r\x1b[Kstep 2/3  loss 8.000  lr 1.0e\n"
    )


@pytest.mark.parametrize(
    "number, text",
    [
        (0, "0"),
        (950, "950"),
        (999.7, "1.00k"),
        (31234, "31.2k"),
        (1.25e6, "1.25M"),
        (999_400, "999k"),
        (8.1e9, "8.10G"),
    ],
)
def test_short_numbers(number, text):
    assert metrics.short(number) == text


@pytest.mark.parametrize(
    "seconds, text", [(0, "00:00"), (192.3, "03:12"), (59.6, "01:00"), (3792, "1:03:12"), (183725, "2d 03:02:05")]
)
def test_durations(seconds, text):
    assert metrics.duration(seconds) == text
