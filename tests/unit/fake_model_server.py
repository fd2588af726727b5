"""A worker and a model server whose `synthesize` does what its text says: `python -m tests.unit.fake_model_server`."""

import os
import signal
import sys
import time

from config.errors import UserError
from config.schema import SynthesizeOptions
from core import model_server
from core.jobs import worker
from core.jobs.events import AudioChunk, Plan, Result
from core.jobs.reporter import Reporter, check_stop
from core.workspace import Workspace

MODEL_SERVER = (sys.executable, "-m", "tests.unit.fake_model_server", "model_server")


class Voice:
    """Loads once, and says so."""

    def __init__(self) -> None:
        self.loaded = False

    def speak(self, options: SynthesizeOptions, workspace: Workspace, reporter: Reporter) -> Result:
        reporter.emit(Plan(("one model",), {"loaded": 0 if self.loaded else 1}))
        self.loaded = True
        reporter.emit(AudioChunk("speech", 0, 0, "audio/none.wav", 1.0))
        match options.text:
            case "patient":
                while True:
                    check_stop(reporter)
                    time.sleep(0.01)
            case "stubborn":
                while True:
                    time.sleep(0.01)
            case "wrong":
                raise UserError("There is no such voice.", "Choose another.")
            case "buggy":
                raise ZeroDivisionError("division by zero")
            case "killed":
                os.kill(os.getpid(), signal.SIGKILL)
            case "exits":
                os._exit(7)
            case "talkative":
                os.write(2, b"from native code\n")
        return {"said": options.text}


if __name__ == "__main__":
    if sys.argv[1] == "model_server":
        sys.exit(model_server.main(sys.argv[2:], verbs={"synthesize": Voice().speak}))
    sys.exit(worker.main(sys.argv[1:], model_server_command=MODEL_SERVER))
