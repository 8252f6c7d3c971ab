"""`verdict run` and `verdict demo` as a person meets them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import get_args

import numpy as np
import pytest
from PIL import Image, ImageDraw

from verdict_jax.cli import main
from verdict_jax.cli_reason import RuleName
from verdict_jax.rules import RULES
from verdict_jax.trace import Trace


@pytest.fixture(scope="module")
def picture(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A blue circle, drawn here."""
    image = Image.new("RGB", (64, 64), (240, 235, 250))
    ImageDraw.Draw(image).ellipse((14, 20, 40, 46), fill=(0, 0, 255))
    path = tmp_path_factory.mktemp("picture") / "circle.png"
    image.save(path)
    return path


def refused(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    """The one line that a mistake gets, with exit status 2."""
    with pytest.raises(SystemExit) as stopped:
        main(["run", *arguments])
    assert stopped.value.code == 2
    (line,) = capsys.readouterr().err.strip().splitlines()
    assert line.startswith("verdict: ")
    return line


def test_run_answers_and_writes_the_trace(
    picture: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "trace.json"
    question = "what color is the circle?"
    main(["run", "--image", str(picture), "--question", question, "--max-tokens", "32",
          "--out", str(out)])  # fmt: skip
    shown = capsys.readouterr().out
    trace = Trace.from_json(out.read_text())
    assert trace.question == question
    assert trace.answer == "blue"
    assert f"answer: {trace.answer}" in shown
    assert "dispersion" in shown and str(out) in shown.replace("\n", "")
    assert trace.settings["temperature"] == 0.8
    assert json.loads(out.read_text())["seed"] == 0


def test_every_rule_is_offered() -> None:
    assert set(get_args(RuleName)) == set(RULES)


def test_a_missing_picture_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    line = refused(["--image", "nowhere.png", "--question", "what?"], capsys)
    assert "nowhere.png" in line and "no such file" in line


def test_a_file_that_is_no_picture_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "notes.txt"
    path.write_text("not a picture")
    assert str(path) in refused(["--image", str(path), "--question", "what?"], capsys)


def test_a_folder_without_a_model_is_one_line(
    picture: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["--image", str(picture), "--question", "what?", "--model"]
    assert "no such folder" in refused([*arguments, str(tmp_path / "absent")], capsys)
    assert "config.json" in refused([*arguments, str(tmp_path)], capsys)


def test_another_architecture_is_one_line(
    picture: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    table = {"model_type": "llama", "architectures": ["LlamaForCausalLM"]}
    (tmp_path / "config.json").write_text(json.dumps(table))
    line = refused(
        ["--image", str(picture), "--question", "what?", "--model", str(tmp_path)], capsys
    )
    assert "LlamaForCausalLM" in line and "Qwen2.5-VL" in line


def test_a_setting_out_of_range_is_one_line(
    picture: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    line = refused(["--image", str(picture), "--question", "what?", "--temperature", "-1"], capsys)
    assert "temperature" in line


def test_demo_shows_candidates_that_differ_and_one_rejected(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    main(["demo", "--out", str(tmp_path)])
    shown = capsys.readouterr().out
    traces = [Trace.from_json(path.read_text()) for path in sorted(tmp_path.glob("*.json"))]
    assert len(traces) == 2
    steps = [step for trace in traces for step in trace.steps]
    assert any(len({candidate.text for candidate in step.candidates}) > 1 for step in steps)
    assert any(not np.all(step.accepted) for step in steps)
    assert "rejected" in shown and "gold:" in shown
