"""The words in which backends report how a replica broke."""


def failure_text(what: str, output: list[str], hint: str | None = None) -> str:
    """Returns the reason of a failure, for people: the event, a hint, the last lines of the server's own output."""
    lines = [what if hint is None else f"{what}; {hint}"]
    if output:
        lines.append("last output of the model server:")
        lines += [f"  {line}" for line in output]
    else:
        lines.append("the model server wrote nothing")
    return "\n".join(lines)
