"""Each change is one change, and what no test should notice is left alone."""

import ast

from tests.mutation.mutants import mutants, mutated

SOURCE = '''
"""Text."""
LIMIT = 10


class Box:
    __slots__ = ("a",)

    def fits(self, size: int = 3) -> bool:
        """Text with 1 number."""
        if size < LIMIT and not self.a:
            return max(size, 1) == 2
        raise ValueError(f"not {size + 1}")

    def __repr__(self) -> str:
        return f"<Box {1 + 1}>"
'''


def test_every_operator_limit_and_branch_of_a_function_is_changed_once() -> None:
    assert [(each.line, each.before, each.after) for each in mutants(SOURCE)] == [
        (9, "3", "4"),
        (11, "if size < LIMIT and (not self.a)", "if not (size < LIMIT and (not self.a))"),
        (11, "size < LIMIT and (not self.a)", "size < LIMIT or not self.a"),
        (11, "size < LIMIT", "size <= LIMIT"),
        (11, "not self.a", "self.a"),
        (12, "max(size, 1) == 2", "max(size, 1) != 2"),
        (12, "2", "3"),
        (12, "max(size, 1)", "min(size, 1)"),
        (12, "1", "2"),
    ]


def test_a_mutant_differs_from_the_source_in_its_change_alone() -> None:
    plain = ast.unparse(ast.parse(SOURCE)).splitlines()
    for mutant in mutants(SOURCE):
        changed = ast.unparse(mutated(SOURCE, mutant)).splitlines()
        assert len(changed) == len(plain)
        assert sum(one != other for one, other in zip(changed, plain, strict=True)) == 1, mutant
