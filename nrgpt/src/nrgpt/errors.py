"""What an error of another library says."""


def first_line(error: BaseException) -> str:
    """Its first line that is not empty, or its name."""
    return next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)
