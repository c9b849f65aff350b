"""Libraries that parts of this package need and may not have."""

import importlib


def need(part: str, *libraries: str) -> None:
    """Raises an ImportError that says what to install where a library that `part` needs is missing."""
    for library in libraries:
        try:
            importlib.import_module(library)
        except ModuleNotFoundError as error:
            if error.name != library:
                raise  # the library is installed, but lacks something itself
            raise ImportError(f"{part} needs {library}: pip install {' '.join(libraries)}", name=library) from None
