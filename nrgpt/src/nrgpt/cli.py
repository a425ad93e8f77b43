"""The border of a script: a documented dataclass becomes its options, and an error of the user's becomes one line.

Every project carries this module to the letter.
"""

import dataclasses
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import yaml
from jsonargparse import ArgumentError, ArgumentParser, set_parsing_settings


def run(main: Callable[[Any], None], config_class: type) -> None:
    """Parse the command line into `config_class` and call `main` with it.

    Options come from `--config FILE.yaml` and from the command line, which wins; an unknown key or a wrong type is an
    error that names it. ValueError and OSError end the script with one line and status 2; `--debug` shows where.
    """
    set_parsing_settings(docstring_parse_attribute_docstrings=True)
    summary = (config_class.__doc__ or "").strip().splitlines()[0]
    parser = ArgumentParser(description=summary, exit_on_error=False)
    parser.add_argument("--config", action="config", help="YAML file of options; the command line overrides it.")
    parser.add_argument("--debug", action="store_true", help="Show the traceback of an error.")
    parser.add_class_arguments(config_class, as_group=False)
    debug, mistake = "--debug" in sys.argv, None
    try:
        options = parser.parse_args()
        main(config_class(**{field.name: getattr(options, field.name) for field in dataclasses.fields(config_class)}))
    except (ValueError, OSError, ArgumentError) as error:
        if debug:
            raise
        lines = [line.strip() for line in str(error).splitlines() if line.strip()] or [type(error).__name__]
        # an error that crossed from a data worker carries its traceback before it
        mistake = lines[-1] if any(line.startswith("Traceback") for line in lines) else " ".join(lines)
    except KeyboardInterrupt:
        if debug:
            raise
        sys.exit(130)
    if mistake is not None:  # out here the error is gone, and with it what it held, such as data workers
        print(f"{Path(sys.argv[0]).name}: error: {mistake}", file=sys.stderr)
        sys.exit(2)


def as_dict(config: Any) -> dict[str, Any]:
    """The options as plain values that JSON and YAML hold."""
    options = dataclasses.asdict(config)
    return {
        key: str(v) if isinstance(v, Path) else list(v) if isinstance(v, tuple) else v for key, v in options.items()
    }


def save_config(config: Any, file: Path) -> None:
    """Write the options in effect as YAML that `--config` reads."""
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(yaml.safe_dump(as_dict(config), sort_keys=False), encoding="utf-8")
