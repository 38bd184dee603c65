"""The root of every error that bad input raises: a ``ValueError`` with the fact and the limit."""


class MeshwrightError(ValueError):
    """Bad input: the message names the field, its value, what is allowed and what to try."""


class UnknownNameError(MeshwrightError):
    """A catalogue, preset or target name that does not exist; the message lists near matches."""

    def __init__(self, what: str, name: str, known: list[str]) -> None:
        from difflib import get_close_matches

        near = get_close_matches(name, known, n=3, cutoff=0.4)
        hint = f"did you mean {', '.join(near)}?" if near else f"known: {', '.join(sorted(known))}"
        super().__init__(f"{what}: {name!r} is not known; {hint}")
