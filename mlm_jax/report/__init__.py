"""The report of a run as one page, `WORKDIR/report.html`, made from the files in the folder alone.

Nothing here imports jax: a folder that was copied to a laptop gives the same page.
"""

import os
from pathlib import Path

from mlm_jax.report import page, read

FILE = "report.html"


def write(workdir: str | Path) -> Path:
    """Makes WORKDIR/report.html anew and returns its path; the file is replaced only when the new one is whole.

    A file of the run that is missing, or a line that is torn, leaves its part of the page out. The page needs no
    network and holds no script. Raises OSError where the folder cannot be written.
    """
    workdir = Path(workdir)
    text = page.html_of(read.read(workdir))
    path = workdir / FILE
    partial = path.with_name(f"{FILE}.{os.getpid()}.partial")
    # half a surrogate pair is allowed in JSON, and not in UTF-8
    partial.write_bytes(text.encode("utf-8", "replace"))
    os.replace(partial, path)
    return path
