"""docs/tutorial.md, typed word by word: its Python in one process, its server, its script on two workers."""

import doctest
import json
import re
import shlex
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest

PAGE = (Path(__file__).parents[2] / "docs" / "tutorial.md").read_text("utf-8")


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)


@pytest.fixture(scope="module")
def typed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder in which all Python blocks of the page were typed, in one interpreter."""
    folder = tmp_path_factory.mktemp("tutorial")
    test = doctest.DocTestParser().get_doctest("\n\n".join(blocks("pycon")), {}, "tutorial", None, 0)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        result = doctest.DocTestRunner().run(test)
    assert result.failed == 0
    assert result.attempted > 30
    return folder


def command(words: str) -> list[str]:
    (line,) = [block for block in blocks("sh") if words in block]
    assert line.startswith("python ")
    return [sys.executable, *shlex.split(line)[1:]]


@pytest.mark.parametrize("page", ["docs/tutorial.md", "README.md"])
def test_blocks_can_be_typed_at_a_plain_prompt(page: str) -> None:
    """Python before 3.13 ends a class or a function there at an empty line."""
    lines = (Path(__file__).parents[2] / page).read_text("utf-8").splitlines()
    assert sum(line.startswith(">>> ") for line in lines) > 15
    assert [number for number, line in enumerate(lines, 1) if line.strip() == "..."] == []


def test_what_is_saved_and_exported_is_there(typed: Path) -> None:
    assert sorted(path.name for path in typed.iterdir()) == ["smoother", "smoother.keras"]


def test_the_server_answers_as_the_page_says(typed: Path) -> None:
    pytest.importorskip("uvicorn")
    serve = [*command("anabranch serve"), "--rest-port", "0", "--grpc-port", "0"]
    (curl,) = [shlex.split(block) for block in blocks("sh") if block.startswith("curl")]
    assert curl[:2] == ["curl", "-d"]

    process = subprocess.Popen(serve, cwd=typed, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        ready = re.match(r"ready rest=(\S+) ", process.stdout.readline())
        assert ready is not None
        url = curl[3].replace("http://127.0.0.1:8501", ready[1])
        with urllib.request.urlopen(url, data=curl[2].encode(), timeout=60) as answer:
            (prediction,) = json.load(answer)["predictions"]
    finally:
        process.terminate()
        process.communicate()

    # Rounded as the page has it; the cell has learned these to about a hundredth.
    stated = [float(number) for number in re.findall(r"about ([\d.]+), ([\d.]+) and ([\d.]+)\.", PAGE)[0]]
    assert [row[0] for row in prediction] == pytest.approx(stated, abs=0.02)


def test_the_script_trains_on_two_workers(tmp_path: Path) -> None:
    (script,) = blocks("python")
    (tmp_path / "points.py").write_text(script, "utf-8")

    found = subprocess.run(command("anabranch launch"), cwd=tmp_path, capture_output=True, text=True, timeout=300)

    assert found.returncode == 0, found.stderr
    assert "workers: 2 accuracy above 0.95: True" in found.stdout
