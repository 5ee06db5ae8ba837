from tidegate.columns import aligned


def test_columns_are_as_wide_as_their_widest_cell_and_nothing_trails() -> None:
    assert aligned([("name", "value"), ("a", "1"), ("longer", "")]) == ["name    value", "a       1", "longer"]


def test_no_rows_are_no_lines() -> None:
    assert aligned([]) == []
