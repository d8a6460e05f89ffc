"""Configuration files: keys twice, other encodings, broken YAML end in a line that says where."""

from pathlib import Path

import pytest

from distillery.config.yaml_files import check_files

REPOSITORY = Path(__file__).parents[3]


def refused(path: Path, content: bytes) -> str:
    path.write_bytes(content)
    with pytest.raises(ValueError, match=str(path)) as caught:
        check_files([path])
    return str(caught.value)


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("run: a\nseed: 1\nrun: b\n", "line 3: run stands on line 1 already"),
        ("targets:\n  steps: 4\n  steps: 8\n", "line 3: steps stands on line 2 already"),
        ("- {a: 1, b: 2, a: 3}\n", "line 1: a stands on line 1 already"),
    ],
)
def test_a_key_that_stands_twice(tmp_path: Path, text: str, line: str) -> None:
    message = refused(tmp_path / "my.yaml", text.encode())
    assert message.splitlines()[1:] == [f"  {line}"]


def test_all_keys_that_stand_twice_are_named(tmp_path: Path) -> None:
    text = b"run: a\nrun: b\nteacher: {path: x, path: y}\n"
    assert len(refused(tmp_path / "my.yaml", text).splitlines()) == 3


@pytest.mark.parametrize(
    ("encoding", "said"), [("cp1252", "iconv -f WINDOWS-1252"), ("utf-16", "iconv -f UTF-16")]
)
def test_another_encoding(tmp_path: Path, encoding: str, said: str) -> None:
    message = refused(tmp_path / "my.yaml", "run: \u201ecaf\u00e9\u201c\n".encode(encoding))
    assert "it is not UTF-8" in message or "it is UTF-16" in message
    assert said in message
    assert len(message.splitlines()) == 1


@pytest.mark.parametrize("content", [b"run: [", b"run:\n\tseed: 1\n", b"run: a\0b\n"])
def test_what_is_no_yaml(tmp_path: Path, content: bytes) -> None:
    message = refused(tmp_path / "my.yaml", content)
    assert "is no YAML" in message
    assert len(message.splitlines()) == 1


@pytest.mark.parametrize("code", [0x7F, *range(0x80, 0xA0), 0xFEFF])
def test_control_characters_are_refused_with_their_place(tmp_path: Path, code: int) -> None:
    """YAML takes U+0085, of an ellipsis in WINDOWS-1252, for a line end."""
    content = f"run: a\nteacher: {{negative_prompt: 'a dog{chr(code)}'}}\n".encode()
    message = refused(tmp_path / "my.yaml", content)
    assert f"is no YAML: line 2, column 34 is the {'byte' if code > 256 else 'con'}" in message
    assert len(message.splitlines()) == 1


def test_a_result_is_no_configuration(tmp_path: Path) -> None:
    path = tmp_path / "results/demo/plan.json"
    path.parent.mkdir(parents=True)
    assert "is a result and no configuration: write targets before" in refused(path, b"{}")
    (path.parent / "config").mkdir()
    (path.parent / "config/run.json").write_text("{}")
    (tmp_path / "results/mine.yaml").write_text("{}")
    check_files([path.parent / "config/run.json", tmp_path / "results/mine.yaml"])


def test_aliases_end(tmp_path: Path) -> None:
    lines = ["a0: &a0 {k: 1}"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]" for n in range(1, 40)]
    path = tmp_path / "my.yaml"
    path.write_text("\n".join(lines))
    check_files([path])


def test_shipped_files_and_those_that_are_missing_pass(tmp_path: Path) -> None:
    check_files([*REPOSITORY.glob("config/**/*.yaml"), tmp_path / "missing.yaml"])
    (tmp_path / "bom.yaml").write_bytes(b"\xef\xbb\xbfrun: a\n")
    check_files([tmp_path / "bom.yaml"])
