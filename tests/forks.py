"""Programs in processes of their own that start as copies of this one: what they import is imported already.

For signals and kills. They end without what Python does at its end, nor do they begin with what it does at its start.
"""

import os
import subprocess
import sys
import tempfile
import traceback


def forked(program, *arguments, **environment):
    """Run the text of a program, as `subprocess.run` would run ``python -c`` and capture what it says."""
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err:
        child = os.fork()
        if not child:
            code = 1
            try:
                for number, file in enumerate((out, err), start=1):
                    os.dup2(file.fileno(), number)
                sys.stdout, sys.stderr = out, err
                sys.argv = ["-c", *map(str, arguments)]
                os.environ.update(environment)
                exec(program, {"__name__": "__main__"})
                code = 0
            except SystemExit as end:
                code = end.code if isinstance(end.code, int) else int(end.code is not None)
            except BaseException:
                traceback.print_exc()
            finally:
                try:
                    out.flush()
                    err.flush()
                finally:  # whatever happens: a copy that went on would run the tests that follow
                    os._exit(code)
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        said = [file.seek(0) or file.read() for file in (out, err)]
        return subprocess.CompletedProcess(program, code, *said)
