"""The command line's manners: data on stdout, messages on stderr, one `error:` line, the right exit code."""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
import types

import pytest

from anyformer.cli import main
from anyformer.errors import UserError
from anyformer.version import __version__


@pytest.fixture
def demo_does(monkeypatch):
    """Puts a made-up body behind `anyformer demo`."""

    def put(body):
        monkeypatch.setitem(sys.modules, "anyformer.demo", types.SimpleNamespace(run=lambda **settings: body()))

    return put


def fails_with(error):
    def body():
        raise error

    return body


def errors_of(text):
    return [line for line in text.splitlines() if line.startswith("error: ")]


def test_version(capsys):
    assert main(["--version"]) == 0
    assert capsys.readouterr() == (f"{__version__}\n", "")


@pytest.mark.parametrize("words", [[], ["--help"], ["demo", "--help"], ["presets", "--help"]])
def test_help_is_data_and_shows_an_example(words, capsys):
    assert main(words) == 0
    out, err = capsys.readouterr()
    assert "Usage: anyformer" in out and "Example:" in out and not err


@pytest.mark.parametrize(
    "words, expected",
    [
        (["demmo"], "did you mean 'demo'?"),
        (["preset"], "did you mean 'presets'?"),
        (["demo", "--sed", "1"], "did you mean '--seed'?"),
        (["presets", "--jsn"], "did you mean '--json'?"),
        (["xyzzy"], "see 'anyformer --help'"),
        (["demo", "--xyzzy"], "see 'anyformer demo --help'"),
        (["demo", "--seed", "much"], "see 'anyformer demo --help'"),
        (["demo", "--seed"], "see 'anyformer demo --help'"),
        (["demo", "extra"], "see 'anyformer demo --help'"),
    ],
)
def test_a_wrong_word_is_one_line_with_the_nearest_name(words, expected, capsys):
    assert main(words) == 2
    out, err = capsys.readouterr()
    assert not out and len(err.splitlines()) == 1
    assert err.startswith("error: ") and expected in err and len(err) <= 300


def test_a_user_error_is_one_line_with_details_below(demo_does, capsys):
    demo_does(fails_with(UserError("width 770 is\nodd", where="run.yaml:4", fix="try 768", details=["or heads 10"])))
    assert main(["demo"]) == 2
    out, err = capsys.readouterr()
    assert (out, err) == ("", "error: run.yaml:4: width 770 is odd; try 768\n  or heads 10\n")


def test_debug_adds_the_traceback_and_may_stand_anywhere(demo_does, capsys):
    demo_does(fails_with(UserError("no")))
    for words in (["demo", "--debug"], ["--debug", "demo"]):
        assert main(words) == 2
        err = capsys.readouterr().err
        assert "Traceback" in err and errors_of(err) == ["error: no"]


def test_our_bug_shows_a_traceback_and_asks_for_a_report(demo_does, capsys):
    demo_does(fails_with(KeyError("lost")))
    assert main(["demo"]) == 1
    err = capsys.readouterr().err
    assert "Traceback" in err and "please report" in err and len(errors_of(err)) == 1


@pytest.mark.parametrize("error", [MemoryError(), OSError(28, "No space left on device")])
def test_resources_are_exit_code_4(error, demo_does, capsys):
    demo_does(fails_with(error))
    assert main(["demo"]) == 4
    err = capsys.readouterr().err
    assert len(errors_of(err)) == 1 and "Traceback" not in err


def test_control_another_os_error_is_ours(demo_does, capsys):
    demo_does(fails_with(OSError(5, "I/O error")))
    assert main(["demo"]) == 1
    assert "please report" in capsys.readouterr().err


def test_ctrl_c_is_130(demo_does, capsys):
    demo_does(fails_with(KeyboardInterrupt()))
    assert main(["demo"]) == 130
    assert capsys.readouterr() == ("", "stopped\n")


def test_the_log_goes_to_stderr_and_quiet_silences_news(demo_does, capsys, monkeypatch):
    logger = logging.getLogger("anyformer")
    monkeypatch.setattr(logger, "handlers", [])

    def speak():
        logger.info("news")
        logger.warning("careful")

    demo_does(speak)
    main(["demo"])
    assert capsys.readouterr() == ("", "news\nwarning: careful\n")
    monkeypatch.setattr(logger, "handlers", [])
    main(["demo", "--quiet"])
    assert capsys.readouterr() == ("", "warning: careful\n")
    logger.setLevel(logging.NOTSET)


@pytest.mark.parametrize("setting", [{"NO_COLOR": "1"}, {"TERM": "dumb"}, {}])
def test_no_colour_codes_where_there_is_no_terminal(setting):
    plain = {name: value for name, value in os.environ.items() if name not in {"FORCE_COLOR", "PY_COLORS"}} | setting
    for words in (["--help"], ["demmo"]):
        program = [sys.executable, "-c", f"from anyformer.cli import main; raise SystemExit(main({words}))"]
        done = subprocess.run(program, capture_output=True, text=True, env=plain, timeout=60)
        assert "\x1b" not in done.stdout + done.stderr


def test_a_reader_that_goes_away_is_no_error():
    code = """
import sys, types
from anyformer.cli import main, write
sys.modules["anyformer.demo"] = types.SimpleNamespace(run=lambda **settings: [write("x" * 999) for _ in range(9999)])
raise SystemExit(main(["demo"]))
"""
    child = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert child.stdout is not None and child.stderr is not None
    child.stdout.readline()
    child.stdout.close()
    with child.stderr:
        assert child.stderr.read() == ""
    assert child.wait(timeout=60) == 0


def test_presets_are_listed_with_their_sizes(capsys):
    assert main(["presets", "--json"]) == 0
    listed = json.loads(capsys.readouterr().out)
    assert {"name", "parameters", "active", "kv_bytes_per_token"} == set(listed[0])
    assert all(row["parameters"] >= row["active"] > 0 for row in listed)
    assert main(["presets", "--quiet"]) == 0
    assert capsys.readouterr().out.split() == [row["name"] for row in listed]
    assert main(["presets"]) == 0
    assert len(capsys.readouterr().out.splitlines()) == len(listed)


@pytest.mark.parametrize(
    "given, expected", [({}, "1000"), ({"GOMP_SPINCOUNT": "7"}, "7"), ({"OMP_WAIT_POLICY": "active"}, "None")]
)
def test_threads_of_a_training_wait_asleep_unless_told_otherwise(given, expected):
    """It must be set before torch is loaded, which reads it once."""
    code = (
        "import os, sys; from anyformer.cli import main; assert 'torch' not in sys.modules; "
        "main(['train', 'nowhere.txt']); assert 'torch' in sys.modules; print(os.environ.get('GOMP_SPINCOUNT'))"
    )
    plain = {name: value for name, value in os.environ.items() if name not in ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY")}
    done = subprocess.run([sys.executable, "-c", code], env=plain | given, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == expected
