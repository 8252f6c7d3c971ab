"""`verdict run` and `verdict demo` as a person meets them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import get_args

import numpy as np
import pytest
import tiny_vlm
from PIL import Image, ImageDraw

from verdict_jax import cli_reason, reasoning
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


def test_a_trace_says_what_was_asked_for(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Folders of one's own for reasoner and judges, choices, two pictures, every option."""
    pictures = tmp_path / "a.png", tmp_path / "b.png"
    for seed, path in enumerate(pictures):
        tiny_vlm.picture(seed).save(path)
    judges = tmp_path / "judges"
    judges.mkdir()
    tiny_vlm.write_checkpoint(judges, seed=1)
    (tmp_path / "older.json").write_text("older")
    out = tmp_path / "trace.json"
    out.symlink_to(tmp_path / "older.json")
    main(["run", "--image", *map(str, pictures), "--question", "Which is closer?",
          "--choices", "the first", "the second", "--model", str(tiny_vlm.tiny_folder()),
          "--judge-model", str(judges), "--read-out", "yes_no", "--rule", "mean", "--n", "2",
          "--tau", "0.5", "--epsilon", "0.2", "--stubbornness", "2", "1", "0.5", "--seed", "3",
          "--temperature", "0.7", "--max-steps", "1", "--max-tokens", "6",
          "--out", str(out)])  # fmt: skip
    shown = capsys.readouterr().out
    trace = Trace.from_json(out.read_text())
    assert trace.images == tuple(map(str, pictures))
    assert (trace.question, trace.choices) == ("Which is closer?", ("the first", "the second"))
    assert "A. the first" in shown and "B. the second" in shown and "b.png" in shown
    assert trace.model_id == tiny_vlm.tiny_vlm().name
    (panel,) = trace.panels
    assert panel.model_id.startswith("judges@")
    assert {panel.settings[f"{judge}.read_out"] for judge in panel.judges} == {"yes_no"}
    assert (trace.rule, trace.n, trace.seed, trace.max_steps) == ("mean", 2, 3, 1)
    assert (trace.parameters.tau, trace.parameters.epsilon) == (0.5, 0.2)
    assert trace.parameters.stubbornness == (2.0, 1.0, 0.5)
    assert (trace.settings["temperature"], trace.settings["max_tokens"]) == (0.7, 6)
    (step,) = trace.steps
    assert len(step.candidates) == 2
    # A link stays one, and no part of the file is left beside it.
    assert out.is_symlink()
    assert {path.name for path in tmp_path.iterdir()} == {
        "a.png", "b.png", "judges", "older.json", "trace.json",
    }  # fmt: skip


def test_a_rule_that_reads_no_score_asks_no_judge(picture: Path, tmp_path: Path) -> None:
    out = tmp_path / "trace.json"
    # The shapes of the test above: nothing is compiled anew.
    main(["run", "--image", str(picture), str(picture), "--question", "Which is closer?",
          "--choices", "the first", "the second", "--rule", "random", "--n", "2",
          "--model", str(tiny_vlm.tiny_folder()), "--judge-model", str(tmp_path / "absent"),
          "--temperature", "0.7", "--max-steps", "1", "--max-tokens", "6",
          "--out", str(out)])  # fmt: skip
    trace = Trace.from_json(out.read_text())
    assert (trace.panels, trace.rule, trace.steps[0].raw) == ((), "random", ((), ()))


def test_every_rule_is_offered() -> None:
    assert set(get_args(RuleName)) == set(RULES)


def test_a_missing_picture_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    line = refused(["--image", "nowhere.png", "--question", "what?"], capsys)
    assert "nowhere.png: no such file; " in line


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


@pytest.mark.parametrize(
    ("options", "part"),
    [
        (["--stubbornness", "0", "1", "1"], "stubbornness[0] is 0.0"),
        (["--stubbornness", "1", "1", "-1"], "stubbornness[2] is -1.0"),
        (["--tau", "nan"], "tau must be one finite number, got nan"),
        (["--epsilon", "inf"], "epsilon must be one finite number, got inf"),
        (["--n", "0"], "n and max_steps must be at least 1"),
        (["--choices", *map(str, range(27))], "27 choices, but there are 26 letters; give at most"),
    ],
)
def test_what_cannot_be_reasoned_with_is_one_line(
    options: list[str],
    part: str,
    picture: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    out = tmp_path / "trace.json"
    asked = ["--image", str(picture), "--question", "what?", "--out", str(out), *options]
    line = refused(asked, capsys)
    assert part in line and "picture file" not in line
    assert not out.exists()


@pytest.mark.parametrize(
    ("out", "part"), [("missing/trace.json", "folder does not exist"), ("folder", "not a file")]
)
def test_a_bad_place_for_the_trace_is_found_before_the_model_is_read(
    out: str, part: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "folder").mkdir()
    line = refused(
        ["--image", "nowhere.png", "--question", "what?", "--model", str(tmp_path / "absent"),
         "--out", str(tmp_path / out)],
        capsys,
    )  # fmt: skip
    assert str(tmp_path / out) in line and part in line


@pytest.mark.parametrize("out", [".", "notes.txt"])
def test_a_bad_place_for_the_demos_traces_is_found_before_the_model_is_read(
    out: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    (tmp_path / "easy-vqa-test-200.json").mkdir()
    monkeypatch.setattr(cli_reason, "load", lambda *arguments: pytest.fail("read it"))
    with pytest.raises(SystemExit) as stopped:
        main(["demo", "--out", str(tmp_path / out)])
    assert stopped.value.code == 2
    (line,) = capsys.readouterr().err.strip().splitlines()
    assert str(tmp_path) in line


def test_an_error_of_our_own_is_not_the_users_mistake(
    picture: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*arguments: object, **options: object) -> None:
        raise ValueError("shapes do not fit")

    monkeypatch.setattr(reasoning, "reason", broken)
    with pytest.raises(ValueError, match="shapes do not fit"):
        main(["run", "--image", str(picture), "--question", "what?"])


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


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--n", "0"], "n and max_steps must be at least 1"),
        (["--seed", "-1"], "seed must lie in"),
        (["--tau", "nan"], "tau must be one finite number"),
        (["--stubbornness", "1", "0", "1"], "stubbornness"),
        (["--question", " "], "--question is empty"),
        (["--choices", "red"], "--choices takes two options or more"),
    ],
)
def test_wrong_options_are_named_before_a_model_is_read(
    arguments: list[str],
    message: str,
    picture: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(cli_reason, "load", lambda *options: pytest.fail("read it"))
    asked = ["--image", str(picture), "--question", "what color?", *arguments]
    assert message in refused(asked, capsys)


def test_a_bad_picture_is_named_before_a_model_is_read(
    picture: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(cli_reason, "load", lambda *options: pytest.fail("read it"))
    bad = tmp_path / "text.png"
    bad.write_text("no picture")
    line = refused(["--image", str(picture), str(bad), "--question", "what color?"], capsys)
    assert "text.png" in line
