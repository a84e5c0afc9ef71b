"""What is finished is kept line by line, and a proof that was interrupted goes on from there."""

from pathlib import Path

from scripts.search_proof.pool import Ledger, each


def test_what_was_kept_is_there_for_the_next_process(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "ledger.jsonl"
    first = Ledger(path)
    assert "a" not in first
    first.add("a", {"value": 1})
    again = Ledger(path)
    assert "a" in again
    assert again["a"] == {"value": 1}


def test_a_line_that_was_cut_off_is_made_again(tmp_path: Path) -> None:
    path = tmp_path / "ledger.jsonl"
    ledger = Ledger(path)
    ledger.add("a", {"value": 1})
    with path.open("a") as file:
        file.write('{"key":"b","resu')
    again = Ledger(path)
    assert "b" not in again
    again.add("b", {"value": 2})
    assert Ledger(path)["b"] == {"value": 2}


def test_every_piece_comes_back_with_its_result() -> None:
    assert dict(each(abs, [-3, 2, -1], 1, "pieces")) == {-3: 3, 2: 2, -1: 1}
