"""Makes `python scripts/NAME.py` work as `python -m scripts.NAME` does.

Python then looks for modules beside the script, and finds this one under the name of the package. It puts the folder
above in the place of this one, and the package in the place of itself.
"""

import importlib
import sys
from pathlib import Path

_HERE = Path(__file__).resolve().parent
if __name__ == "scripts":
    sys.path[:] = [str(_HERE.parent), *(path for path in sys.path if Path(path or ".").resolve() != _HERE)]
    del sys.modules[__name__]
    importlib.import_module(__name__)
if __name__ == "__main__":
    print("This file is not a command. The commands: python -m scripts")
