from __future__ import annotations

import pytest

from mainspring.cli.dead import COLUMNS as DEAD_COLUMNS
from mainspring.cli.job_table import COLUMNS
from mainspring.cli.table import Column, Styled, cut, fit, printable, render

ID, TASK, NOTE = Column("ID"), Column("TASK", least=4), Column("NOTE", least=6)


def paint(text: str, style: str) -> str:
    return f"<{style}:{text}>" if style else text


def bare(text: str, _style: str) -> str:
    return text


def test_columns_are_aligned() -> None:
    lines = render((ID, Column("N", right=True)), [("a", "7"), ("long", "1,234")], None, bare)
    assert lines == ["ID        N", "a         7", "long  1,234"]


def test_styles_do_not_count_as_width() -> None:
    lines = render((ID, TASK), [(Styled("a", "red"), "x"), ("bbbb", "y")], None, paint)
    assert lines == ["<heading:ID>    <heading:TASK>", "<red:a>     x", "bbbb  y"]


def test_the_widest_column_that_may_be_cut_is_cut() -> None:
    lines = render((ID, TASK, NOTE), [("0123456789", "welcome", "a very long message")], 30, bare)
    assert lines[1] == "0123456789  welcome  a very l…"
    assert all(len(line) <= 30 for line in lines)


def test_columns_that_find_no_room_are_left_out_from_the_right() -> None:
    lines = render((ID, TASK, NOTE), [("0123456789", "welcome", "a message")], 20, bare)
    assert lines == ["ID          TASK", "0123456789  welcome"]


def test_a_single_column_is_cut_whatever_it_says() -> None:
    assert render((ID,), [("0123456789",)], 5, bare)[1] == "0123…"


def test_without_a_width_nothing_is_cut() -> None:
    assert render((NOTE,), [("x" * 500,)], None, bare)[1] == "x" * 500


def test_a_table_without_rows_has_a_header() -> None:
    assert render((ID, TASK), [], 80, bare) == ["ID  TASK"]


@pytest.mark.parametrize("width", range(1, 60))
def test_every_width_is_kept(width: int) -> None:
    widths = fit((ID, TASK, NOTE), (10, 20, 30), width)
    assert sum(widths.values()) + 2 * (len(widths) - 1) <= width


def test_a_narrow_terminal_shows_why_rather_than_where() -> None:
    """At 100 columns a list of jobs has room for words; where there is none for them, small columns use it."""
    job = (
        "0" * 36,
        "dead_letter",
        "send_reminder",
        "when called",
        "default",
        "3/3",
        "{}",
        "OSError: connection refused",
    )
    columns = [column.column for column in COLUMNS]
    wide, narrow = (render(columns, [job], width, bare) for width in (100, 85))
    assert wide[0].split() == ["ID", "STATUS", "TASK", "WHEN", "NOTE"]
    assert "send_remi…  when called  OSError: connection ref…" in wide[1]
    assert len(wide[1]) == 100
    assert narrow[0].split() == ["ID", "STATUS", "TASK", "WHEN", "QUEUE"]


def test_dead_letters_say_why_at_eighty_columns() -> None:
    job = ("0" * 36, "send_mail", "59 min ago", "OSError: connection refused", "mail", "3/3", '{"guest": "ana"}')
    (header, row) = render([column.column for column in DEAD_COLUMNS], [job], 80, bare)
    assert header.split() == ["ID", "TASK", "WHEN", "NOTE"]
    assert "OSError: connect" in row
    (wide, _) = render([column.column for column in DEAD_COLUMNS], [job], 110, bare)
    assert wide.split() == ["ID", "TASK", "WHEN", "NOTE", "QUEUE", "TRIES", "PAYLOAD"]


def test_all_columns_are_shown_if_there_is_room() -> None:
    job = ("0" * 36, "pending", "send_reminder", "in 12 s", "default", "0/3", "{}", "")
    (header, _) = render([column.column for column in COLUMNS], [job], 120, bare)
    assert header.split() == ["ID", "STATUS", "TASK", "WHEN", "QUEUE", "TRIES", "PAYLOAD", "NOTE"]


def test_wide_characters_count_twice() -> None:
    assert cut("日本語", 6) == "日本語"
    assert cut("日本語", 5) == "日本…"
    assert render((ID, TASK), [("日本", "x"), ("abcd", "y")], None, bare)[1:] == ["日本  x", "abcd  y"]


def test_text_from_anywhere_cannot_move_the_cursor() -> None:
    assert printable("a\nb\x1b[31mc\x9bd ") == "a b [31mc d"
